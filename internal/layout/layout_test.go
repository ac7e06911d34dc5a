package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBothProgramsFindOneStateDirectory(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		uid  int
		want State
	}{
		"a user":                      {map[string]string{"HOME": "/home/u"}, 1 << 30, "/home/u/.local/state/agentsh"},
		"a user with XDG":             {map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, 1000, "/s/agentsh"},
		"a user with relative XDG":    {map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "s"}, 1 << 30, "/home/u/.local/state/agentsh"},
		"a user without HOME":         {nil, 1000, ""},
		"a user with a relative HOME": {map[string]string{"HOME": "u"}, 1000, ""},
		"root":                        {map[string]string{"HOME": "/root"}, 0, "/var/lib/agentsh"},
		"root with XDG":               {map[string]string{"XDG_STATE_HOME": "/s"}, 0, "/s/agentsh"},
		"root with relative XDG":      {map[string]string{"XDG_STATE_HOME": "s"}, 0, "/var/lib/agentsh"},
	} {
		got, err := FindState(func(n string) string { return tt.env[n] }, tt.uid)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestReservedPaths(t *testing.T) {
	for name, want := range map[string]bool{
		EnvFile: true, GeneratedEnv: true, EnvDir: true, Workspace: true, Sandbox: true, RuntimeDir + "/settings.json": true,
		Workspace + "/bin/claude": true, EnvDir + "/tool.env": false, Workspace + "/notes.txt": false, Workspace + "/.environment": false,
	} {
		if got := Reserved(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFindingAStateDirectoryMakesNothing(t *testing.T) {
	uid := 1<<30 + os.Getpid() // of nobody
	state, err := FindState(func(n string) string { return map[string]string{"HOME": "/"}[n] }, uid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(string(state)) })
	if want := State(fmt.Sprintf("/var/tmp/agentsh-%d", uid)); state != want {
		t.Errorf("%s, not %s", state, want)
	}
	if _, err := os.Lstat(string(state)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("finding it made it: %v", err)
	}
}

func TestAContainersStateIsNotInTheHome(t *testing.T) {
	uid := 1<<30 + os.Getpid()
	t.Cleanup(func() { _ = os.RemoveAll(fmt.Sprintf("%s%d", scratchState, uid)) })
	for name, env := range map[string]map[string]string{
		"a user": {"HOME": "/home/u"}, "a user with XDG": {"HOME": "/home/u", "XDG_STATE_HOME": "/s"},
	} {
		getenv := func(n string) string { return env[n] }
		before, err := FindState(getenv, uid)
		if err != nil {
			t.Fatal(err)
		}
		made, err := ContainerState(getenv, uid)
		if err != nil || (made == before) != (env["XDG_STATE_HOME"] != "") {
			t.Errorf("%s: %s before, %s: %v", name, before, made, err)
		}
		if after, err := FindState(getenv, uid); after != before || err != nil {
			t.Errorf("%s: naming it made it: %s %v", name, after, err)
		}
		if err := made.MakeForContainer(); err != nil {
			t.Fatal(err)
		}
		if after, err := FindState(getenv, uid); after != made || err != nil {
			t.Errorf("%s: %s is made, and %s found: %v", name, made, after, err)
		}
		if err := os.RemoveAll(fmt.Sprintf("%s%d", scratchState, uid)); err != nil {
			t.Fatal(err)
		}
	}
	if root, err := ContainerState(func(string) string { return "" }, 0); root != "/var/lib/agentsh" || err != nil {
		t.Errorf("root: %s %v", root, err)
	}
	// A file of the name in a directory that others can write to means nothing.
	state := State(fmt.Sprintf("%s%d", scratchState, uid))
	mark := string(state) + "/" + containerMark
	if err := errors.Join(os.Mkdir(string(state), 0o700), os.Chmod(string(state), 0o777), os.WriteFile(mark, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	getenv := func(n string) string { return map[string]string{"HOME": "/home/u"}[n] }
	if found, err := FindState(getenv, uid); found != "/home/u/.local/state/agentsh" || err != nil {
		t.Errorf("somebody else's is taken: %s %v", found, err)
	}
	if made, err := ContainerState(getenv, uid); err == nil {
		t.Errorf("somebody else's is taken: %s", made)
	}
}

func TestAStateDirectoryOfSomebodyElseIsRefused(t *testing.T) {
	uid := 1<<30 + os.Getpid()
	state := State(fmt.Sprintf("%s%d", scratchState, uid))
	t.Cleanup(func() { _ = os.Remove(string(state)) })
	if err := state.Make(); err != nil {
		t.Fatal(err)
	}
	find := func() error {
		_, err := FindState(func(n string) string { return map[string]string{"HOME": "/"}[n] }, uid)
		return err
	}
	if err := errors.Join(state.Make(), find()); err != nil {
		t.Errorf("it is refused once it is there: %v", err)
	}
	for name, change := range map[string]func() error{
		"others may write": func() error { return os.Chmod(string(state), 0o777) },
		"of somebody else": func() error {
			if os.Geteuid() != 0 {
				return os.Chmod(string(state), 0o755) // only root can give it away
			}
			return os.Chown(string(state), 1<<16-2, -1)
		},
		"a link": func() error { return errors.Join(os.Remove(string(state)), os.Symlink(t.TempDir(), string(state))) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{state.Make(), find()} {
			if err == nil || !strings.Contains(err.Error(), "must be a directory of this user with mode 0700") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := os.RemoveAll(string(state)); err != nil {
			t.Fatal(err)
		}
		if err := state.Make(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAStateDirectoryThatCannotBeMadeSaysWhatToSet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := State(filepath.Join(file, "agentsh")).Make()
	if err == nil || !strings.Contains(err.Error(), "set XDG_STATE_HOME to a directory that you may write") {
		t.Errorf("%v", err)
	}
}
