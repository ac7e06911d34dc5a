package notify

import (
	"os"
	"path"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/policy"
)

func TestACallIsLateWhenItsWorkerIsStuck(t *testing.T) {
	one, other := &call{}, &call{}
	computes, reads, readsOn := threadState{}, threadState{waits: true, runs: 7}, threadState{waits: true, runs: 8}
	type look struct {
		call *call
		at   threadState
	}
	repeat := func(n int, l ...look) (out []look) {
		for range n {
			out = append(out, l...)
		}
		return out
	}
	for name, c := range map[string]struct {
		looks []look
		late  bool
	}{
		"blocked for a deadline":      {repeat(checksPerDeadline+1, look{one, reads}), true},
		"blocked for less":            {repeat(checksPerDeadline, look{one, reads}), false},
		"without a processor for six": {repeat(6*checksPerDeadline, look{one, computes}), false},
		"in steps":                    {repeat(5*checksPerDeadline, look{one, reads}, look{one, readsOn}), false},
		"blocked, then on": {append(repeat(checksPerDeadline, look{one, reads}), look{one, computes}, look{one, reads}),
			false},
		"another call each time":                  {repeat(checksPerDeadline, look{one, reads}, look{other, reads}), false},
		"neither stuck nor done, for the longest": {repeat(maxDeadlines*checksPerDeadline+1, look{one, computes}), true},
	} {
		var s observation
		for _, l := range c.looks {
			s = s.next(l.call, l.at)
		}
		if s.late() != c.late {
			t.Errorf("%s: late is %v", name, s.late())
		}
	}
}

// thread runs f on a thread of its own and returns the thread's number.
func thread(f func()) int {
	tid := make(chan int)
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		f()
	}()
	return <-tid
}

func TestWhereThreadsAre(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fd := int(r.Fd()) // blocking from here on
	release := make(chan struct{})
	defer close(release)
	for name, c := range map[string]struct {
		f    func()
		want bool
	}{
		"reading": {func() { _, _ = unix.Read(fd, make([]byte, 1)) }, true},
		"computing": {func() {
			for !closed(release) {
				continue
			}
		}, false},
		"waiting for another thread": {func() { <-release }, false},
	} {
		tid := thread(c.f)
		// The thread needs time to get there; where it then is, it stays.
		last := stateOf(tid)
		for guard, same := time.Now().Add(time.Minute), 0; same < 50; last = stateOf(tid) {
			if same++; last.waits != c.want {
				same = 0
			}
			if time.Now().After(guard) {
				t.Fatalf("%s: waits is %v", name, last.waits)
			}
			runtime.Gosched()
		}
		if c.want && stateOf(tid) != last {
			t.Errorf("%s: it is not in the same wait", name)
		}
	}
	if !stateOf(1 << 30).waits {
		t.Error("a thread that cannot be seen does not wait")
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A worker that computes for longer than the deadline, as one without a processor
// seems to, denies nothing; one that is blocked in a read does.
func TestOnlyABlockedDecisionIsLate(t *testing.T) {
	_, dir := place(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() // not before: its number is read
	defer w.Close()
	fd := int(r.Fd())
	const deadline = time.Second
	on := func(f func()) Config {
		return Config{Bounds: Bounds{Deadline: deadline}, Rules: Rules{Evaluate: func(q policy.Request) (policy.Decision, policy.Diagnostic) {
			if path.Base(q.(*policy.CommandRequest).Path) == "hello" {
				f()
			}
			return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
		}}}
	}
	argv := []string{"/bin/sh", "-c", filepath.Join(dir, "hello") + " ran 2>/dev/null; :"}
	s := run(t, on(func() {
		for begin := time.Now(); time.Since(begin) < 2*deadline; {
			continue
		}
	}), argv...)
	s.printed("ran\n")
	s = begin(t, on(func() { _, _ = unix.Read(fd, make([]byte, 1)) }), CommandInfo{ID: "c"}, argv...)
	_ = s.prog.Wait()
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	s.end()
	s.printed("")
	s.fault("no decision within 1s")
}
