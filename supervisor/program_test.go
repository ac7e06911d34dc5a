package supervisor

import (
	"context"
	"os"
	"strings"
	"testing"

	"agentsh/internal/layout"
	"agentsh/internal/testenv"
)

// programPolicy lets this program run with one argument, before other rules.
var programPolicy = strings.Replace(testPolicy, "command_rules:\n", `command_rules:
  - {name: own, commands: [/usr/lib/agentsh/agentsh], args_patterns: ['^-test\.run=NONE$'], decision: allow}
  - {name: own-otherwise, commands: [/usr/lib/agentsh/agentsh], decision: deny}
`, 1)

// programBox opens a session that shows this program.
func programBox(t *testing.T, text string, user string) (*box, error) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, text)
	cfg.Program, cfg.User = true, user
	s, err := Open(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}, nil
}

func TestTheSupervisorsProgramIsShownUnderPolicy(t *testing.T) {
	b, err := programBox(t, programPolicy, DefaultOperator.User)
	if err != nil {
		t.Fatal(err)
	}
	if exit, out := b.run(t, "sh", "-c", layout.Program+" -test.run=NONE"); exit.Code != 0 || !strings.Contains(out, "PASS") {
		t.Errorf("allowed: %+v %q", exit, out)
	}
	for _, line := range []string{layout.Program + " -test.run=NONE -test.v", layout.Program,
		"cp " + layout.Program + " copy && ./copy -test.run=OTHER"} {
		if exit, out := b.run(t, "sh", "-c", line); exit.Code == 0 {
			t.Errorf("%s: %+v %q", line, exit, out)
		}
	}
	for _, line := range []string{"echo x >>" + layout.Program, "rm -f " + layout.Program, "touch /usr/lib/agentsh/x"} {
		if exit, _ := b.run(t, "sh", "-c", line); exit.Code == 0 {
			t.Errorf("%s went through", line)
		}
	}
	if _, out := b.run(t, "sh", "-c", "test -s /usr/lib/agentsh/bash_startup.sh && echo there"); out != "there\n" {
		t.Errorf("the startup script: %q", out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(self); err != nil || info.Size() == 0 {
		t.Errorf("outside: %v %v", info, err)
	}
}

func TestASessionThatCannotShowTheProgramIsRefused(t *testing.T) {
	text := strings.Replace(programPolicy, "'/usr/**'", "'/usr/bin/**'", 1)
	if _, err := programBox(t, text, DefaultOperator.User); err == nil || !strings.Contains(err.Error(), "cannot be shown") {
		t.Errorf("%v", err)
	}
}

func TestWithoutTheOptionTheProgramIsNotShown(t *testing.T) {
	b := openBox(t, testPolicy)
	if exit, out := b.run(t, "sh", "-c", "test -e "+layout.Program); exit.Code == 0 {
		t.Errorf("%+v %q", exit, out)
	}
}
