package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
)

// A user of a place without a home, or with one that cannot be written, has a state directory
// without a setting. One that XDG_STATE_HOME names must work.
func TestAPlaceWithoutAHomeHasAStateDirectory(t *testing.T) {
	testenv.Need(t, testenv.Root)
	uid := uint32(61713)
	name := func() string { return fmt.Sprintf("/var/tmp/agentsh-%d", uid) }
	for _, err := os.Lstat(name()); err == nil; _, err = os.Lstat(name()) {
		uid++
	}
	state := name()
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	dir := workDir(t)
	inside := copyProgram(t, dir)
	for _, tt := range []struct {
		env  []string
		made bool
	}{
		{nil, true},
		{[]string{"HOME=/nonexistent"}, true},
		{[]string{"HOME=/root"}, true},
		{[]string{"HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent/state"}, false},
	} {
		if err := os.RemoveAll(state); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(inside, "serve", "--stdio")
		cmd.Args[0] = "agentsh"
		cmd.Dir, cmd.Env = "/", append([]string{"PATH=/usr/bin:/bin"}, tt.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Stdin = strings.NewReader("") // a pipe
		out, _ := cmd.CombinedOutput()    // nobody speaks to it
		if _, err := os.Lstat(state); (err == nil) != tt.made || tt.made == strings.Contains(string(out), "state directory") {
			t.Errorf("%q: made %v, want %v: %s", tt.env, err == nil, tt.made, out)
		}
	}
}
