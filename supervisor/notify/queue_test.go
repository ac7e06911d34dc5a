package notify

import (
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
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
	s.session = &session{t: t, done: make(chan error, 1), traced: traced}
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
	cfg := Config{Bounds: Bounds{Workers: 2, Deadline: time.Hour}}
	cfg.Rules = Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if path.Base(r.(*policy.CommandRequest).Path) == "true" {
			entered <- struct{}{}
			<-release
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}
	s, _ := crowd(t, cfg, "/bin/true & read go; i=0; while [ $i -lt 40 ]; do /bin/echo ran & i=$((i+1)); done; wait")
	<-entered
	if _, err := io.WriteString(s.stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	for guard := time.Now().Add(2 * time.Minute); s.loop.waiting() < many; runtime.Gosched() {
		if time.Now().After(guard) {
			t.Fatalf("%d calls wait", s.loop.waiting())
		}
	}
	close(release)
	s.end()
	s.printed(strings.Repeat("ran\n", many))
}

func (l *Loop) waiting() int {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return len(l.pool.queue)
}

func TestCallsThatWaitAreLateWhenNoneIsBegun(t *testing.T) {
	p := &New(Config{Bounds: Bounds{Deadline: time.Hour}}).pool
	hours := func(n int) time.Time { return time.Now().Add(time.Duration(-n) * time.Hour) }
	ancient, old, fresh := &call{start: hours(2 * maxDeadlines)}, &call{start: hours(2)}, &call{start: hours(0)}
	for _, c := range []struct {
		name        string
		stuck       bool
		begun       time.Time
		queue, late []*call
	}{
		{"workers that are slow", false, hours(0), []*call{ancient, old, fresh}, nil},
		{"workers that are slower", false, hours(2), []*call{ancient, old, fresh}, nil},
		{"workers that do nothing", false, time.Time{}, []*call{ancient, old, fresh}, []*call{ancient}},
		{"workers that are stuck", true, hours(0), []*call{ancient, old, fresh}, []*call{ancient, old}},
	} {
		p.queue, p.begun = slices.Clone(c.queue), c.begun
		late := p.overdue(c.stuck)
		if !slices.Equal(late, c.late) || !slices.Equal(append(late, p.queue...), c.queue) {
			t.Errorf("%s: %d calls are late and %d wait", c.name, len(late), len(p.queue))
		}
	}
}
