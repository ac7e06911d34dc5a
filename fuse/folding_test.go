package fuse

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// caseless is a filesystem without case: whatever is asked for is the file whose
// name is in lower case.
type caseless struct{ fs.LoopbackNode }

func (c *caseless) Lookup(ctx context.Context, name string, out *gofuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return c.LoopbackNode.Lookup(ctx, strings.ToLower(name), out)
}

// WrapChild makes what is found in it another one.
func (c *caseless) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if n, ok := ops.(*fs.LoopbackNode); ok {
		return &caseless{fs.LoopbackNode{RootData: n.RootData}}
	}
	return ops
}

func (c *caseless) Create(
	ctx context.Context,
	name string,
	flags, mode uint32,
	out *gofuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	return c.LoopbackNode.Create(ctx, strings.ToLower(name), flags, mode, out)
}

func (c *caseless) Unlink(ctx context.Context, name string) syscall.Errno {
	return c.LoopbackNode.Unlink(ctx, strings.ToLower(name))
}

// mountCaseless mounts a filesystem without case on dir, over files of its own.
func mountCaseless(t *testing.T, dir string) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.FUSE)
	store := t.TempDir()
	var st unix.Stat_t
	must(t, unix.Stat(store, &st))
	root := &fs.LoopbackRoot{Path: store, Dev: st.Dev}
	remembered := time.Hour // a file is looked up by the name it has, and known by others
	server, err := fs.Mount(
		dir,
		&caseless{fs.LoopbackNode{RootData: root}},
		&fs.Options{
			EntryTimeout: &remembered,
			AttrTimeout:  &remembered,
			MountOptions: gofuse.MountOptions{DirectMountStrict: true, AllowOther: true},
		},
	)
	must(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		server.Wait()
	})
}

// TestAFilesystemWithoutCaseIsFound by the names on it, also when it has none.
func TestAFilesystemWithoutCaseIsFound(t *testing.T) {
	dir := t.TempDir()
	mountCaseless(t, dir)
	for _, name := range []string{"", ".git"} {
		if name != "" {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		}
		if folds, err := Folds(dir); err != nil || !folds {
			t.Errorf("with %q: %v, %v", name, folds, err)
		}
	}
	ordinary := t.TempDir()
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(filepath.Join(ordinary, "a"), nil, 0o644) },
		func() error { return os.Link(filepath.Join(ordinary, "a"), filepath.Join(ordinary, "A")) }, // one file, two names
		func() error { return os.Mkdir(filepath.Join(ordinary, "ä1"), 0o755) },
	} {
		must(t, step())
		if folds, err := Folds(ordinary); err != nil || folds {
			t.Errorf("an ordinary directory: %v, %v", folds, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(ordinary, ".agentsh*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// TestADirectoryWithoutCaseCannotBeEntered: it lies on another filesystem
// than the rest of the backing.
func TestADirectoryWithoutCaseCannotBeEntered(t *testing.T) {
	base := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(base, "sub", "x"), 0o755))
	mountCaseless(t, filepath.Join(base, "sub"))
	must(t, os.MkdirAll(filepath.Join(base, "sub", ".git", "hooks"), 0o755))
	s := start(t, options{backing: base, policy: strings.Replace(gitPolicy, "WS/.git/hooks", "WS/**/.git/hooks", 2)})
	for _, name := range []string{"sub", "sub/.GIT/HOOKS", "sub/.git"} {
		if _, err := os.Stat(s.path(name)); err == nil {
			t.Errorf("%s is reached", name)
		}
	}
	if _, err := os.ReadDir(s.dir); err != nil {
		t.Error(err)
	}
	s.waitEvent(func(e wire.Event) bool {
		return e.Decision == "deny" && e.Path == s.path("sub") && strings.Contains(e.Message, "without case")
	})
	uniform := start(t, options{backing: base})
	if _, err := os.Stat(uniform.path("sub/.GIT")); err != nil {
		t.Errorf("where rules do not differ: %v", err)
	}
}

// TestNamesThatOnlyLookAlikeAreOtherNames: of another case, of another form of
// the same letters, with characters that are not seen.
func TestNamesThatOnlyLookAlikeAreOtherNames(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: hooks, paths: ["WS/.git/hooks/**", "WS/caf\u00e9/**"], operations: ["*"], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{".git/hooks/pre-commit": "original", "caf\u00e9/menu": "original"})
	for _, name := range []string{".GIT/hooks/pre-commit", ".git/HOOKS/pre-commit", ".git\u200c/hooks/pre-commit",
		".g\u0131t/hooks/pre-commit", "cafe\u0301/menu", "CAF\u00c9/menu"} {
		must(t, os.MkdirAll(filepath.Dir(s.path(name)), 0o755))
		must(t, os.WriteFile(s.path(name), []byte("other"), 0o644))
	}
	for _, name := range []string{".git/hooks/pre-commit", "caf\u00e9/menu"} {
		if b, err := os.ReadFile(s.back(name)); err != nil || string(b) != "original" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if err := os.WriteFile(s.path(name), nil, 0o644); err == nil {
			t.Errorf("%s is written", name)
		}
	}
}
