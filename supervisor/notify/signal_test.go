package notify

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

const signalPolicy = `
version: 1
name: signals
command_rules:
- {name: all, commands: ['*'], decision: allow}
signal_rules:
- {name: gentle, signals: [SIGHUP], target: {type: children}, decision: redirect, redirect_to: SIGTERM}
- {name: parent, signals: [SIGUSR1], target: {type: parent}, decision: absorb}
- {name: noted, signals: [SIGUSR2], target: {type: children}, decision: audit}
- {name: asked, signals: [SIGINT], target: {type: children}, decision: approve}
- {name: own, signals: ['@all'], target: {type: self}, decision: allow}
- {name: below, signals: ['@all'], target: {type: descendants}, decision: allow}
- {name: outside, signals: ['@all'], target: {type: external}, decision: deny, message: not yours}
`

var signalCalls = []int{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO}

// signalling runs a shell text with the kill family notified.
func signalling(t *testing.T, text string) *session {
	t.Helper()
	p, err := syntax.Load(policy.Source{Name: "s.yaml", Data: []byte(signalPolicy)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, done: make(chan error, 1), traced: traced}
	cmd := exec.Command("/bin/bash", "-c", text)
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	s.start(Config{Rules: Rules{Evaluate: p.Evaluate}}, CommandInfo{ID: "c"}, cmd, signalCalls...)
	s.end()
	return s
}

func TestSignalsAreDecidedByWhomTheyReach(t *testing.T) {
	bin, _ := place(t)
	stranger := exec.Command("/bin/cat")
	stdin, err := stranger.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		if err := stranger.Wait(); err != nil {
			t.Errorf("the process outside got a signal: %v", err)
		}
	}()
	outside := strconv.Itoa(stranger.Process.Pid)
	send := filepath.Join(bin, "signal") + " "
	for name, c := range map[string]struct{ text, want, decision string }{
		"self":                       {send + "kill self 0", "ok\n", ""},
		"a child":                    {send + "kill child 9", "ok 9\n", ""},
		"a child, by thread":         {send + "tgkill child 9", "ok 9\n", ""},
		"a child, by old call":       {send + "tkill child 15", "ok 15\n", ""},
		"a child, queued":            {send + "rt_sigqueueinfo child 9", "ok 9\n", ""},
		"a child, queued by thread":  {send + "rt_tgsigqueueinfo child 9", "ok 9\n", ""},
		"a grandchild":               {send + "kill grandchild 9", "ok\n", ""},
		"outside":                    {send + "kill " + outside + " 9", "EPERM\n", "deny"},
		"outside, no signal":         {send + "kill " + outside + " 0", "EPERM\n", "deny"},
		"outside, by thread":         {send + "tgkill " + outside + " 9", "EPERM\n", "deny"},
		"outside, queued":            {send + "rt_sigqueueinfo " + outside + " 9", "EPERM\n", "deny"},
		"outside, by builtin":        {"kill -9 " + outside + " 2>/dev/null || echo no", "no\n", "deny"},
		"the first process":          {send + "kill 1 0", "EPERM\n", "deny"},
		"everything":                 {send + "kill -1 9", "EPERM\n", "deny"},
		"nobody":                     {send + "kill 4194303 9", "ESRCH\n", ""},
		"an empty group":             {send + "kill -4194303 9", "ESRCH\n", ""},
		"no signal there is":         {send + "kill self 99", "EINVAL\n", ""},
		"zero, by thread":            {send + "tkill 0 9", "EINVAL\n", ""},
		"the parent, pretended":      {"trap 'echo got it' USR1; " + send + "kill parent 10; true", "ok\n", "absorb"},
		"the parent, by default":     {send + "kill parent 9; true", "EPERM\n", "deny"},
		"another signal instead":     {send + "kill child 1", "ok 15\n", "redirect"},
		"logged":                     {send + "kill child 12", "ok 12\n", "audit"},
		"a question nobody answers":  {send + "kill child 2", "EPERM\n", "deny"},
		"numbers with a high half":   {send + "kill 4294967295 9", "EPERM\n", "deny"},
		"a group with a part denied": {send + "kill 0 9; true", "EPERM\n", "deny"},
	} {
		t.Run(name, func(t *testing.T) {
			s := signalling(t, c.text)
			s.printed(c.want)
			e := s.event(func(e wire.Event) bool { return e.Type == wire.EventSignal })
			if (e == nil) != (c.decision == "") || e != nil && e.Decision != c.decision {
				t.Errorf("want decision %q; the event is %+v", c.decision, e)
			}
			if f := s.event(func(e wire.Event) bool { return e.Type == wire.EventFault }); f != nil {
				t.Errorf("fault: %+v", f)
			}
		})
	}
	if s := signalling(t, send+"kill "+outside+" 9"); true {
		e := s.event(func(e wire.Event) bool { return e.Type == wire.EventSignal })
		if e == nil || e.Op != "SIGKILL" || e.Target != "external "+outside+" cat" || e.Rule.Name != "outside" || e.Message != "not yours" ||
			e.Command != "c" || e.Process.Exe != filepath.Join(bin, "signal") {
			t.Errorf("the event is %+v", e)
		}
	}
}
