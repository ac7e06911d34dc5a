package fuse

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestADirectoryThatWentCanBeMadeAgain: the host removes a directory, and nobody tells of
// it. A command that fails to make an entry there makes the directory, and succeeds then.
// git stores an object so.
func TestADirectoryThatWentCanBeMadeAgain(t *testing.T) {
	for name, put := range map[string]func(name string) error{
		"create":  func(n string) error { return os.WriteFile(n, nil, 0o644) },
		"mkdir":   func(n string) error { return os.Mkdir(n, 0o755) },
		"symlink": func(n string) error { return os.Symlink("x", n) },
		"mknod":   func(n string) error { return unix.Mknod(n, unix.S_IFIFO|0o600, 0) },
		"link":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, options{watched: -1, cacheSeconds: 600})
			s.seed(map[string]string{"d/x": "", "other": ""})
			if name == "link" {
				put = func(n string) error { return os.Link(s.path("other"), n) }
			}
			look(t, s.dir)
			must(t, os.RemoveAll(s.back("d")))
			if err := put(s.path("d/new")); !errors.Is(err, unix.ENOENT) {
				t.Errorf("in the directory that went: %v", err)
			}
			must(t, os.Mkdir(s.path("d"), 0o755))
			must(t, put(s.path("d/new")))
		})
	}
}
