package notify

import (
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentsh/policy"
)

// crowded is a session whose command reads from stdin.
type crowded struct {
	*session
	stdin io.Writer
}

// crowd begins a shell script that can tell of itself through descriptor 4.
func crowd(t *testing.T, cfg Config, script string) (s crowded, told *os.File) {
	t.Helper()
	s.session = &session{t: t, done: make(chan error, 1)}
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout = &s.out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	told, telling, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { told.Close() })
	cmd.ExtraFiles = []*os.File{telling} // 4, after the socket of the filter
	s.start(cfg, CommandInfo{ID: "c"}, cmd)
	telling.Close()
	s.stdin = stdin
	return s, told
}

// More execs at once than there are workers wait for their turn: being many is
// no reason to be denied.
func TestMoreExecsThanWorkersAreAllowed(t *testing.T) {
	const many = 40
	entered, release := make(chan struct{}, 1), make(chan struct{})
	cfg := Config{Workers: 2, Deadline: time.Hour, Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if path.Base(r.(*policy.CommandRequest).Path) == "true" {
			entered <- struct{}{}
			<-release
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}
	s, _ := crowd(t, cfg, "/bin/true & read go; i=0; while [ $i -lt 40 ]; do /bin/echo ran & i=$((i+1)); done; wait")
	<-entered
	if _, err := io.WriteString(s.stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	for guard := time.Now().Add(time.Minute); s.loop.waiting() < many; runtime.Gosched() {
		if time.Now().After(guard) {
			t.Fatalf("%d calls wait", s.loop.waiting())
		}
	}
	close(release)
	s.end()
	s.printed(strings.Repeat("ran\n", many))
}

func (l *Loop) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

func TestCallsThatWaitAreLateWhenNoneIsBegun(t *testing.T) {
	l := New(Config{Deadline: time.Hour})
	old, fresh := &call{start: time.Now().Add(-2 * time.Hour)}, &call{start: time.Now()}
	l.queue, l.begun = []*call{old, fresh}, time.Now()
	if _, late := l.overdue(); len(late) != 0 {
		t.Errorf("late although others are begun: %v", late)
	}
	l.begun = time.Time{}
	if _, late := l.overdue(); len(late) != 1 || late[0] != old || len(l.queue) != 1 || l.queue[0] != fresh {
		t.Errorf("late: %v, still waiting: %v", late, l.queue)
	}
}
