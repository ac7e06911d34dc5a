package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// confinedEnv says that this process is the one that confines itself.
const confinedEnv = "AGENTSH_TEST_CONFINED"

// The test runs once more in a process of its own: what is given up is given up
// for good.
func TestAConfinedSupervisorServesItsSession(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	if os.Getenv(confinedEnv) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), confinedEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	b := openBox(t, testPolicy)
	if err := b.Confine(); err != nil {
		t.Fatal(err)
	}
	refused := map[string]error{
		"mount":   unix.Mount("none", "/mnt", "tmpfs", 0, ""),
		"unshare": unix.Unshare(unix.CLONE_NEWNS),
		"chroot":  unix.Chroot("/"),
		"execve":  exec.Command("/bin/true").Run(),
		"setns":   unix.Setns(0, 0),
	}
	for what, err := range refused {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			var out strings.Builder
			exit, _, err := b.Exec(
				context.Background(),
				wire.ExecRequest{
					ID:   fmt.Sprint(i),
					Argv: []string{"sh", "-c", "env -i bash -c 'echo $BOTH'; echo text >file" + fmt.Sprint(i) + "; /usr/bin/kill 1 || echo no"},
				},
				wire.Streams{Stdout: &out},
			)
			if err != nil || exit.Code != 0 || out.String() != "policy\nno\n" {
				t.Errorf("%+v, %v: %q", exit, err, out.String())
			}
		})
	}
	all.Wait()
	if err := b.reload(t, strings.Replace(testPolicy, "BOTH: policy", "BOTH: fresh", 1)); err != nil {
		t.Error(err)
	}
	if err := b.reload(t, "version: 1\nname: x\napprovals: {via: command, command: [/bin/true]}\n"); err == nil ||
		!strings.Contains(err.Error(), "approvals.via: command") {
		t.Errorf("another program: %v", err)
	}
}
