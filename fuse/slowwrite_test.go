package fuse

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/testenv"
)

// slowWrite begins a write(2) of data over a file that stops after the first page of data. The
// rest is written when finish is called, which returns when the write has ended. See
// userfaultfd(2), ioctl_userfaultfd(2).
func slowWrite(t *testing.T, file string, data []byte) (finish func()) {
	t.Helper()
	const (
		api, register, fill = 0xc018aa3f, 0xc020aa00, 0xc028aa03 // UFFDIO_API, _REGISTER, _COPY
		version, missing    = 0xaa, 1
	)
	page := os.Getpagesize()
	var fd uintptr
	testenv.Need(t, testenv.That("userfaultfd", func() (err error) {
		var errno unix.Errno
		if fd, _, errno = unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0); errno != 0 {
			err = errno
		}
		return err
	}))
	call := func(request uintptr, args *[5]uint64) {
		t.Helper()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(args))); errno != 0 {
			t.Fatalf("ioctl %#x: %v", request, errno)
		}
	}
	call(api, &[5]uint64{version})
	memory, err := unix.Mmap(-1, 0, len(data), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	copy(memory, data[:page])
	late := uint64(uintptr(unsafe.Pointer(&memory[page])))
	call(register, &[5]uint64{late, uint64(len(data) - page), missing})
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(memory, 0)
		done <- err
	}()
	event := make([]byte, 32)
	if _, err := unix.Read(int(fd), event); err != nil { // the write waits for the second page
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		call(fill, &[5]uint64{late, uint64(uintptr(unsafe.Pointer(&data[page]))), uint64(len(data) - page)})
		must(t, <-done)
		must(t, f.Close())
		must(t, unix.Close(int(fd)))
		must(t, unix.Munmap(memory))
	}
}

// The kernel sets the times of a file before a write copies. What a command opens or reads
// meanwhile has these times, and not yet all data.
func TestAnOpenAfterASlowWriteOfTheHostSeesIt(t *testing.T) {
	before, after := bytes.Repeat([]byte("a"), 2*os.Getpagesize()), bytes.Repeat([]byte("b"), 2*os.Getpagesize())
	for _, o := range []options{{}, {plain: true}, {backing: backingOn(t, "tmpfs")}} {
		for _, reads := range []bool{false, true} {
			t.Run(fmt.Sprintf("plain %v, on %q, read %v", o.plain, o.backing, reads), func(t *testing.T) {
				s := start(t, o)
				s.seed(map[string]string{"d/f": string(before)})
				<-time.After(2 * tree.Settling)
				finish := slowWrite(t, s.back("d/f"), after)
				<-time.After(2 * tree.Settling) // a file that changed just now is not stored
				f, err := os.Open(s.path("d/f"))
				must(t, err)
				defer f.Close()
				if reads {
					_, err := f.ReadAt(make([]byte, len(before)), 0)
					must(t, err)
				}
				finish()
				got, err := os.ReadFile(s.path("d/f"))
				must(t, err)
				if !bytes.Equal(got, after) {
					t.Errorf("%d of %d bytes are old", bytes.Count(got, []byte("a")), len(got))
				}
			})
		}
	}
}

// changeSecretly writes over the beginning of a file, and keeps its size and time of change.
func changeSecretly(t *testing.T, file, text string) {
	t.Helper()
	st, err := os.Stat(file)
	must(t, err)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte(text), 0)
	must(t, err)
	must(t, f.Close())
	must(t, os.Chtimes(file, st.ModTime(), st.ModTime()))
}

// A file whose size and time of change are as before is another one all the same.
func TestAChangeThatKeepsSizeAndTimeIsSeen(t *testing.T) {
	for _, o := range []options{{}, {plain: true}, {watched: -1}, {watched: -1, plain: true}} {
		for _, names := range []int{1, 2} {
			t.Run(fmt.Sprintf("watched %v, plain %v, names %d", o.watched == 0, o.plain, names), func(t *testing.T) {
				s := start(t, o)
				s.seed(map[string]string{"d/f": "old text"})
				if names > 1 {
					must(t, os.Link(s.back("d/f"), s.back("other")))
				}
				<-time.After(2 * tree.Settling)
				_, err := os.ReadFile(s.path("d/f"))
				must(t, err)
				changeSecretly(t, s.back("d/f"), "new")
				<-time.After(1200 * time.Millisecond) // attributes are cached for a second where nothing is watched
				_, err = os.Stat(s.path("d/f"))
				must(t, err)
				if got, err := os.ReadFile(s.path("d/f")); err != nil || string(got) != "new text" {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
	}
}

// The file keeps its pages in the kernel while it has no name that is known.
func TestAChangeThatKeepsSizeAndTimeIsSeenAfterARename(t *testing.T) {
	for _, size := range []int{1000, tree.DirectMin} {
		for _, o := range []options{{}, {plain: true}} {
			for _, looks := range []bool{false, true} {
				t.Run(fmt.Sprintf("size %d, plain %v, looks %v", size, o.plain, looks), func(t *testing.T) {
					s := start(t, o)
					other := start(t, options{backing: s.backing})
					s.seed(map[string]string{"f": string(bytes.Repeat([]byte("a"), size))})
					<-time.After(2 * tree.Settling)
					_, err := os.ReadFile(s.path("f"))
					must(t, err)
					must(t, os.Rename(other.path("f"), other.path("g")))
					if looks {
						_, err := os.Stat(s.path("g"))
						must(t, err)
					}
					changeSecretly(t, s.back("g"), "b")
					if got, err := os.ReadFile(s.path("g")); err != nil || got[0] != 'b' {
						t.Errorf("it begins with %q, %v", got[0], err)
					}
				})
			}
		}
	}
}
