package notify

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
	"agentsh/supervisor/notify/tracer"
)

// engines are the ways in which calls are stopped and answered.
var engines = []struct {
	name           string
	traced, prompt bool
}{{"listener", false, false}, {"trace", true, false}, {"trace, direct", true, true}}

// judged are the calls that sessions with rules about signals stop.
var judged = []int{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO}

// withoutUSR2 denies one signal and allows everything else.
func withoutUSR2(r policy.Request) (policy.Decision, policy.Diagnostic) {
	if q, ok := r.(*policy.SignalRequest); ok && q.Signal == int(unix.SIGUSR2) {
		return policy.Decision{Effect: policy.Deny}, policy.Diagnostic{}
	}
	return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
}

// Stops, job control, terminals, waits, threads that execute, orphans and signals are
// those of the kernel, whatever stops the calls.
func TestProcessesBehaveAsTheyDoWithoutSupervision(t *testing.T) {
	bin, dir := place(t)
	program, hello := filepath.Join(bin, "processes"), filepath.Join(dir, "hello")
	// A command's own filter with SECCOMP_RET_TRACE: natively these calls fail with ENOSYS.
	decided := "0 -1 Operation not permitted\nNo such file or directory\nruns\nexited 0\n"
	ruled := "-1 Operation not permitted\n-1\n-1 -1\nkilled INT\n"
	for _, c := range []struct{ name, want string }{
		{"stops", ""}, {"infos", ""}, {"clones", ""}, {"dethread", ""}, {"vforks", ""}, {"zombies", ""}, {"orphans", ""}, {"groups", ""},
		{"seen-ends", ""}, {"threads-end", ""},
		{"ignored", ""}, {"ignored-stream", ""}, {"busy-leader", ""},
		{"orphaned-group", ""}, {"child-signals", ""}, {"restarts", ""}, {"queued", ""}, {"ends", ""}, {"storms", ""}, {"jobs", ""},
		{"hangup", ""}, {"rule", ruled}, {"own-trace", decided},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.want == "" {
				native, err := exec.Command(program, c.name, hello).CombinedOutput()
				if c.want = string(native); err != nil || c.want == "" {
					t.Fatalf("natively: %v %s", err, native)
				}
			}
			for _, e := range engines {
				if c.name == "ignored" && e.traced && runtime.GOARCH == "arm64" {
					continue // see target.IgnoredSignals
				}
				t.Run(e.name, func(t *testing.T) {
					t.Parallel()
					s := &session{t: t, done: make(chan error, 1), traced: e.traced}
					cmd := exec.Command(program, c.name, hello)
					cmd.Stdout, cmd.Stderr = &s.out, &s.out
					s.start(Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, CommandInfo{ID: "c1"}, cmd, judged...)
					s.end()
					s.printed(c.want)
				})
			}
		})
	}
}

// A signal waits until a call that stopped for a tracer has its answer: no exec and no judged
// signal ends with EINTR. Under a listener they can, before they are received.
func TestNoTracedCallEndsWithEINTR(t *testing.T) {
	bin, dir := place(t)
	for _, e := range engines {
		if !e.traced {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s := &session{t: t, done: make(chan error, 1), traced: true}
			cmd := exec.Command(filepath.Join(bin, "processes"), "interrupts", filepath.Join(dir, "hello"))
			cmd.Stdout, cmd.Stderr = &s.out, &s.out
			s.start(Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, CommandInfo{ID: "c1"}, cmd, judged...)
			s.end()
			s.printed("0 0\n")
		})
	}
}

// Threads that race to execute are traced while one of them waits in its exec for the others
// to be reaped. One processor is enough for the supervisor: to trace a thread may block.
func TestThreadsThatRaceToExecuteNeedOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	bin, dir := place(t)
	program, hello := filepath.Join(bin, "processes"), filepath.Join(dir, "hello")
	native, err := exec.Command(program, "dethread", hello).CombinedOutput()
	if err != nil {
		t.Fatalf("natively: %v %s", err, native)
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			for range 10 {
				s := &session{t: t, done: make(chan error, 1), traced: e.traced}
				cmd := exec.Command(program, "dethread", hello)
				cmd.Stdout, cmd.Stderr = &s.out, &s.out
				s.start(Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, CommandInfo{ID: "c1"}, cmd, judged...)
				s.end()
				s.printed(string(native))
			}
		})
	}
}

// Every process of a traced command dies with its supervisor, also a stopped one.
func TestNoTracedProcessOutlivesItsSupervisor(t *testing.T) {
	const inside = "AGENTSH_TEST_TRACED_IDLE"
	bin, _ := place(t)
	program := filepath.Join(bin, "processes")
	if os.Getenv(inside) != "" {
		s := &session{t: t, done: make(chan error, 1), traced: true}
		cmd := exec.Command(program, "idle", "200", "/bin/sh", "-c", "echo ready; exec sleep 1000")
		cmd.Stdout = os.Stdout
		s.start(Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: true}}, CommandInfo{ID: "c1"}, cmd, judged...)
		s.end()
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	supervisor := exec.Command(self, "-test.run=^TestNoTracedProcessOutlivesItsSupervisor$")
	supervisor.Env = append(os.Environ(), inside+"=1")
	supervisor.Stdout, supervisor.Stderr = theirs, os.Stderr
	if err := supervisor.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command said %q: %v", line, err)
	}
	if err := supervisor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = supervisor.Wait()
	if err := out.SetReadDeadline(killed.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil { // ends when no process has the pipe
		t.Errorf("processes of the command are left: %v", err)
	}
	t.Logf("the last process ended %v after the supervisor", time.Since(killed))
}

// A process that is killed while its exec is checked was denied nothing.
func TestNoProgramIsDeniedBecauseItsProcessWasKilled(t *testing.T) {
	_, dir := place(t)
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			s := &session{t: t, done: make(chan error, 1), traced: e.traced}
			var pidfd, times atomic.Int32
			kill := func(*target.Handle) (FileIdentity, error) {
				if times.Add(1) == 2 { // at the exec stop
					killAndWait(t, int(pidfd.Load()))
				}
				return FileIdentity{}, nil
			}
			s.before = func(pid int) {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					t.Fatal(err)
				}
				pidfd.Store(int32(fd))
				t.Cleanup(func() { unix.Close(fd) })
			}
			cmd := exec.Command(filepath.Join(dir, "hello"))
			cmd.Stdout, cmd.Stderr = &s.out, &s.out
			cfg := Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt, Identify: kill, Inject: []string{"MISSING=1"}}}
			s.start(cfg, CommandInfo{ID: "c1"}, cmd)
			s.end()
			s.printed("")
			if n := times.Load(); n < 2 {
				t.Errorf("the program was identified %d times, and not at its exec stop", n)
			}
			if denied := s.event(func(e wire.Event) bool { return e.Decision == "deny" }); denied != nil {
				t.Errorf("%+v", *denied)
			}
		})
	}
}

// The tracer learns of the end of a process after the kernel. Here its thread, which answers
// the call, cannot know it yet.
func TestNobodyIsDeniedWhoseEndTheTracerDoesNotKnow(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	s := &session{t: t, done: make(chan error, 1), traced: true}
	cmd := exec.Command("/bin/sh", "-c", "kill -USR1 $$")
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	var pidfd, asked atomic.Int32
	s.before = func(pid int) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		pidfd.Store(int32(fd))
		t.Cleanup(func() { unix.Close(fd) })
	}
	evaluate := func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if q, ok := r.(*policy.SignalRequest); ok && q.Signal == int(unix.SIGUSR1) { // others are of the Go runtime
			asked.Add(1)
			killAndWait(t, int(pidfd.Load()))
			panic("no process")
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}
	s.start(Config{Rules: Rules{Evaluate: evaluate, Prompt: true}}, CommandInfo{ID: "c1"}, cmd, judged...)
	s.end()
	if n := asked.Load(); n != 1 {
		t.Errorf("the signal was judged %d times", n)
	}
	if e := s.event(func(e wire.Event) bool { return e.Type == wire.EventFault }); e != nil {
		t.Errorf("%+v", *e)
	}
}

// killAndWait kills a process and returns when it is a zombie.
func killAndWait(t *testing.T, pidfd int) {
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Error(err)
	}
	ended := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for _, err := unix.Poll(ended, -1); err == unix.EINTR; {
		_, err = unix.Poll(ended, -1)
	}
}

// trace starts a command that a tracer of its own follows. Closing ended ends its loop.
func (s *session) trace(cmd *exec.Cmd, calls ...int) (ended chan struct{}) {
	s.t.Helper()
	s.prog = testenv.StartTraced(s.t, cmd, calls...)
	ended = make(chan struct{})
	s.tracer = tracer.New(tracer.Config{Ended: ended})
	s.prog.Reaped = s.tracer.Wait
	return ended
}

// runTraced runs a loop over the command that trace started.
func (s *session) runTraced(cfg Config) {
	s.t.Helper()
	cfg.Emit = s.emit
	s.loop = New(cfg)
	go func() { s.done <- s.loop.Run(s.t.Context()) }()
	if err := errors.Join(s.loop.Register(s.prog.Cmd.Process.Pid, CommandInfo{ID: "c1"}), s.prog.Begin()); err != nil {
		s.t.Fatal(err)
	}
}

// An exec that the tracer did not see before its stop is killed there, and has an event.
func TestAnExecThatNobodyJudgedIsKilledWithAnEvent(t *testing.T) {
	bin, dir := place(t)
	for _, prompt := range []bool{false, true} {
		s := &session{t: t, done: make(chan error, 1), traced: true}
		cmd := exec.Command(filepath.Join(bin, "matrix"), "at-path", dir)
		cmd.Stdout, cmd.Stderr = &s.out, &s.out
		ended := s.trace(cmd, unix.SYS_EXECVE) // and no execveat
		pid := s.prog.Cmd.Process.Pid
		s.runTraced(Config{Engine: s.tracer, Rules: Rules{Evaluate: withoutUSR2, Prompt: prompt}})
		go func() {
			s.tracer.Wait()
			close(ended)
		}()
		s.end()
		s.printed("")
		e := s.event(func(e wire.Event) bool { return e.Op == "exec_unjudged" })
		if e == nil {
			t.Fatalf("no event of the exec in %+v", s.events)
		}
		if e.Type != wire.EventExec || e.Decision != "deny" || e.Command != "c1" || e.Process.PID != pid || e.Process.StartTime == 0 ||
			e.Path != filepath.Join(dir, "hello") || e.Process.Exe != filepath.Join(bin, "matrix") {
			t.Errorf("%+v, process %+v", *e, *e.Process)
		}
	}
}

// A loop whose session has ended may still have processes. The threads that trace them
// answer calls as well, and what they note does not outlive the loop.
func TestALoopThatEndsWaitsForTheThreadsOfItsEngine(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	const runs = 8 // in one of five a loop that does not wait is seen
	for range runs {
		endEarly(t)
	}
}

// endEarly ends a loop whose command runs processes.
func endEarly(t *testing.T) {
	s := &session{t: t, done: make(chan error, 1), traced: true}
	cmd := exec.Command("/bin/bash", "-c", "(/bin/true; /bin/true); echo; while :; do /bin/true & done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := s.trace(cmd, unix.SYS_EXECVE, unix.SYS_EXECVEAT)
	s.runTraced(Config{Engine: s.tracer, Rules: Rules{Evaluate: denying(), Prompt: true}})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	close(ended)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	s.tracer.Wait()
	if n := len(s.loop.images.parents.known); n > 0 {
		t.Errorf("%d processes are noted after the end of the loop", n)
	}
}

// receives counts the calls that a tracer passes to workers.
type receives struct {
	*tracer.Engine
	calls atomic.Int32
}

func (r *receives) Receive(c *engine.Call) error {
	err := r.Engine.Receive(c)
	if err == nil {
		r.calls.Add(1)
	}
	return err
}

// A call that is refused again is answered by the thread that stopped it.
func TestCallsThatAreRefusedAgainNeedNoWorker(t *testing.T) {
	bin, _ := place(t)
	table := refusing(t, "execve", "execveat")
	cmd := exec.Command(filepath.Join(bin, "costs"), "refused", "1000")
	s := &session{t: t, done: make(chan error, 1), traced: true}
	cmd.Stderr = &s.out
	ended := s.trace(cmd, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE)
	counted := &receives{Engine: s.tracer}
	s.runTraced(Config{Engine: counted, Rules: Rules{Evaluate: withoutUSR2}, Refusals: table})
	go func() {
		s.tracer.Wait()
		close(ended)
	}()
	s.end()
	s.printed("")
	if n := counted.calls.Load(); n != 3 {
		t.Errorf("workers had %d calls, and not an exec, its check and the first refusal", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := slices.DeleteFunc(slices.Clone(s.events), func(e wire.Event) bool { return e.Type != wire.EventCall }); len(refused) != 1 {
		t.Errorf("events %+v", refused)
	}
}

// refusing has what the supervisor answers: it refuses ptrace, and decides on other calls.
func refusing(t testing.TB, calls ...string) seccomp.Table {
	t.Helper()
	plan := seccomp.Plan{
		Notified: []seccomp.Notice{{Syscalls: calls}},
		Reported: []seccomp.Refusal{{Syscalls: []string{"ptrace"}, Errno: unix.EPERM, Reason: "a test"}},
	}
	table, err := plan.Table()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// Hundreds of idle processes of a command are no obstacle for the others. Their tracer waits
// in another way than for a few: see wait.go of the tracer.
func TestProcessesRunBesideIdleOnes(t *testing.T) {
	bin, _ := place(t)
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			s := &session{t: t, done: make(chan error, 1), traced: e.traced}
			script := bin + "/spawn /bin/true 30 >&2; for i in 1 2 3 4; do (sh -c :; echo done) & p=\"$p $!\"; done; wait $p; echo all; kill -9 0"
			cmd := exec.Command(filepath.Join(bin, "processes"), "idle", "300", "/bin/bash", "-c", script)
			cmd.Stdout = &s.out
			s.start(Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, CommandInfo{ID: "c1"}, cmd, judged...)
			s.end()
			if got := strings.Count(s.out.String(), "done\n"); got != 4 || !strings.HasSuffix(s.out.String(), "all\n") {
				t.Errorf("it printed %q", &s.out)
			}
		})
	}
}
