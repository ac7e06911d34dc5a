package fuse

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// someUnlisted denies the listing of some directories only.
const someUnlisted = `
file_rules:
  - {name: unlisted, paths: ["WS/closed/**", "**/.secret"], operations: [list], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

// TestListingsAreKeptBesideDeniedOnes stops the server: what it is not asked for
// is still answered.
func TestListingsAreKeptBesideDeniedOnes(t *testing.T) {
	s := start(t, options{policy: someUnlisted})
	s.seed(map[string]string{"open/a": "", "open/.secret/b": "", "closed/c/d": ""})
	count := func(rel string) int {
		entries, err := os.ReadDir(s.path(rel))
		if errors.Is(err, unix.EACCES) {
			return -1
		}
		must(t, err)
		return len(entries)
	}
	for range 2 {
		if a, b, c := count("open"), count("open/.secret"), count("closed/c"); a != 2 || b != -1 || c != -1 {
			t.Fatalf("listings of %d, %d and %d entries", a, b, c)
		}
	}
	must(t, s.server.Process.Signal(unix.SIGSTOP))
	listed := make(chan int, 1)
	go func() { listed <- count("open") }()
	select {
	case n := <-listed:
		if n != 2 {
			t.Errorf("%d entries from what the kernel keeps", n)
		}
	case <-time.After(60 * time.Second):
		t.Error("the server is asked for a listing that the kernel has")
	}
	must(t, s.server.Process.Signal(unix.SIGCONT))
}

func TestAListingIsNotKeptWhereTheDirectoryMovesTo(t *testing.T) {
	s := start(t, options{policy: someUnlisted})
	s.seed(map[string]string{"d/sub/a": "", "closed/x": ""})
	list := func(rel string) error {
		_, err := os.ReadDir(s.path(rel))
		return err
	}
	must(t, list("d"))
	must(t, list("d/sub"))
	open, err := os.Open(s.path("d/sub"))
	must(t, err)
	defer open.Close()
	must(t, os.Rename(s.path("d"), s.path("closed/d")))
	for _, rel := range []string{"closed/d", "closed/d/sub"} {
		if err := list(rel); !errors.Is(err, unix.EACCES) {
			t.Errorf("listing of %s: %v", rel, err)
		}
	}
	if _, err := open.ReadDir(-1); !errors.Is(err, unix.EACCES) {
		t.Errorf("listing through what was open before: %v", err)
	}
}

func TestAServerAfterTheDeathOfOneServesTheSame(t *testing.T) {
	backing := t.TempDir()
	first := start(t, options{backing: backing})
	must(t, os.WriteFile(first.path("f"), []byte("kept"), 0o644))
	busy, err := os.Open(first.path("f"))
	must(t, err)
	defer busy.Close()
	must(t, first.server.Process.Kill())
	first.server.Wait()
	if err := unix.Unmount(first.dir, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount while a file is open: %v", err)
	}
	must(t, unix.Unmount(first.dir, unix.MNT_DETACH))
	if _, err := busy.Read(make([]byte, 1)); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.EIO) {
		t.Errorf("read from a dead mount: %v", err)
	}
	second := start(t, options{backing: backing})
	if got, err := os.ReadFile(second.path("f")); err != nil || string(got) != "kept" {
		t.Errorf("the next mount has %q, %v", got, err)
	}
}
