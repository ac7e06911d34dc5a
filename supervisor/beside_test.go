package supervisor

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/probe"
)

// Each session is a run of these tests below the listener of another program, which
// continues what it is asked about. See test/outer/outer.c.

// besidePolicy has no rules that need a signal or a socket judged.
const besidePolicy = `version: 1
name: beside
command_rules:
  - {name: no-id, commands: [id], decision: deny, message: not here}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', '${HOME}', '${HOME}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_inject: {INJECTED: 'yes'}
`

// heldBeside are scripts of commands, and what they print.
var heldBeside = map[string]string{
	"/usr/bin/id 2>/dev/null; echo $?":                                                                            "126\n",
	"cp /usr/bin/id other; ./other 2>/dev/null; echo $?":                                                          "126\n",
	"env -i sh -c 'echo $INJECTED'":                                                                               "yes\n",
	"printf '#!/bin/sh\\necho script $1\\n' >s; chmod +x s; ./s one":                                              "script one\n",
	"sh -c 'exit 3' & wait $!; echo $?; exec env echo k":                                                          "3\nk\n",
	"/nothing/here 2>/dev/null; echo $?; /etc 2>/dev/null; echo $?":                                               "127\n126\n",
	"for i in 1 2 3 4 5 6 7 8; do (for n in 1 2 3 4 5; do /usr/bin/true || echo no; done) & done; wait; echo all": "all\n",
	"sleep 1000 & kill $!; wait $!; echo $?":                                                                      "143\n",
	"cat /proc/net/route | wc -l":                                                                                 "1\n",
	"unshare -U true 2>/dev/null; echo $?":                                                                        "1\n",
}

func checkBeside(t *testing.T, b *box) {
	t.Helper()
	for script, want := range heldBeside {
		if exit, out := b.run(t, "bash", "-c", script); !strings.HasSuffix(out, want) {
			t.Errorf("%s: %+v %q", script, exit, out)
		}
	}
	if exit, _ := b.run(t, "id"); exit.Kind != wire.ExitDenied {
		t.Errorf("a denied command: %+v", exit)
	}
}

func TestASessionBesideAnotherListener(t *testing.T) {
	modes := map[string]struct {
		exec    bool
		refused []string
	}{"plain": {true, nil}, "listener": {false, nil}}
	mode := testenv.Outer()
	if mode == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		for mode := range modes {
			t.Run(mode, func(t *testing.T) { testenv.Below(t, "TestASessionBesideAnotherListener", mode, mode) })
		}
		return
	}
	cfg, log := wholeConfig(t, besidePolicy) // the listener is tried first
	giveWorkspace(t, cfg)
	b := openConfig(t, cfg, log)
	if b.Engine() != "trace" || b.Beside() == nil || (b.Beside().cookie != 0) != modes[mode].exec {
		t.Fatalf("engine %s, beside %+v", b.Engine(), b.Beside())
	}
	begin := b.begins(t)
	if len(begin) != 1 || begin[0].Decision != "degraded" || !strings.Contains(begin[0].Hint, "listener of another supervisor") {
		t.Errorf("the session begins with %+v", begin)
	}
	checkBeside(t, b)
	t.Log("held: " + mode)
}

// A policy whose rules need calls judged that the other listener takes opens no session,
// unless the operator's setting says so. Then those calls fail.
func TestRulesAboutCallsThatAnotherListenerTakes(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		testenv.Below(t, t.Name(), "plain", "rules")
		return
	}
	const rules = besidePolicy + `signal_rules:
  - {name: no-usr1, signals: [SIGUSR1], target: {type: children}, decision: deny}
  - {name: rest, signals: ['@all'], target: {type: session}, decision: allow}
unix_socket_rules:
  - {name: one, paths: [/tmp/one], operations: ['*'], decision: allow}
`
	cfg, log := testConfig(t, rules)
	giveWorkspace(t, cfg)
	_, err := Open(context.Background(), cfg)
	for _, want := range []string{
		"the listener of another supervisor takes calls", "signal_rules need kill", "unix_socket_rules need connect", "run agentsh outside that supervisor",
		"--degraded call_rules", "degraded: [call_rules] in ", probe.Consequence(probe.CallRules),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
	cfg.Degraded = []probe.Setting{{Name: "call_rules", At: "c.yaml:1:2"}}
	b := openConfig(t, cfg, log)
	if !b.Missing().Has(probe.CallRules) || !slices.Equal(b.Beside().Refused, []string{"kill", "connect"}) {
		t.Errorf("missing %v, beside %+v", b.Missing(), b.Beside())
	}
	begin := b.begins(t)
	for _, want := range []string{"without call_rules (", "these fail for every command: kill, connect"} {
		if len(begin) != 1 || !strings.Contains(begin[0].Hint, want) {
			t.Errorf("the session begins without %q: %+v", want, begin)
		}
	}
	b.prints(t, map[string]string{
		"sleep 100 & enable -n kill; /bin/kill -USR1 $! 2>/dev/null; echo $?; /bin/kill -0 $! 2>/dev/null; echo $?": "1\n0\n",
		"perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new(q(/tmp/one)) ? q(made) : $!+0'":                    "13",
	})
	t.Log("held: rules")
}

// What another listener takes is found where a filter hides that listener, and where it takes
// a call for one signal alone: a signal that a rule denies arrives nowhere.
func TestCallsThatAnotherListenerTakesUnseen(t *testing.T) {
	mode := testenv.Outer()
	if mode == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		for _, mode := range []string{"hidden", "some"} {
			t.Run(mode, func(t *testing.T) { testenv.Below(t, "TestCallsThatAnotherListenerTakesUnseen", mode, mode) })
		}
		return
	}
	cfg, log := testConfig(t, besidePolicy+`signal_rules:
  - {name: none, signals: ['@all'], target: {type: session}, decision: deny}
`)
	giveWorkspace(t, cfg)
	s, err := Open(context.Background(), cfg)
	if err == nil {
		t.Errorf("a session opens: %s, beside %+v", s.Engine(), s.Beside())
		_ = s.Close()
	} else if !strings.Contains(err.Error(), "signal_rules need kill") {
		t.Errorf("the refusal does not name the call: %v", err)
	}
	cfg.Degraded = []probe.Setting{{Name: "call_rules", At: "c.yaml:1:2"}}
	b := openConfig(t, cfg, log)
	if exit, out := b.run(t, "bash", "-c", "sleep 100 & enable -n kill; /bin/kill -USR1 $! 2>/dev/null; echo $?"); out != "1\n" {
		t.Errorf("a denied signal: %+v %q", exit, out)
	}
	t.Log("held: " + mode)
}

// A command's own filter can stop calls for a tracer that the session has no decision on.
// They end as without one, and nothing is judged or written.
func TestCallsThatACommandItselfHasStopped(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, besidePolicy)
	cfg.Forbidden = []probe.Setting{{Name: "listener", At: "c.yaml:1:2"}}
	giveWorkspace(t, cfg)
	b := openConfig(t, cfg, log)
	b.compiled(t, "own", `
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
	static const int own[] = { SYS_getppid, SYS_openat, SYS_openat2, SYS_bind, SYS_listen, SYS_umask, SYS_fcntl };
	enum { N = sizeof own / sizeof *own };
	struct sock_filter f[2 * N + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0) };
	for (int i = 0; i < N; i++) {
		f[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own[i], 0, 1);
		f[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	}
	f[2 * N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog p = { 2 * N + 2, f };
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
	for (int i = 0; i < N; i++)
		if (syscall(own[i], -100, "/proc/version", 0, 0) != -1 || errno != ENOSYS)
			dprintf(1, "call %d: %d\n", own[i], errno);
	dprintf(1, "end\n");
}`)
	if exit, out := b.run(t, filepath.Join(cfg.Cwd, "own")); b.Engine() != "trace" || out != "end\n" {
		t.Errorf("engine %s: %+v\n%s", b.Engine(), exit, out)
	}
	if faults := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventFault }); len(faults) > 0 {
		t.Errorf("%d faults, such as %+v", len(faults), faults[0])
	}
}

// What commands try against the stop of an execve by SIGSYS. The program is denied.
func TestAttacksOnExecsThatEndWithSIGSYS(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		testenv.Below(t, t.Name(), "plain", "attacks")
		return
	}
	cfg, log := testConfig(t, besidePolicy)
	giveWorkspace(t, cfg)
	attack := testenv.Compile(t, "test/outer/attack.c", filepath.Join(cfg.Cwd, "attack"))
	b := openConfig(t, cfg, log)
	cookie := strconv.FormatUint(b.Beside().cookie, 10)
	for name, want := range map[string]string{
		"denied":             "denied\n",
		"handler":            "denied\nnot handled\n",
		"blocked":            "denied\n",
		"ignored":            "denied\n",
		"replayed":           "killed\n",
		"guessed":            "denied\n",
		"replayed-by-thread": "killed\n",
		"replayed-beside":    "killed\n",
		"thread":             "denied\n",
		"vfork":              "denied\ndenied\n",
		"forged":             "denied\nafter a forged signal\n",
		"own-allow":          "denied\n",
		"own-trace":          "denied\n",
		"own-notify":         "denied\n",
		"own-trap":           "handled\n",
		"own-mark":           "denied\nhandled\n",
		"signals":            "0 wrong, seen 0\n",
		"restored":           "-2 4242\n",
	} {
		if exit, out := b.run(t, attack, name, "/usr/bin/id", cookie); out != want {
			t.Errorf("%s: %+v\n%s instead of\n%s", name, exit, out, want)
		}
	}
	t.Log("held: attacks")
}
