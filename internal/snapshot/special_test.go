package snapshot

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
)

// mark gives a file the attribute user.mark, which the filesystem of the tests
// must have.
func mark(t *testing.T, name, value string) {
	t.Helper()
	testenv.Need(t, testenv.That("user.* attributes in the directory of temporary files", func() error {
		return unix.Setxattr(name, "user.mark", []byte(value), 0)
	}))
}

// TestARollbackRestoresExtendedAttributes of files and directories: those that
// were changed, removed and added, also on files that may not be written to.
func TestARollbackRestoresExtendedAttributes(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	at := func(name string) string { return filepath.Join(work, name) }
	for _, name := range []string{"changed", "removed", "added", "rewritten", "fixed"} {
		must(t, os.WriteFile(at(name), []byte(name), 0o644))
	}
	must(t, os.Mkdir(at("dir"), 0o755))
	for _, name := range []string{"changed", "removed", "rewritten", "fixed", "dir"} {
		mark(t, at(name), "old\x00")
	}
	must(t, os.Chmod(at("fixed"), 0o444))
	one, err := c.Create("", free)
	must(t, err)
	for _, name := range []string{"changed", "dir", "fixed"} {
		must(t, unix.Setxattr(at(name), "user.mark", []byte("new"), 0))
	}
	must(t, unix.Removexattr(at("removed"), "user.mark"))
	must(t, unix.Setxattr(at("added"), "user.other", nil, 0))
	must(t, os.WriteFile(at("rewritten"), []byte("x"), 0o644))
	diff, err := c.Diff(one.ID, "")
	must(t, err)
	var changed []string
	for _, d := range diff {
		changed = append(changed, string(d.Kind)+" "+string(d.Path))
	}
	if want := []string{"modified added", "modified changed", "modified dir", "modified fixed", "modified removed",
		"modified rewritten"}; !slices.Equal(
		changed,
		want,
	) {
		t.Errorf("diff %q", changed)
	}
	if _, err := c.Rollback(one.ID, free); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"changed", "removed", "rewritten", "fixed", "dir"} {
		buf := make([]byte, 16)
		if n, err := unix.Getxattr(at(name), "user.mark", buf); err != nil || string(buf[:n]) != "old\x00" {
			t.Errorf("%s: %q, %v", name, buf[:max(n, 0)], err)
		}
	}
	if n, err := unix.Listxattr(at("added"), nil); err != nil || n != 0 {
		t.Errorf("added: %d bytes of attributes, %v", n, err)
	}
	if info, err := os.Stat(at("fixed")); err != nil || info.Mode() != 0o444 {
		t.Errorf("fixed: %v, %v", info, err)
	}
	if diff, err := c.Diff(one.ID, ""); err != nil || len(diff) > 0 {
		t.Errorf("afterwards %v, %v", diff, err)
	}
}

// TestARollbackRestoresFIFOs with their attributes, and names what it cannot make.
func TestARollbackRestoresFIFOs(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	at := func(name string) string { return filepath.Join(work, name) }
	for _, name := range []string{"gone", "chmodded", "replaced", "stays"} {
		must(t, unix.Mkfifo(at(name), 0o640))
	}
	listener, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer listener.Close()
	before := picture(t, work)
	one, err := c.Create("", free)
	must(t, err)
	if !slices.Equal(one.LeftOut, []string{"socket"}) {
		t.Errorf("left out %q", one.LeftOut)
	}
	must(t, os.Remove(at("gone")))
	must(t, os.Chmod(at("chmodded"), 0o600))
	must(t, os.Remove(at("replaced")))
	must(t, os.WriteFile(at("replaced"), nil, 0o644))
	must(t, unix.Mkfifo(at("new"), 0o644))
	if _, err := c.Rollback(one.ID, free); err != nil {
		t.Fatal(err)
	}
	if after := picture(t, work); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	must(t, listener.Close()) // removes the socket
	done, err := c.Rollback(one.ID, free)
	if err != nil || len(done) > 0 {
		t.Errorf("without the socket: %v, %v", done, err)
	}
}

// TestAnOldCheckpointLeavesAttributesAndFIFOsAlone: it does not know them.
func TestAnOldCheckpointLeavesAttributesAndFIFOsAlone(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	at := func(name string) string { return filepath.Join(work, name) }
	must(t, os.WriteFile(at("file"), []byte("text"), 0o644))
	must(t, unix.Mkfifo(at("pipe"), 0o640))
	one, err := c.Create("", free)
	must(t, err)
	_, l, err := c.read(one.ID, true)
	must(t, err)
	one.Xattrs = false
	for i := range l.entries {
		if l.entries[i].Type == beneath.TypeFIFO {
			l.entries[i].Type = beneath.TypeOther
		}
	}
	must(t, os.Remove(filepath.Join(c.dir, one.ID+manifestEnd)))
	must(t, c.write(one, l))
	mark(t, at("file"), "x")
	done, err := c.Rollback(one.ID, free)
	if err != nil || len(done) > 0 {
		t.Errorf("%v, %v", done, err)
	}
	if _, err := unix.Getxattr(at("file"), "user.mark", make([]byte, 8)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(at("pipe")); err != nil {
		t.Error(err)
	}
}
