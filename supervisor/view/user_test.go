package view

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestCommandsNeverOwnTheSystem: a workspace that is a directory of the system, or holds one,
// is refused before anything in it changes its owner.
func TestCommandsNeverOwnTheSystem(t *testing.T) {
	testenv.Need(t, testenv.Root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/usr", "/etc", "/root", "/usr/bin", "/var", filepath.Dir(self)} {
		var before, after unix.Stat_t
		if err := unix.Stat(dir, &before); err != nil {
			t.Fatal(err)
		}
		if before.Uid != 0 || dir == filepath.Dir(self) {
			if of := systemIn(dir); of == "" {
				t.Errorf("%s is no directory of the system", dir)
			}
			continue
		}
		_, err := User{UID: DedicatedID, GID: DedicatedID}.AsOwner([]wire.Governed{{Backing: dir}})
		if err == nil || !strings.Contains(err.Error(), "docker run --workdir /work") {
			t.Errorf("workspace %s: %v", dir, err)
		}
		if err := unix.Stat(dir, &after); err != nil || after.Uid != before.Uid || after.Gid != before.Gid {
			t.Errorf("%s belongs to %d:%d now: %v", dir, after.Uid, after.Gid, err)
		}
	}
	for _, dir := range []string{"/work", "/usr/src/app", "/home/someone", "/root/project", "/go", "/opt", "/srv"} {
		if of := systemIn(dir); of != "" {
			t.Errorf("%s must not be a workspace because of %s", dir, of)
		}
	}
}

// TestAWorkspaceOfEverybodyStaysRoots: commands may write to it as it is.
func TestAWorkspaceOfEverybodyStaysRoots(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	got, err := User{UID: DedicatedID, GID: DedicatedID}.AsOwner([]wire.Governed{{Backing: dir}})
	if err != nil || got.UID != DedicatedID {
		t.Errorf("%+v, %v", got, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v", info, err)
	}
}

// Java, ssh and ~NAME take the home from the user database.
func TestTheUsersHomeIsThatOfTheSession(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/bash\n# 1000:x:1000\nada:x:1000:1000:Ada,,,:/home/ada:/bin/zsh\nshort:x:1000\nbob:x:10000:1000::/home/bob:/bin/sh"
	for uid, want := range map[int]string{
		1000:  strings.Replace(passwd, "/home/ada", "/home/sandbox", 1),
		0:     strings.Replace(passwd, ":/root:", ":/home/sandbox:", 1),
		10000: strings.Replace(passwd, "/home/bob", "/home/sandbox", 1),
		5:     passwd,
	} {
		if got := string(User{UID: uid}.rehome([]byte(passwd), "/home/sandbox")); got != want {
			t.Errorf("%d: %q, want %q", uid, got, want)
		}
	}
}
