package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/probe/trial"
)

// dialog is a shell of a session that runs one line after the other.
type dialog struct {
	b     *box
	in    io.WriteCloser
	out   *bufio.Reader
	end   context.CancelFunc
	ended chan wire.Exit
}

func (b *box) dialog(t *testing.T) *dialog {
	t.Helper()
	in, write := io.Pipe()
	read, out := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	d := &dialog{b: b, in: write, out: bufio.NewReader(read), end: cancel, ended: make(chan wire.Exit, 1)}
	go func() {
		script := `while read -r line; do eval "$line"; echo "end $?"; done 2>&1`
		exit, _, err := b.Exec(ctx, wire.ExecRequest{ID: "dialog", Argv: []string{"bash", "-c", script}}, wire.Streams{Stdin: in, Stdout: out})
		if err != nil {
			t.Error(err)
		}
		_ = out.Close()
		d.ended <- exit
	}()
	t.Cleanup(cancel)
	if out := d.says(t, ":"); out != "end 0\n" {
		t.Fatalf("the shell says %q", out)
	}
	return d
}

// says has the shell run a line, and returns what it prints.
func (d *dialog) says(t *testing.T, line string) string {
	t.Helper()
	if _, err := io.WriteString(d.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for {
		s, err := d.out.ReadString('\n')
		out.WriteString(s)
		if err != nil || strings.HasPrefix(s, "end ") {
			return out.String()
		}
	}
}

// Another supervisor that changes its answers while a session runs changes what works, and
// nothing that is denied: no program that is denied runs, and what must be killed is killed.
func TestAnotherListenerThatChangesItsAnswers(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		testenv.Below(t, t.Name(), "plain", "answers")
		return
	}
	cfg, log := testConfig(t, besidePolicy)
	giveWorkspace(t, cfg)
	attack := testenv.Compile(t, "test/outer/attack.c", filepath.Join(cfg.Cwd, "attack"))
	b := openConfig(t, cfg, log)
	replay := fmt.Sprintf("%s replayed /usr/bin/id %d", attack, b.Beside().cookie)
	d := b.dialog(t)
	for _, step := range []struct {
		signal   unix.Signal
		allowed  string // what a program that is allowed gives
		replayed string // what becomes of an exec that nobody permitted
	}{
		{signal: unix.SIGUSR2, allowed: "end 0\n", replayed: "killed\nend 0\n"},
		{signal: unix.SIGQUIT, allowed: "end 0\n", replayed: "killed\nend 0\n"},
		{signal: unix.SIGUSR1, allowed: "Operation not permitted\nend 126\n"},
		{signal: unix.SIGUSR2, allowed: "end 0\n", replayed: "killed\nend 0\n"},
		{signal: unix.SIGHUP, allowed: "end 137\n"},
		{signal: unix.SIGVTALRM, allowed: "end 0\n", replayed: "killed\nend 0\n"},
		{signal: unix.SIGTERM, allowed: "Function not implemented\nend 126\n"},
	} {
		testenv.Answers(t, step.signal)
		if out := d.says(t, "/usr/bin/true"); !strings.HasSuffix(out, step.allowed) {
			t.Errorf("%v: a program: %q", step.signal, out)
		}
		if out := d.says(t, "/usr/bin/id"); strings.Contains(out, "uid=") || !strings.HasSuffix(out, "Permission denied\nend 126\n") {
			t.Errorf("%v: a denied program: %q", step.signal, out)
		}
		if step.replayed == "" {
			continue
		}
		if out := d.says(t, replay); out != step.replayed {
			t.Errorf("%v: an exec that nobody permitted: %q", step.signal, out)
		}
	}
	d.end()
	if exit := <-d.ended; exit.Kind != wire.ExitSignaled {
		t.Errorf("the shell ended by %+v", exit)
	}
	t.Log("held: answers")
}

// Another supervisor that never answers holds the programs that ask it, and nothing else: commands
// can be ended, and the session can be closed.
func TestAnotherListenerThatNeverAnswers(t *testing.T) {
	testNeverAnswers(t, "silent")
}

// Before Linux 6.9 no process descriptor signals a group, and kill(2) has no answer.
func TestAnotherListenerThatNeverAnswersOnAnOlderKernel(t *testing.T) {
	const older = "silent on an older kernel"
	if testenv.Outer() == older || os.Getenv(limitedEnv) == older {
		testNeverAnswers(t, older)
		return
	}
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := testenv.Without(t, []string{testenv.WithoutGroupFDs}, self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=6m")
	cmd.Env = append(os.Environ(), limitedEnv+"="+older)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func testNeverAnswers(t *testing.T, name string) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		testenv.Below(t, t.Name(), "plain", name)
		return
	}
	cfg, log := testConfig(t, besidePolicy)
	giveWorkspace(t, cfg)
	b := openConfig(t, cfg, log)
	waiting := b.dialog(t)
	testenv.Answers(t, unix.SIGALRM)
	if out := waiting.says(t, "/usr/bin/id"); strings.Contains(out, "uid=") {
		t.Errorf("calls that are answered without being made: %q", out)
	}
	if exit, out := b.run(t, "true"); exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "answered by another supervisor") {
		t.Errorf("a command whose execve is answered without being made: %+v %s", exit, out)
	}
	waiting.end()
	<-waiting.ended
	testenv.Answers(t, unix.SIGUSR2)
	waiting = b.dialog(t)
	testenv.Answers(t, unix.SIGPWR)
	began := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _, err := b.Exec(ctx, wire.ExecRequest{ID: "begins", Argv: []string{"true"}}, wire.Streams{})
		began <- err
	}()
	if _, err := io.WriteString(waiting.in, "echo next; /usr/bin/true\n"); err != nil {
		t.Fatal(err)
	}
	if out, err := waiting.out.ReadString('\n'); out != "next\n" {
		t.Fatalf("%q, %v", out, err)
	}
	waiting.end()
	cancel()
	if exit := <-waiting.ended; exit.Kind != wire.ExitSignaled {
		t.Errorf("a shell whose program waits: %+v", exit)
	}
	if err := <-began; !errors.Is(err, context.Canceled) {
		t.Errorf("a command that cannot begin: %v", err)
	}
	t.Log("held: " + name)
}

// Another supervisor that never answers a call keeps a session from opening. The error names
// the call and what to change, and comes after seconds. So does that of a trial for degraded.
func TestAnotherListenerThatNeverAnswersATrial(t *testing.T) {
	tried := map[string]func(*testing.T) error{
		"some":  openSilent,
		"plain": func(*testing.T) error { return probe.Try("landlock_scopes") },
	}
	try := tried[testenv.Outer()]
	if try == nil {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		if trial.LandlockABI() < trial.LandlockScopes {
			delete(tried, "plain") // that trial needs no signal here
		}
		for mode := range tried {
			t.Run(mode, func(t *testing.T) {
				t.Parallel() // they wait
				testenv.Below(t, "TestAnotherListenerThatNeverAnswersATrial", mode, mode)
			})
		}
		return
	}
	testenv.Answers(t, unix.SIGVTALRM)
	err := try(t)
	for _, want := range []string{
		"the listener of another supervisor does not answer kill for 5s",
		"to change: run agentsh outside that supervisor, or have its filter leave kill out",
	} {
		if !errors.Is(err, probe.ErrSilent) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	testenv.Answers(t, unix.SIGUSR2)
	if err := try(t); err != nil {
		t.Errorf("the listener answers again: %v", err)
	}
	t.Log("held: " + testenv.Outer())
}

// openSilent opens a session, and closes it.
func openSilent(t *testing.T) error {
	cfg, _ := testConfig(t, besidePolicy+`signal_rules:
  - {name: all, signals: ['@all'], target: {type: session}, decision: deny}
`)
	giveWorkspace(t, cfg)
	cfg.Degraded = []probe.Setting{{Name: probe.CallRules, At: "c.yaml:1:2"}}
	s, err := Open(context.Background(), cfg)
	if err == nil {
		return s.Close()
	}
	if strings.Contains(err.Error(), "--degraded") {
		t.Errorf("a fallback that does not help: %v", err)
	}
	return err
}

// The supervisor executes itself: as the init, and as other processes. Another supervisor that never
// answers such an execve keeps a session from opening, and the error names the call after seconds.
func TestAnotherListenerThatNeverAnswersAnExec(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		for name, env := range map[string][]string{"root": nil, "user": {"OUTER_UID=60600", "HOME=/nonexistent"}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they wait
				testenv.Below(t, "TestAnotherListenerThatNeverAnswersAnExec", "plain", name, env...)
			})
		}
		return
	}
	open := func() error {
		cfg, _ := testConfig(t, besidePolicy)
		if os.Geteuid() == 0 {
			giveWorkspace(t, cfg)
		} else { // who may not open /dev/fuse here
			cfg.Degraded = []probe.Setting{{Name: "file_server", At: "c.yaml:1:2"}}
		}
		s, err := Open(t.Context(), cfg)
		if err == nil {
			return s.Close()
		}
		return err
	}
	if err := open(); err != nil { // the C library of this test asks nscd once, by connect
		t.Fatal(err)
	}
	testenv.Answers(t, unix.SIGPWR)
	err := open()
	for _, want := range []string{
		"the listener of another supervisor does not answer execve for 5s",
		"to change: run agentsh outside that supervisor, or have its filter leave execve out",
	} {
		if !errors.Is(err, probe.ErrSilent) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	testenv.Answers(t, unix.SIGUSR2)
	if err := open(); err != nil {
		t.Errorf("the listener answers again: %v", err)
	}
	t.Log("held: " + testenv.Outer())
}
