package fuse

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// gitPolicy keeps hooks and settings of a repository read-only, also while they
// do not exist, and hides .env.
const gitPolicy = `
file_rules:
  - {name: hooks-read, paths: ["WS/.git/hooks/**", "WS/.git/config", "WS/.claude/**"], operations: [read, list, stat], decision: allow}
  - {name: hooks, paths: ["WS/.git/hooks/**", "WS/.git/config", "WS/.claude/**"], operations: ["*"], decision: deny}
  - {name: env, paths: ["WS/.env"], operations: [read, write], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

func seedRepository(s *session) {
	s.seed(map[string]string{
		".git/hooks/pre-commit": "original", ".git/config": "original", ".git/HEAD": "ref", ".env": "KEY=secret",
		"evil/hooks/pre-commit": "evil", "evil/config": "evil", "src/a.go": "package a",
	})
}

// attack is a way to change or read what the policy protects. Its error is of
// no interest: the protected files are looked at afterwards.
type attack struct {
	name string
	do   func(s *session)
}

var attacks = []attack{
	{"write through an absolute symbolic link", func(s *session) {
		os.Symlink(s.path(".git/hooks"), s.path("l"))
		os.WriteFile(s.path("l/pre-commit"), []byte("evil"), 0o644)
	}},
	{"write through a relative symbolic link", func(s *session) {
		os.Symlink("../.git/hooks", s.path("src/l"))
		os.WriteFile(s.path("src/l/pre-commit"), []byte("evil"), 0o644)
	}},
	{"write through dot dot", func(s *session) {
		os.WriteFile(s.dir+"/src/../.git/hooks/pre-commit", []byte("evil"), 0o644)
	}},
	{"rename of the parent and a new tree in its place", func(s *session) {
		if os.Rename(s.path(".git"), s.path("away")) == nil {
			os.MkdirAll(s.path(".git/hooks"), 0o755)
			os.WriteFile(s.path(".git/hooks/pre-commit"), []byte("evil"), 0o644)
		}
	}},
	{"change under another name of the parent, then back", func(s *session) {
		os.Rename(s.path(".git"), s.path("away"))
		os.WriteFile(s.path("away/hooks/pre-commit"), []byte("evil"), 0o644)
		os.Rename(s.path("away"), s.path(".git"))
	}},
	{"exchange of the parent with a prepared tree", func(s *session) {
		unix.Renameat2(unix.AT_FDCWD, s.path("evil"), unix.AT_FDCWD, s.path(".git"), unix.RENAME_EXCHANGE)
	}},
	{"exchange the other way round", func(s *session) {
		unix.Renameat2(unix.AT_FDCWD, s.path(".git"), unix.AT_FDCWD, s.path("evil"), unix.RENAME_EXCHANGE)
	}},
	{"exchange of a file", func(s *session) {
		unix.Renameat2(unix.AT_FDCWD, s.path("evil/config"), unix.AT_FDCWD, s.path(".git/config"), unix.RENAME_EXCHANGE)
	}},
	{"rename of a prepared tree over an absent one", func(s *session) {
		os.RemoveAll(s.path(".git/hooks"))
		os.Rename(s.path("evil/hooks"), s.path(".git/hooks"))
	}},
	{"whiteout", func(s *session) {
		unix.Renameat2(unix.AT_FDCWD, s.path(".git/config"), unix.AT_FDCWD, s.path("w"), 4)
	}},
	{"hard link then write", func(s *session) {
		os.Link(s.path(".git/config"), s.path("c"))
		os.WriteFile(s.path("c"), []byte("evil"), 0o644)
	}},
	{"write through a working directory opened before", func(s *session) {
		fd, err := unix.Open(s.path(".git/hooks"), unix.O_PATH, 0)
		if err != nil {
			return
		}
		defer closeFD(fd)
		os.Rename(s.path(".git"), s.path("away"))
		if f, err := unix.Openat(fd, "pre-commit", unix.O_WRONLY|unix.O_TRUNC, 0); err == nil {
			unix.Write(f, []byte("evil"))
			closeFD(f)
		}
		os.Rename(s.path("away"), s.path(".git"))
	}},
	{"chmod through an O_PATH descriptor", func(s *session) {
		fd, err := unix.Open(s.path(".git/config"), unix.O_PATH, 0)
		if err != nil {
			return
		}
		defer closeFD(fd)
		unix.Chmod(procPath(fd), 0o777)
		if f, err := unix.Open(procPath(fd), unix.O_WRONLY, 0); err == nil {
			unix.Write(f, []byte("evil"))
			closeFD(f)
		}
	}},
	{"anonymous file linked into place", func(s *session) {
		fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR, 0o644)
		if err != nil {
			return
		}
		defer closeFD(fd)
		unix.Write(fd, []byte("evil"))
		unix.Unlink(s.path(".git/config"))
		unix.Linkat(unix.AT_FDCWD, procPath(fd), unix.AT_FDCWD, s.path(".git/config"), unix.AT_SYMLINK_FOLLOW)
	}},
	{"copy_file_range and sendfile into a read handle", func(s *session) {
		to, err := unix.Open(s.path(".git/config"), unix.O_RDONLY, 0)
		if err != nil {
			return
		}
		defer closeFD(to)
		from, _ := unix.Open(s.path("evil/config"), unix.O_RDONLY, 0)
		defer closeFD(from)
		unix.CopyFileRange(from, nil, to, nil, 4, 0)
		unix.Sendfile(to, from, nil, 4)
		unix.Ftruncate(to, 0)
		unix.Fallocate(to, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4)
	}},
	{"shared writable mapping of a read handle", func(s *session) {
		fd, err := unix.Open(s.path(".git/config"), unix.O_RDONLY, 0)
		if err != nil {
			return
		}
		defer closeFD(fd)
		if data, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			copy(data, "evil")
			unix.Munmap(data)
		}
	}},
	{"create what does not exist yet", func(s *session) {
		os.MkdirAll(s.path(".claude/hooks"), 0o755)
		os.Symlink("evil", s.path(".claude"))
		os.WriteFile(s.path(".claude"), []byte("evil"), 0o644)
		os.Rename(s.path("evil"), s.path(".claude"))
		os.Link(s.path("evil/config"), s.path(".claude"))
		unix.Mknod(s.path(".claude"), unix.S_IFREG|0o644, 0)
	}},
	{"prepare below a directory, then rename it to a protected name", func(s *session) {
		os.MkdirAll(s.path("x/deep"), 0o755)
		os.WriteFile(s.path("x/deep/settings.json"), []byte("evil"), 0o644)
		os.Rename(s.path("x/deep"), s.path(".claude"))
		os.Rename(s.path("x"), s.path(".claude"))
	}},
	{"read of a denied file under another name", func(s *session) {
		os.Rename(s.path(".env"), s.path("plain"))
	}},
	{"read of a denied file by a hard link", func(s *session) {
		os.Link(s.path(".env"), s.path("plain"))
	}},
	{"read of a denied file by a hard link whose first name goes", func(s *session) {
		os.Link(s.path(".env"), s.path("plain"))
		os.Remove(s.path(".env"))
	}},
	{"read of a denied file unlinked while its O_PATH descriptor is open", func(s *session) {
		fd, err := unix.Open(s.path(".env"), unix.O_PATH, 0)
		if err != nil {
			return
		}
		defer closeFD(fd)
		os.Remove(s.path(".env"))
		data, err := os.ReadFile(procPath(fd))
		if err == nil {
			os.WriteFile(s.path("plain"), data, 0o644)
		}
	}},
	{"read of a denied file in a directory that is renamed", func(s *session) {
		os.Rename(s.dir, s.dir+"2")
	}},
}

func TestProtectedFilesSurviveAttacks(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			s := start(t, options{policy: gitPolicy})
			seedRepository(s)
			a.do(s)
			for _, rel := range []string{".git/hooks/pre-commit", ".git/config"} {
				if got, err := os.ReadFile(s.back(rel)); err != nil || string(got) != "original" {
					t.Errorf("%s holds %q, %v", rel, got, err)
				}
				if fi, err := os.Stat(s.back(rel)); err == nil && fi.Mode().Perm() != 0o644 {
					t.Errorf("%s has mode %v", rel, fi.Mode())
				}
			}
			if _, err := os.Lstat(s.back(".claude")); err == nil {
				t.Error(".claude was made")
			}
			if data, err := os.ReadFile(s.path("plain")); err == nil && strings.Contains(string(data), "secret") {
				t.Error("the denied file was read")
			}
		})
	}
}

func TestAHardLinkKeepsTheStricterRuleOfItsNames(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: no-write, paths: ["WS/a/**"], operations: [write], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{"a/f": "text", "b/g": "text"})
	if err := os.Link(s.path("a/f"), s.path("b/f")); !errors.Is(err, unix.EACCES) {
		t.Errorf("link to a name that permits more: got %v, want EACCES", err)
	}
	must(t, os.Link(s.path("a/f"), s.path("a/f2")))
	must(t, os.Link(s.path("b/g"), s.path("a/g")))
	if err := os.Link(s.path("b/g"), s.path("b/h")); !errors.Is(err, unix.EACCES) {
		t.Errorf("a third name that permits more: got %v, want EACCES", err)
	}
	must(t, os.Remove(s.path("a/g")))
	for _, rel := range []string{"a/f2", "b/g"} {
		if _, err := os.ReadFile(s.path(rel)); err != nil {
			t.Errorf("read %s: %v", rel, err)
		}
		if err := os.WriteFile(s.path(rel), nil, 0o644); !errors.Is(err, unix.EACCES) {
			t.Errorf("write %s: got %v, want EACCES", rel, err)
		}
		if err := unix.Truncate(s.path(rel), 0); !errors.Is(err, unix.EACCES) {
			t.Errorf("truncate %s: got %v, want EACCES", rel, err)
		}
	}
	e := s.waitEvent(func(e wire.Event) bool { return e.Op == "write" })
	if e.Rule == nil || e.Rule.Name != "no-write" {
		t.Errorf("event %+v", e)
	}
}

func TestARuleAppliesToTheNewPathOfARenamedDirectory(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: no-write, paths: ["WS/done/**"], operations: [write, create, delete], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{"work/sub/f": "text"})
	must(t, os.WriteFile(s.path("work/sub/f"), []byte("new"), 0o644))
	must(t, os.Mkdir(s.path("keep"), 0o755))
	open, err := os.OpenFile(s.path("work/sub/f"), os.O_WRONLY, 0)
	must(t, err)
	defer open.Close()
	if err := os.Rename(s.path("work"), s.path("done")); !errors.Is(err, unix.EACCES) {
		t.Fatalf("rename into a tree where nothing may be created: got %v, want EACCES", err)
	}
	must(t, os.Rename(s.path("work"), s.path("moved")))
	if _, err := open.WriteString("open"); err != nil {
		t.Errorf("write to a file opened before the rename: %v", err)
	}
	if got, _ := os.ReadFile(s.path("moved/sub/f")); string(got) != "open" {
		t.Errorf("moved file holds %q", got)
	}
}

func TestExchangeRacesDoNotOpenTheWrongFile(t *testing.T) {
	s := start(t, options{policy: gitPolicy})
	seedRepository(s)
	s.seed(map[string]string{"d/f": "fine"})
	must(t, os.Symlink(s.path(".git"), s.path("s")))
	must(t, os.WriteFile(s.path("f"), []byte("x"), 0o644))
	stop := make(chan struct{})
	var flip sync.WaitGroup
	flip.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, s.path("d"), unix.AT_FDCWD, s.path("s"), unix.RENAME_EXCHANGE)
			}
		}
	})
	for range 3000 {
		if f, err := os.OpenFile(s.path("d/config"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err == nil {
			f.WriteString("evil")
			f.Close()
		}
		os.Remove(s.path("d/config"))
	}
	close(stop)
	flip.Wait()
	if got, err := os.ReadFile(s.back(".git/config")); err != nil || string(got) != "original" {
		t.Errorf(".git/config holds %q, %v", got, err)
	}
}

func TestLinksInTheWorkspaceDoNotLeadTheServerOutside(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "beside", "file")
	s := start(t, options{backing: filepath.Join(base, "backing")})
	must(t, os.Mkdir(filepath.Dir(outside), 0o755))
	must(t, os.WriteFile(outside, []byte("original"), 0o644))
	// Seen from the backing the link leads to outside, seen from the mount to
	// nothing: whoever reaches outside did it through the server.
	must(t, os.Symlink("../beside/file", s.path("l")))
	must(t, unix.Lchown(s.path("l"), 0, 0))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, s.path("l"), now, unix.AT_SYMLINK_NOFOLLOW))
	if fd, err := unix.Open(s.path("l"), unix.O_RDWR, 0); err == nil {
		closeFD(fd)
		t.Error("the link was followed in the backing")
	}
	must(t, os.Rename(s.path("l"), s.path("l2")))
	must(t, os.Link(s.path("l2"), s.path("l3")))
	for _, name := range []string{"l2", "l3"} {
		fi, err := os.Lstat(s.back(name))
		if err != nil || fi.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
	// A directory of the path becomes a link in the backing behind the kernel's
	// cache: the server must refuse to go through it.
	must(t, os.MkdirAll(s.path("dir"), 0o755))
	must(t, os.WriteFile(s.path("dir/file"), nil, 0o644))
	must(t, os.RemoveAll(s.back("dir")))
	must(t, os.Symlink("../beside", s.back("dir")))
	if f, err := os.OpenFile(s.path("dir/file"), os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		f.Close()
		t.Error("opened through a link in the backing")
	}
	if err := unix.Chmod(s.path("dir/file"), 0o777); err == nil {
		t.Error("chmod went through a link in the backing")
	}
	if err := os.Remove(s.path("dir/file")); err == nil {
		t.Error("unlinked through a link in the backing")
	}
	// Nor through one that stays in the backing: the path that was judged is
	// the path that is used.
	must(t, os.Mkdir(s.path("other"), 0o755))
	must(t, os.WriteFile(s.path("other/file"), []byte("original"), 0o644))
	must(t, os.Mkdir(s.path("dir2"), 0o755))
	must(t, os.WriteFile(s.path("dir2/file"), nil, 0o644))
	dir2, err := unix.Open(s.path("dir2"), unix.O_PATH, 0)
	must(t, err)
	defer closeFD(dir2)
	must(t, os.RemoveAll(s.back("dir2")))
	must(t, os.Symlink("other", s.back("dir2")))
	if err := unix.Unlinkat(dir2, "file", 0); err == nil {
		t.Error("unlinked through a link within the backing")
	}
	if got, err := os.ReadFile(s.back("other/file")); err != nil || string(got) != "original" {
		t.Errorf("the other file holds %q, %v", got, err)
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "original" {
		t.Errorf("the outside file holds %q, %v", got, err)
	}
}
