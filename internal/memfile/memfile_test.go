package memfile

import (
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAFileInMemoryIsKeptAsItIs seals it. A file without a name, as there is where memfd_create is refused, has no seals.
func TestAFileInMemoryIsKeptAsItIs(t *testing.T) {
	f, err := New("data", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("one"); err != nil {
		t.Fatal(err)
	}
	if err := Seal(f); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("two"), 0); err == nil {
		t.Error("a sealed file was written")
	}
	for _, dir := range []string{t.TempDir(), "/dev/shm"} {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			continue // such a file system is not here
		}
		plain := os.NewFile(uintptr(fd), dir)
		if err := Seal(plain); err != nil {
			t.Errorf("a file without seals in %s: %v", dir, err)
		}
		plain.Close()
	}
}

func TestAFileWithoutANameIsReadFromItsBeginning(t *testing.T) {
	f, err := unnamed("data")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("links %d, mode %o, %v", st.Nlink, st.Mode, err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}
