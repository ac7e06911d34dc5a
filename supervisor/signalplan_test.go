package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// signalRules are what default.yaml says about signals.
const signalRules = `signal_rules:
  - {name: own-processes, signals: ['@all'], target: {type: session}, decision: allow}
  - {name: other-processes, signals: ['@all'], target: {type: external}, decision: deny}
`

// belowRules leave a process itself and what it started.
const belowRules = `signal_rules:
  - {name: itself, signals: ['@all'], target: {type: self}, decision: allow}
  - {name: started, signals: ['@all'], target: {type: descendants}, decision: allow}
`

// withSignals is testPolicy with signal rules.
func withSignals(rules string) string {
	return strings.Replace(testPolicy, "file_rules:\n", rules+"file_rules:\n", 1)
}

// compiled puts a C program into the workspace.
func (b *box) compiled(t *testing.T, name, text string) {
	t.Helper()
	testenv.Need(t, testenv.Program("gcc"))
	cmd := exec.Command("gcc", "-O1", "-D_GNU_SOURCE", "-pthread", "-x", "c", "-o", filepath.Join(b.workspace, name), "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// interrupted sends signals while a timer of 200 us interrupts whatever can be
// interrupted: its handler has no SA_RESTART.
const interrupted = `
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
static void nop(int s) { (void)s; }
int main(void) {
	struct sigaction a = { .sa_handler = nop };
	struct itimerval v = { { 0, 200 }, { 0, 200 } };
	int bad = 0, other = 0;
	sigaction(SIGALRM, &a, 0); sigaction(SIGUSR1, &a, 0);
	pid_t child = fork();
	if (child == 0) { sigset_t s; sigfillset(&s); sigprocmask(SIG_BLOCK, &s, 0); for (;;) pause(); }
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	setitimer(ITIMER_REAL, &v, 0);
	for (int i = 0; i < 30000; i++) {
		union sigval x = { 0 };
		long r = 0;
		errno = 0;
		switch (i % 6) {
		case 0: r = kill(child, 0); break;
		case 1: r = kill(0, SIGUSR1); break;
		case 2: r = raise(SIGUSR1); break;
		case 3: r = -(errno = pthread_kill(pthread_self(), SIGUSR1)); break;
		case 4: r = sigqueue(getpid(), SIGUSR1, x); break;
		case 5: r = syscall(SYS_pidfd_send_signal, pidfd, SIGUSR2, 0, 0); break;
		}
		bad += r < 0 && errno == EINTR;
		other += r < 0 && errno != EINTR;
	}
	struct itimerval off = { 0 };
	setitimer(ITIMER_REAL, &off, 0);
	int killed = kill(child, SIGKILL);
	printf("%d interrupted, %d failed, %d\n", bad, other, killed);
}
`

// TestSignalsThatNoRuleDecidesAreNeverInterrupted: the kernel delivers them, and
// a call that waits for nobody is not interrupted.
func TestSignalsThatNoRuleDecidesAreNeverInterrupted(t *testing.T) {
	b := openEither(t, asBoth(t), withSignals(signalRules), nil)
	b.compiled(t, "interrupted", interrupted)
	if _, out := b.run(t, "./interrupted"); out != "0 interrupted, 0 failed, 0\n" {
		t.Errorf("it printed %q", out)
	}
}

// owners tries what has the kernel send signals later.
const owners = `
import ctypes, errno, fcntl, os, resource, signal, socket, struct, time
def tell(name, f):
    try: print(name, f(), flush=True)
    except OSError as e: print(name, errno.errorcode[e.errno], flush=True)
def owner(pid, chosen=0, way=fcntl.F_SETOWN):
    got = []
    signal.signal(chosen or signal.SIGIO, lambda n, f: got.append(n))
    a, b = socket.socketpair()
    if way == 'ioctl': fcntl.ioctl(a, 0x8901, struct.pack('i', pid))
    elif way == 15: fcntl.fcntl(a, 15, struct.pack('ii', 1, pid))
    else: fcntl.fcntl(a, way, pid)
    if chosen: fcntl.fcntl(a, 10, chosen)
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    b.send(b'x')
    for _ in range(200):
        if got: return 'signalled'
        time.sleep(.001)
    return 'nothing'
r, w = os.pipe()
child = os.fork()
if child == 0:
    os.close(w); os.read(r, 1); os._exit(0)
libc = ctypes.CDLL(None, use_errno=True)
def pidfd():
    fd = os.pidfd_open(child)
    signal.pidfd_send_signal(fd, signal.SIGWINCH)
    return 'sent'
tell('self', lambda: owner(os.getpid()))
tell('memory', lambda: owner(os.getpid(), way=15))
tell('ioctl', lambda: owner(os.getpid(), way='ioctl'))
tell('chosen', lambda: owner(os.getpid(), chosen=signal.SIGUSR2))
tell('group', lambda: owner(-os.getpgrp()))
tell('parent', lambda: owner(os.getppid()))
tell('stranger', lambda: owner(4194303))
tell('pidfd', pidfd)
tell('init', lambda: os.kill(1, 0))
tell('init by pidfd', lambda: signal.pidfd_send_signal(os.pidfd_open(1), 0))
tell('limits', lambda: resource.prlimit(child, resource.RLIMIT_CORE, (0, 0)))
`

// TestCallsThatMakeTheKernelSignalLater works where nothing judges these signals, and
// is judged or refused where something does.
func TestCallsThatMakeTheKernelSignalLater(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	unprivileged := asBoth(t)
	for name, c := range map[string]struct{ rules, want string }{
		"nothing is judged": {signalRules, `self signalled
memory signalled
ioctl signalled
chosen signalled
group signalled
parent nothing
stranger ESRCH
pidfd sent
init EPERM
init by pidfd EPERM
limits (0, 0)
`},
		"all but self and what it started": {belowRules, `self signalled
memory EPERM
ioctl EPERM
chosen EPERM
group EPERM
parent EPERM
stranger ESRCH
pidfd ENOSYS
init EPERM
init by pidfd ENOSYS
limits EPERM
`},
	} {
		t.Run(name, func(t *testing.T) {
			b := openEither(t, unprivileged, withSignals(c.rules), nil)
			if err := os.WriteFile(filepath.Join(b.workspace, "owners.py"), []byte(owners), 0o644); err != nil {
				t.Fatal(err)
			}
			// Its parent is in its group, and ignores what it gets.
			_, out := b.run(t, "bash", "-c", "trap '' IO; python3 owners.py; true")
			if out != c.want {
				t.Errorf("it printed:\n%s", out)
			}
		})
	}
}

// TestAReloadCannotDecideOnUnnotifiedSignals and says so with the rule's place.
func TestAReloadCannotDecideOnUnnotifiedSignals(t *testing.T) {
	b := openBox(t, withSignals(signalRules))
	rule := "signal_rules:\n  - {name: no-hup, signals: [HUP], target: {type: parent}, decision: deny}\n"
	stricter := withSignals(rule + strings.TrimPrefix(signalRules, "signal_rules:\n"))
	err := b.reload(t, stricter)
	if err == nil || !strings.Contains(err.Error(), "new.yaml:9:5") || !strings.Contains(err.Error(), "rule no-hup decides on SIGHUP") ||
		!strings.Contains(err.Error(), "make a new session") {
		t.Errorf("error %v", err)
	}
	if b.rules.policy() != b.cfg.Policy {
		t.Error("a refused policy holds")
	}
	looser := "signal_rules:\n  - {name: all, signals: ['@all'], target: {type: session}, decision: allow}\n  - {name: init, signals: [0], target: {type: system}, decision: allow}\n"
	if err := b.reload(t, withSignals(looser)); err != nil {
		t.Errorf("looser: %v", err)
	}
	// What was judged from the start can be judged otherwise.
	other := openBox(t, stricter)
	if err := other.reload(t, strings.Replace(stricter, "type: parent}, decision: deny", "type: session}, decision: deny", 1)); err != nil {
		t.Fatal(err)
	}
	text := "import os, subprocess\np = subprocess.Popen(['sleep', '5'])\ntry: os.kill(p.pid, 1); print('sent')\nexcept PermissionError: print('no')\np.kill()"
	if _, out := other.run(t, "python3", "-c", text); out != "no\n" {
		t.Errorf("after the reload it printed %q", out)
	}
	if err := other.reload(t, strings.Replace(stricter, "signals: [HUP]", "signals: [INT]", 1)); err == nil ||
		!strings.Contains(err.Error(), "SIGINT") {
		t.Errorf("another signal: %v", err)
	}
}

// TestOtherSignalRulesStillApply where the filter asks about some signals only.
func TestOtherSignalRulesStillApply(t *testing.T) {
	rules := `signal_rules:
  - {name: soft, signals: [HUP], target: {type: children}, decision: redirect, redirect_to: SIGTERM}
  - {name: noted, signals: [USR2], target: {type: children}, decision: audit}
  - {name: swallowed, signals: [INT], target: {type: parent}, decision: absorb}
  - {name: sleepers, signals: [QUIT], target: {type: process, pattern: sleep}, decision: deny}
  - {name: own, signals: ['@all'], target: {type: session}, decision: allow}
`
	b := openBox(t, withSignals(rules))
	text := `
python3 - <<'X'
import os, signal, subprocess
def ends(sig):
    p = subprocess.Popen(['sleep', '60'])
    try: os.kill(p.pid, sig)
    except PermissionError:
        p.kill(); p.wait()
        return 'refused'
    return p.wait()
print(ends(signal.SIGHUP), ends(signal.SIGUSR2), ends(signal.SIGQUIT), ends(signal.SIGTERM), flush=True)
os.kill(os.getppid(), signal.SIGINT)
print('absorbed')
X
echo alive`
	if _, out := b.run(t, "bash", "-c", text); out != "-15 -12 refused -15\nabsorbed\nalive\n" {
		t.Errorf("it printed %q", out)
	}
	var told []string
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventSignal }) {
		told = append(told, fmt.Sprint(e.Op, " ", e.Decision, " ", e.Rule.Name))
	}
	if got := strings.Join(told, ", "); got != "SIGHUP redirect soft, SIGUSR2 audit noted, SIGQUIT deny sleepers, SIGINT absorb swallowed" {
		t.Errorf("events %s", got)
	}
}
