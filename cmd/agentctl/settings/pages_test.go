package settings

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAPageReplacesAFileAlone has a device and a link where it is to be, as /dev/null and /dev/stdout are.
func TestAPageReplacesAFileAlone(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"file": os.WriteFile(at("file"), nil, 0o600), "fifo": unix.Mkfifo(at("fifo"), 0o600), "link": os.Symlink("file", at("link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
		err := writePageFile(at(name), func(w io.Writer) error {
			_, err := io.WriteString(w, "page")
			return err
		})
		if name == "file" {
			if data, read := os.ReadFile(at(name)); err != nil || read != nil || string(data) != "page" {
				t.Errorf("%v, %q %v", err, data, read)
			}
			continue
		}
		if info, _ := os.Lstat(at(name)); err == nil || !strings.Contains(err.Error(), name+" is no regular file") || info.Mode().IsRegular() {
			t.Errorf("%s: %v", name, err)
		}
	}
}
