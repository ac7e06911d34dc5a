package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// reload replaces the policy by text.
func (b *box) reload(t *testing.T, text string) error {
	t.Helper()
	p, err := syntax.Load(policy.Source{Name: "new.yaml", Data: []byte(text)},
		syntax.Options{Vars: b.cfg.Policy.Vars(), OutsideWorkspace: true})
	if err != nil {
		return err
	}
	_, err = b.Reload(context.Background(), p)
	return err
}

func TestAReloadAppliesToExecFilesSignalsAndVariables(t *testing.T) {
	first := strings.Replace(
		testPolicy,
		"file_rules:\n",
		"signal_rules:\n  - {name: all, signals: ['@all'], target: {type: parent}, decision: allow}\nfile_rules:\n",
		1,
	)
	b := openBox(t, first)
	if err := os.WriteFile(filepath.Join(b.workspace, "plan"), []byte("text\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	script := []string{
		"bash",
		"-c",
		`cat plan; ls /; hostname >/dev/null; trap 'echo got' USR1; command -p true; (sleep 0); /bin/bash -pc 'kill -USR1 $PPID'; echo $BOTH; /usr/bin/env -i /bin/bash -pc 'echo $BOTH'`,
	}
	_, before := b.run(t, script...)
	if !strings.HasPrefix(before, "text\n") || !strings.Contains(before, "got\npolicy\npolicy\n") {
		t.Fatalf("before: %q", before)
	}
	second := strings.NewReplacer(
		"{name: all, signals: ['@all'], target: {type: parent}, decision: allow}",
		"{name: none, signals: [USR1], target: {type: parent}, decision: deny}\n  - {name: all, signals: ['@all'], target: {type: parent}, decision: allow}",
		"command_rules:\n",
		"command_rules:\n  - {name: no-ls, commands: [ls], decision: deny}\n",
		"file_rules:\n",
		"file_rules:\n  - {name: hidden, paths: ['${WORKSPACE}/plan'], operations: ['*'], decision: deny}\n",
		"BOTH: policy",
		"BOTH: fresh",
	).Replace(first)
	if err := b.reload(t, second); err != nil {
		t.Fatal(err)
	}
	_, after := b.run(t, script...)
	if strings.Contains(after, "text\n") || strings.Contains(after, "got\n") || !strings.Contains(after, "fresh\nfresh\n") ||
		!strings.Contains(after, "ls: Permission denied") {
		t.Errorf("after: %q", after)
	}
	told := b.events(t, func(e wire.Event) bool { return e.Phase == "policy_reloaded" })
	if len(told) != 1 || !strings.Contains(told[0].Message, b.rules.policy().Digest()) ||
		!strings.Contains(told[0].Message, b.cfg.Policy.Digest()) {
		t.Errorf("events %+v", told)
	}
}

func TestWhatASessionCannotChangeIsRefusedWithItsPosition(t *testing.T) {
	b := openBox(t, testPolicy)
	cases := map[string]struct{ old, new, want string }{
		"broken file":  {"version: 1", "version: 2", "new.yaml:1:10"},
		"unknown key":  {"version: 1\n", "version: 1\nfoo: bar\n", "new.yaml:2:1"},
		"memory limit": {"command_rules:\n", "resource_limits: {pids_max: 50}\ncommand_rules:\n", "new.yaml:3:19"},
		"idle limit":   {"command_rules:\n", "resource_limits: {idle_timeout: 5m}\ncommand_rules:\n", "new.yaml:3:19"},
		"signals": {
			"file_rules:\n",
			"signal_rules:\n  - {name: s, signals: [USR1], target: {type: parent}, decision: deny}\nfile_rules:\n",
			"new.yaml:9:5",
		},
		"a hidden tree": {
			"  - {name: system",
			"  - {name: opt, paths: ['/usr/share/**'], operations: ['*'], decision: deny}\n  - {name: system",
			"/usr/share",
		},
	}
	for name, c := range cases {
		err := b.reload(t, strings.Replace(testPolicy, c.old, c.new, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.rules.policy() != b.cfg.Policy {
		t.Error("a refused policy holds")
	}
	if exit, _ := b.run(t, "kill", "1"); exit.Kind != wire.ExitDenied {
		t.Errorf("the old policy does not hold: %+v", exit)
	}
	if told := b.events(t, func(e wire.Event) bool { return e.Phase == "policy_reloaded" }); len(told) != 0 {
		t.Errorf("events %+v", told)
	}
}

// Each policy lets one of two commands run and gives it a variable: a command
// that saw a part of each would run with the other's.
func TestACommandSeesOnePolicyOrTheOther(t *testing.T) {
	version := func(allowed, denied string) string {
		return strings.NewReplacer(
			"BOTH: policy",
			"BOTH: "+allowed,
			"command_rules:\n",
			"command_rules:\n  - {name: off, commands: [sh], args_patterns: ['echo "+denied+"'], decision: deny}\n",
		).Replace(testPolicy)
	}
	texts := []string{version("one", "two"), version("two", "one")}
	b := openBox(t, texts[0])
	stop := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := b.reload(t, texts[i%2]); err != nil {
				t.Error(err)
			}
		}
	})
	ran := 0
	for i := range 60 {
		word := []string{"one", "two"}[i%2]
		exit, out := b.run(t, "sh", "-c", "echo "+word+" $BOTH")
		switch {
		case exit.Kind == wire.ExitDenied:
		case exit.Code == 0 && out == word+" "+word+"\n":
			ran++
		default:
			t.Errorf("%+v, %q", exit, out)
		}
	}
	close(stop)
	reloads.Wait()
	if ran == 0 {
		t.Error("no command ran")
	}
}

// TestAPositionIsOneOfAFile has rules that agentsh put before the policy, in no file.
func TestAPositionIsOneOfAFile(t *testing.T) {
	const own, text = "version: 1\nname: p\nextends: [p.yaml]\n", "version: 1\nname: p\ndefaults: {network: allow}\n"
	p, err := syntax.Load(policy.Source{Name: "agentsh", Data: []byte(own)},
		syntax.Options{ReadFile: func(string) ([]byte, error) { return []byte(text), nil }})
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[string]policy.Position{
		"p.yaml:3:1": groupPosition(p, policy.GroupNetwork), "p.yaml:1:1": settingPosition(p, "exec_from"),
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
