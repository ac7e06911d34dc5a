package notify

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/policy"
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
	ruled := "-1 Operation not permitted\n-1\n-1 -1\nkilled INT\n"
	for _, c := range []struct{ name, want string }{
		{"stops", ""}, {"infos", ""}, {"clones", ""}, {"dethread", ""}, {"vforks", ""}, {"zombies", ""}, {"orphans", ""}, {"groups", ""},
		{"orphaned-group", ""}, {"child-signals", ""}, {"restarts", ""}, {"queued", ""}, {"ends", ""}, {"storms", ""}, {"jobs", ""},
		{"hangup", ""}, {"rule", ruled},
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
