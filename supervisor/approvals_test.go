package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// askPolicy has a person decide about uname, by a way that the test fills in.
func askPolicy(way string) string {
	ask := "  - {name: ask, commands: [uname], decision: approve, message: tells the machine, timeout: 5m}\n"
	return strings.Replace(testPolicy, "command_rules:\n", way+"command_rules:\n"+ask, 1)
}

// openAsked opens a session whose questions are answered by judge.
func openAsked(t *testing.T, text string, judge func(wire.Pending) bool) *box {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, text)
	cfg.Channel = true
	return openAnswered(t, cfg, log, judge)
}

// openAnswered is openAsked with a configuration of the test's own.
func openAnswered(t *testing.T, cfg Config, log string, judge func(wire.Pending) bool) *box {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	following := make(chan error, 1)
	go func() {
		following <- s.Approvals().Follow(context.Background(), "", func(list []wire.Pending) error {
			for _, p := range list {
				_ = s.Approvals().Answer(wire.ApprovalAnswer{ID: p.ID, Allow: judge(p), By: "ann"}) // its time may be over
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-following; err != nil {
			t.Errorf("follow: %v", err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
}

func TestAPersonDecidesACommandAndWhatItStarts(t *testing.T) {
	b := openAsked(
		t,
		askPolicy("approvals: {via: channel}\n"),
		func(p wire.Pending) bool { return strings.HasSuffix(strings.Join(p.Argv, " "), "uname -s") },
	)
	if exit, out := b.run(t, "uname", "-s"); exit.Code != 0 || out != "Linux\n" {
		t.Errorf("allowed: %+v, %q", exit, out)
	}
	exit, _ := b.run(t, "uname", "-r")
	if exit.Kind != wire.ExitDenied || exit.Rule == nil || exit.Rule.Name != "ask" || !strings.Contains(exit.Message, "ann did not approve") {
		t.Errorf("refused: %+v", exit)
	}
	if _, out := b.run(t, "sh", "-c", "uname -s; /usr/bin/uname -r 2>/dev/null || echo no"); out != "Linux\nno\n" {
		t.Errorf("nested: %q", out)
	}
	var words []string
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventApproval }) {
		words = append(words, e.Phase+" "+e.Decision+" "+e.By)
	}
	if got := strings.Join(words, ","); got != strings.TrimSuffix(strings.Repeat("begin  ,end allow ann,begin  ,end deny ann,", 2), ",") {
		t.Errorf("events %s", got)
	}
}

func TestWithoutAnApproverACommandIsDenied(t *testing.T) {
	for way, why := range map[string]string{
		"": "no approvals", "approvals: {via: tty}\n": "no approver is there", "approvals: {via: channel}\n": "over a channel",
	} {
		b := openBox(t, askPolicy(way))
		if exit, _ := b.run(t, "uname"); exit.Kind != wire.ExitDenied || !strings.Contains(exit.Message, why) {
			t.Errorf("%q: %+v", way, exit)
		}
	}
}

func TestAProgramOfTheOperatorAnswers(t *testing.T) {
	dir := t.TempDir()
	program, asked := filepath.Join(dir, "ask"), filepath.Join(dir, "asked")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat > \"$1\"\ngrep -q '\"argv\":\\[\"uname\",\"-s\"\\]' \"$1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := openBox(t, askPolicy("approvals: {via: command, command: ["+program+", "+asked+"]}\n"))
	if exit, out := b.run(t, "uname", "-s"); exit.Code != 0 || out != "Linux\n" {
		t.Errorf("allowed: %+v, %q", exit, out)
	}
	if exit, _ := b.run(t, "uname", "-r"); exit.Kind != wire.ExitDenied ||
		!strings.Contains(exit.Message, "program "+program+" did not approve") {
		t.Errorf("refused: %+v", exit)
	}
	if text, err := os.ReadFile(asked); err != nil || !strings.Contains(string(text), `"subject":"/usr/bin/uname"`) {
		t.Errorf("the question: %q, %v", text, err)
	}
}

func TestASessionThatEndsDeniesWhatWaits(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, askPolicy("approvals: {via: channel}\n"))
	cfg.Channel = true
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan wire.Exit, 1)
	go func() {
		exit, _, _ := s.Exec(context.Background(), wire.ExecRequest{ID: "c", Argv: []string{"uname"}}, wire.Streams{})
		ended <- exit
	}()
	ctx, cancel := context.WithCancel(context.Background())
	_ = s.Approvals().Follow(ctx, "", func(list []wire.Pending) error {
		if len(list) > 0 {
			cancel()
		}
		return nil
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if exit := <-ended; exit.Kind == wire.ExitExited && exit.Code == 0 {
		t.Errorf("%+v", exit)
	}
}

// A program that commands can change never approves, by whatever name.
func TestAProgramInTheWorkspaceDoesNotApprove(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	for _, test := range []struct {
		command  string // with the workspace as W and a directory outside as O
		approves bool
	}{{"W/ask", false}, {"O/link", false}, {"/bin/sh, W/ask", false}, {"W/../work/ask", false}, {"O/dir/later", false}, {"O/ask", true}} {
		cfg, log := testConfig(t, testPolicy)
		outside := t.TempDir()
		command := strings.NewReplacer("W", cfg.Cwd, "O", outside).Replace(test.command)
		text := askPolicy("approvals: {via: command, command: [" + command + "]}\n")
		p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(text)}, syntax.Options{Vars: cfg.Policy.Vars()})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Policy = p
		for _, name := range []string{filepath.Join(cfg.Cwd, "ask"), filepath.Join(outside, "ask")} {
			if err := os.WriteFile(name, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, target := range map[string]string{"link": filepath.Join(cfg.Cwd, "ask"), "dir": cfg.Cwd} {
			if err := os.Symlink(target, filepath.Join(outside, name)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
		exit, _, err := b.Exec(context.Background(), wire.ExecRequest{Argv: []string{"uname"}}, wire.Streams{})
		if err != nil || (exit.Kind == wire.ExitDenied) == test.approves ||
			!test.approves && !strings.Contains(exit.Message+exit.Hint, "move it out of the workspace") {
			t.Errorf("%s: %+v %v", test.command, exit, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
