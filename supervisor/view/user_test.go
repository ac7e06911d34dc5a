package view

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// TestAWorkspaceOfRootIsGivenToTheCommands: in a container without a file server, what
// root owns in the workspace becomes the commands' own, and nothing outside does.
func TestAWorkspaceOfRootIsGivenToTheCommands(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir, user := t.TempDir(), User{UID: 4001, GID: 4002}
	outside := filepath.Join(dir, "outside")
	top := filepath.Join(dir, "top")
	for _, name := range []string{top, top + "/sub"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{outside, top + "/file", top + "/sub/file", top + "/other"} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Symlink(outside, top+"/link"), os.Symlink("..", top+"/sub/up"), os.Link(outside, top+"/sub/hard"), os.Chown(top+"/other", 4003, 4003),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := beneath.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Stat(top, &st); err != nil {
		t.Fatal(err)
	}
	if err := user.take(beneath.Entry{FD: int(root.Fd()), Stat: st}, st.Dev); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{
		top: 4001, top + "/sub": 4001, top + "/file": 4001, top + "/sub/file": 4001, top + "/link": 4001, top + "/sub/up": 4001,
		top + "/other": 4003, outside: 0, top + "/sub/hard": 0, dir: 0,
	} {
		if err := unix.Lstat(name, &st); err != nil || st.Uid != want {
			t.Errorf("%s: %v, owner %d, want %d", name, err, st.Uid, want)
		}
	}
}

// TestCommandsRunAsTheOwnerOfTheWorkspace: of a workspace that root does not own.
func TestCommandsRunAsTheOwnerOfTheWorkspace(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for _, tt := range []struct{ uid, gid, wantGID int }{{4001, 4002, 4002}, {4001, 0, DedicatedID}} {
		dir := t.TempDir()
		if err := os.Chown(dir, tt.uid, tt.gid); err != nil {
			t.Fatal(err)
		}
		got, err := User{UID: DedicatedID, GID: DedicatedID}.AsOwner([]wire.Governed{{Backing: dir}})
		if err != nil || got.UID != tt.uid || got.GID != tt.wantGID {
			t.Errorf("owner %d:%d: %v, commands run as %d:%d", tt.uid, tt.gid, err, got.UID, got.GID)
		}
	}
}
