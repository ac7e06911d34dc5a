package notify

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// An orphan's ancestors are gone, so it is judged as the shallowest and as the
// deepest it can be.
func TestAnOrphanIsJudgedAtBothEndsOfItsCommand(t *testing.T) {
	dir := t.TempDir()
	for _, fifo := range []string{"go", "done"} {
		if err := unix.Mkfifo(filepath.Join(dir, fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var requests []policy.CommandRequest
	s := &session{t: t, done: make(chan error, 1), traced: traced}
	cmd := exec.Command(
		"/bin/bash",
		"-c",
		"/usr/bin/env /bin/sh -c /bin/true; ( ( read x <go; exec /bin/echo orphan >done ) & ); echo >go; read x <done; echo $x",
	)
	cmd.Dir, cmd.Stdout = dir, &s.out
	s.before = func(pid int) {
		mark := unix.Rlimit{Cur: 1 << 40, Max: 1 << 40}
		if err := unix.Prlimit(pid, seccomp.TagLimit, &mark, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.start(Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if q := r.(*policy.CommandRequest); path.Base(q.Path) == "echo" {
			mu.Lock()
			defer mu.Unlock()
			requests = append(requests, *q)
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}, CommandInfo{ID: "c"}, cmd)
	s.end()
	s.printed("orphan\n")
	if len(requests) != 2 || requests[0].Depth != 1 || len(requests[0].Ancestors) != 1 || requests[1].Depth != 4 ||
		!slices.Contains(requests[1].Ancestors, "/usr/bin/env") || requests[0].Parent != "/usr/bin/bash" {
		t.Errorf("judged as %+v", requests)
	}
	s.loop.Forget("c")
	if len(s.loop.images.marks) != 0 {
		t.Error("the command was not forgotten")
	}
}

func TestDeadProcessesAreForgotten(t *testing.T) {
	m := newImages()
	self, err := target.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	m.register(self, CommandInfo{ID: "self"})
	img := m.table[self.Process]
	for i := range 3 * firstLimit {
		// Start times of the far future: no such process.
		if err := m.executed(target.Process{PID: 1 + i, Start: 1 << 62}, &image{command: img.command, path: "/bin/x"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.table) > firstLimit+1 || m.table[self.Process] != img {
		t.Errorf("%d entries are left, own %v", len(m.table), m.table[self.Process])
	}
}

func TestAncestorsAreListedOnceAndBounded(t *testing.T) {
	img := &image{command: &command{}, depth: -1}
	var err error
	for range 200 { // a program that executes itself
		if img, err = img.next("/bin/sh"); err != nil {
			t.Fatal(err)
		}
	}
	if img.depth != 199 || !slices.Equal(img.ancestors, []string{"/bin/sh"}) {
		t.Errorf("depth %d, ancestors %q", img.depth, img.ancestors)
	}
	for i := 0; err == nil && i < 200; i++ {
		img, err = img.next(fmt.Sprint("/bin/", i))
	}
	if err == nil {
		t.Errorf("%d ancestors are kept", len(img.ancestors))
	}
}
