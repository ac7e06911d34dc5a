package netns_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/supervisor/netns"
)

// Any user of the machine may bind any name, and leave it behind.
func TestASocketThatSomebodyBoundIsNoReasonToRefuse(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"loop": "loop", "own": "/proc/self/fd", "real": "."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"directory", "exchanged", "long"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	through := fmt.Sprintf("/proc/self/fd/%d/", at.Fd())
	for _, name := range []string{
		dir + "/plain", dir + "/real/linked", dir + "/directory/gone", dir + "/exchanged/loop", through + "through",
		fmt.Sprintf("%s/own/%d/link", dir, at.Fd()), dir + "/new\nline",
	} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	// Now the directories of two are a file and a loop, as ENOTDIR and ELOOP.
	for name, how := range map[string]func(string) error{
		"directory": func(n string) error { return os.WriteFile(n, nil, 0o600) },
		"exchanged": func(n string) error { return os.Symlink("exchanged", n) },
	} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := how(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	names, err := netns.UnixSockets()
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, dir) && !strings.HasPrefix(n, "/proc") })
	if want := []string{dir + "/linked", dir + "/plain"}; !slices.Equal(names, want) {
		t.Errorf("found %q, not %q", names, want)
	}
}
