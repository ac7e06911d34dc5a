package fuse

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

const awayPolicy = `
file_rules:
  - {name: flat, paths: ["WS/flat/**"], operations: [write, create, mkdir], decision: redirect, redirect_to: WS/to}
  - {name: away, paths: ["WS/out/**"], operations: [write, create, mkdir], decision: redirect, redirect_to: WS/to, preserve_tree: true}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

// startAway makes a session and returns where files of the mount are sent.
func startAway(t *testing.T) (s *session, sent func(rel string) string) {
	s = start(t, options{policy: awayPolicy})
	s.seed(map[string]string{"out/old": "before", "out/other": "other", "flat/x": "", "to/x": "of another time", "plain": "p"})
	return s, func(rel string) string { return s.back("to" + s.path(rel)) }
}

func holds(t *testing.T, file, want string) {
	t.Helper()
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
	}
}

func TestARedirectedWriteGoesToTheTargetOfTheRule(t *testing.T) {
	tests := []struct {
		name       string
		do         func(s *session) error
		file, text string // what the program finds, and the target holds
		here       string // what the workspace still holds under that name
	}{
		{"create", func(s *session) error { return os.WriteFile(s.path("out/new"), []byte("text"), 0o640) }, "out/new", "text", ""},
		{"overwrite", func(s *session) error { return os.WriteFile(s.path("out/old"), []byte("text"), 0) }, "out/old", "text", "before"},
		{"append", func(s *session) error {
			f, err := os.OpenFile(s.path("out/old"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(" and after")
			return errors.Join(err, f.Close())
		}, "out/old", "before and after", "before"},
		{"after reading it", func(s *session) error {
			f, err := os.OpenFile(s.path("out/old"), os.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.Read(make([]byte, 3)); err != nil {
				return err
			}
			return os.WriteFile(s.path("out/old"), []byte("text"), 0)
		}, "out/old", "text", "before"},
		{"truncate", func(s *session) error { return os.Truncate(s.path("out/old"), 3) }, "out/old", "bef", "before"},
		{"below a new directory", func(s *session) error {
			if err := os.MkdirAll(s.path("out/d/e"), 0o755); err != nil {
				return err
			}
			return os.WriteFile(s.path("out/d/e/f"), []byte("deep"), 0o644)
		}, "out/d/e/f", "deep", ""},
		{"saved by rename", func(s *session) error {
			if err := os.WriteFile(s.path("out/.old.tmp"), []byte("saved"), 0o644); err != nil {
				return err
			}
			return os.Rename(s.path("out/.old.tmp"), s.path("out/old"))
		}, "out/old", "saved", "before"},
		{"moved there", func(s *session) error { return os.Rename(s.path("plain"), s.path("out/plain")) }, "out/plain", "p", ""},
		{"removed and made again", func(s *session) error {
			if err := os.WriteFile(s.path("out/old"), []byte("one"), 0); err != nil {
				return err
			}
			if err := os.Remove(s.path("out/old")); err != nil {
				return err
			}
			if _, err := os.Lstat(s.path("out/old")); !errors.Is(err, os.ErrNotExist) {
				return errors.New("it is still there")
			}
			return os.WriteFile(s.path("out/old"), []byte("two"), 0o644)
		}, "out/old", "two", "before"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, sent := startAway(t)
			must(t, test.do(s))
			holds(t, s.path(test.file), test.text)
			holds(t, sent(test.file), test.text)
			if test.here == "" {
				if _, err := os.Lstat(s.back(test.file)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the workspace has it: %v", err)
				}
			} else {
				holds(t, s.back(test.file), test.here)
			}
			e := s.waitEvent(func(e wire.Event) bool { return e.Decision == "redirect" })
			if e.Rule == nil || e.Rule.Name != "away" || !strings.HasPrefix(e.Target, s.path("to")) {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestARedirectWithoutTheTreeStoresTheNameOnly(t *testing.T) {
	s, _ := startAway(t)
	must(t, os.WriteFile(s.path("flat/x"), []byte("new"), 0))
	holds(t, s.back("to/x"), "new")
	holds(t, s.back("flat/x"), "")
	holds(t, s.path("flat/x"), "new")
}

// TestNothingWritesAroundARedirect: another name of the file, a link in the
// target, a directory moved in.
func TestNothingWritesAroundARedirect(t *testing.T) {
	t.Run("hard link", func(t *testing.T) {
		s, sent := startAway(t)
		must(t, os.Link(s.back("out/old"), s.back("outer")))
		_, err := os.Stat(s.path("outer"))
		must(t, err)
		_, err = os.Stat(s.path("out/old"))
		must(t, err)
		if err := os.WriteFile(s.path("outer"), []byte("x"), 0); err == nil {
			t.Error("written by the other name")
		}
		if err := os.WriteFile(s.path("outer"), []byte("x"), 0); err == nil {
			t.Error("written by the other name at the second try")
		}
		must(t, os.WriteFile(s.path("out/old"), []byte("mine"), 0))
		holds(t, s.back("out/old"), "before")
		holds(t, sent("out/old"), "mine")
	})
	t.Run("link in the target", func(t *testing.T) {
		s, sent := startAway(t)
		outside := filepath.Join(t.TempDir(), "victim")
		must(t, os.WriteFile(outside, []byte("v"), 0o644))
		must(t, os.MkdirAll(sent("out"), 0o755))
		must(t, os.Symlink(outside, sent("out/old")))
		must(t, os.WriteFile(s.path("out/old"), []byte("x"), 0))
		holds(t, outside, "v")
		must(t, os.RemoveAll(sent("out")))
		must(t, os.Symlink(filepath.Dir(outside), sent("out")))
		if err := os.WriteFile(s.path("out/victim"), []byte("x"), 0o644); err == nil {
			t.Error("written through a link")
		}
		holds(t, outside, "v")
	})
	t.Run("link and directory", func(t *testing.T) {
		s, _ := startAway(t)
		if err := os.Link(s.path("plain"), s.path("out/l")); !errors.Is(err, unix.EACCES) {
			t.Errorf("link: %v", err)
		}
		s.seed(map[string]string{"tree/f": "f"})
		if err := os.Rename(s.path("tree"), s.path("out/tree")); !errors.Is(err, unix.EACCES) {
			t.Errorf("directory: %v", err)
		}
		if err := unix.Renameat2(-1, s.path("plain"), -1, s.path("out/old"), unix.RENAME_EXCHANGE); !errors.Is(err, unix.EACCES) {
			t.Errorf("exchange: %v", err)
		}
		if err := os.Rename(s.path("out/other"), s.path("mine")); !errors.Is(err, unix.EACCES) {
			t.Errorf("out of it: %v", err)
		}
		holds(t, s.back("out/old"), "before")
		holds(t, s.back("plain"), "p")
	})
}

func TestTheChangeRecordNamesTheTarget(t *testing.T) {
	s, _ := startAway(t)
	must(t, s.control.Baseline(t.Context()))
	must(t, os.WriteFile(s.path("flat/x"), []byte("new"), 0))
	must(t, os.WriteFile(s.path("flat/y"), []byte("new"), 0o644))
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	if len(list) != 2 || list[0] != (wire.Change{Path: "to/x", Kind: "modified"}) || list[1] != (wire.Change{Path: "to/y", Kind: "created"}) {
		t.Errorf("changes %+v", list)
	}
}
