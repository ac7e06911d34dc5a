package fuse

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

const softPolicy = `
file_rules:
  - {name: bin, paths: ["WS/soft/**"], operations: [delete, rmdir, write], decision: soft_delete}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

func startSoft(t *testing.T, trash string, limits trash.Limits) *session {
	s := start(t, options{policy: softPolicy, trash: trash, limits: limits})
	s.seed(map[string]string{"soft/a": "text of a", "soft/b": "text of b", "soft/d/e": "deep", "plain": "p"})
	must(t, os.Symlink("a", s.back("soft/l")))
	return s
}

// manifest returns what is in the trash, by path below the mount.
func manifest(t *testing.T, s *session, dir string) map[string][]trash.Entry {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "manifest.jsonl"))
	must(t, err)
	defer f.Close()
	out := map[string][]trash.Entry{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e trash.Entry
		must(t, json.Unmarshal(lines.Bytes(), &e))
		rel := strings.TrimPrefix(string(e.Path), s.dir+"/")
		out[rel] = append(out[rel], e)
	}
	return out
}

var roomy = trash.Limits{Bytes: 1 << 20, Entries: 100}

func TestSoftDeleteMovesDeletedContentToTheTrash(t *testing.T) {
	cases := []struct {
		name, path, op, kept string
		do                   func(s *session) error
		there                bool
	}{
		{"unlink", "soft/a", "delete", "text of a", func(s *session) error { return os.Remove(s.path("soft/a")) }, false},
		{
			"truncating open",
			"soft/a",
			"write",
			"text of a",
			func(s *session) error { return os.WriteFile(s.path("soft/a"), []byte("x"), 0o644) },
			true,
		},
		{"truncate", "soft/a", "write", "text of a", func(s *session) error { return unix.Truncate(s.path("soft/a"), 1) }, true},
		{"overwrite in place", "soft/a", "write", "text of a", func(s *session) error {
			f, err := os.OpenFile(s.path("soft/a"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("new")
			return err
		}, true},
		{
			"rename over it",
			"soft/a",
			"rename",
			"text of a",
			func(s *session) error { return os.Rename(s.path("soft/b"), s.path("soft/a")) },
			true,
		},
		{"symlink", "soft/l", "delete", "", func(s *session) error { return os.Remove(s.path("soft/l")) }, false},
	}
	for _, trash := range []string{"same filesystem", "another filesystem"} {
		for _, c := range cases {
			t.Run(c.name+" "+trash, func(t *testing.T) {
				dir := t.TempDir()
				if trash == "another filesystem" {
					must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1M"))
					defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
				}
				s := startSoft(t, dir, roomy)
				must(t, c.do(s))
				if _, err := os.Lstat(s.path(c.path)); (err == nil) != c.there {
					t.Errorf("afterwards: %v", err)
				}
				list := manifest(t, s, dir)[c.path]
				if len(list) != 1 || list[0].Op != c.op || list[0].Rule == nil || list[0].Rule.Name != "bin" {
					t.Fatalf("manifest %+v", list)
				}
				if c.kept != "" {
					if got, err := os.ReadFile(filepath.Join(dir, list[0].ID)); err != nil || string(got) != c.kept {
						t.Errorf("kept %q, %v", got, err)
					}
				}
				e := s.waitEvent(func(e wire.Event) bool { return e.Decision == "soft_delete" })
				if !strings.HasSuffix(e.Target, list[0].ID) {
					t.Errorf("event %+v", e)
				}
				os.Remove(s.back(c.path))
				must(t, s.control.Invalidate(t.Context(), s.path(c.path)))
				must(t, s.control.Restore(t.Context(), list[0].ID, false))
				if c.kept == "" {
					if got, err := os.Readlink(s.path(c.path)); err != nil || got != "a" {
						t.Errorf("restored %q, %v", got, err)
					}
				} else if got, err := os.ReadFile(s.path(c.path)); err != nil || string(got) != c.kept {
					t.Errorf("restored %q, %v", got, err)
				}
				if err := s.control.Restore(t.Context(), list[0].ID, false); err == nil {
					t.Error("restored twice")
				}
			})
		}
	}
}

func TestRecursiveRemovalGoesToTheTrash(t *testing.T) {
	dir := t.TempDir()
	s := startSoft(t, dir, roomy)
	if out, err := exec.Command("rm", "-r", s.path("soft/d")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list := manifest(t, s, dir)
	if len(list["soft/d"]) != 1 || list["soft/d"][0].Type != "dir" || len(list["soft/d/e"]) != 1 {
		t.Errorf("manifest %+v", list)
	}
}

func TestAFullTrashDenies(t *testing.T) {
	for name, limits := range map[string]trash.Limits{"bytes": {Bytes: 10, Entries: 100}, "entries": {Bytes: 1 << 20, Entries: 1}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := startSoft(t, dir, limits)
			must(t, os.Remove(s.path("soft/a")))
			if err := os.Remove(s.path("soft/b")); !errors.Is(err, unix.EDQUOT) {
				t.Errorf("got %v, want EDQUOT", err)
			}
			if err := os.WriteFile(s.path("soft/b"), nil, 0); !errors.Is(err, unix.EDQUOT) {
				t.Errorf("got %v, want EDQUOT", err)
			}
			if got, _ := os.ReadFile(s.back("soft/b")); string(got) != "text of b" {
				t.Errorf("the file holds %q", got)
			}
			e := s.waitEvent(func(e wire.Event) bool { return e.Decision == "deny" })
			if !strings.Contains(e.Message, "trash") {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestANewServerGoesOnWithTheTrash(t *testing.T) {
	dir := t.TempDir()
	limits := trash.Limits{Bytes: 1 << 20, Entries: 2}
	for range 2 {
		s := startSoft(t, dir, limits)
		must(t, os.Remove(s.path("soft/a")))
		s.end()
	}
	s := startSoft(t, dir, limits)
	if err := os.Remove(s.path("soft/a")); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("got %v, want EDQUOT", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 3 {
		t.Errorf("the trash holds %v, %v", list, err)
	}
}
