package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
)

func TestBackends(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	program := filepath.Join(t.TempDir(), "agentsh")
	build := exec.Command("go", "build", "-tags", "netgo,osusergo", "-ldflags=-linkmode external -extldflags \"-static\"",
		"-o", program, "agentsh/cmd/agentsh")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	open := func(t *testing.T) (statedir.Dir, string) {
		t.Helper()
		dir := t.TempDir()
		state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
		if err != nil {
			t.Fatal(err)
		}
		return state, dir
	}
	t.Run("local", func(t *testing.T) {
		state, _ := open(t)
		Run(t, local.New(local.Config{State: state, Agentsh: program}))
	})
	t.Run("ssh", func(t *testing.T) {
		state, dir := open(t)
		b, err := remote.Open(remote.NameSSH, testenv.SSHPlace(t, dir), remote.Config{State: state, Agentsh: program, Look: true})
		if err != nil {
			t.Fatal(err)
		}
		Run(t, b)
	})
	for name, carrier := range map[string]string{
		"exec": "exec ", "exec over streams that break": "exec timeout -s KILL 0.7 ",
	} {
		t.Run(name, func(t *testing.T) {
			state, dir := open(t)
			script := "#!/bin/sh\n" + carrier + "env -i HOME=" + dir + " XDG_STATE_HOME=" + dir + "/place /bin/sh\n"
			if err := os.WriteFile(filepath.Join(dir, "carrier"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			b, err := remote.Open(remote.NameExec, "exec:"+dir+"/carrier", remote.Config{State: state, Agentsh: program, Look: true})
			if err != nil {
				t.Fatal(err)
			}
			Run(t, b)
			if left, _ := filepath.Glob(dir + "/place/agentsh/remote/*"); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
