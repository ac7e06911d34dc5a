package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/probe"
)

// A supervisor above may forbid every engine: filters, ptrace, namespaces. Then only the
// operator's setting opens a session, which says what it does not hold.
func TestASessionWithoutAnEngine(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.Landlock)
		for _, mode := range []string{"whole", "older"} { // OpenShell 0.1, and before
			testenv.Below(t, t.Name(), mode, "unjudged", "OUTER_UID=60600", "HOME=/nonexistent")
		}
		return
	}
	cfg, log := testConfig(t, strings.NewReplacer(", /tmp, '/tmp/**'", "", "INJECTED:", "BASH_ENV: /usr/lib/agentsh/bash_startup.sh, INJECTED:").Replace(besidePolicy))
	_, err := Open(context.Background(), cfg)
	for _, want := range []string{"degraded: [nested_commands] in ", "--degraded nested_commands", probe.Consequence(probe.NestedCommands)} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
	cfg.Degraded = []probe.Setting{{Name: "nested_commands", At: "c.yaml:1:2"}}
	required := cfg
	required.Require = []probe.Setting{{Name: "exec_verify", At: "c.yaml:2:2"}}
	if _, err := Open(context.Background(), required); err == nil || !strings.HasPrefix(err.Error(), "c.yaml:2:2: require exec_verify") {
		t.Errorf("require and degraded: %v", err)
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	if err := b.Confine(); err != nil {
		t.Error(err)
	}
	if b.Engine() != NoEngine || !slices.Equal(probe.Shortest(b.Missing().Names()), []string{"nested_commands"}) {
		t.Errorf("engine %s, missing %v", b.Engine(), b.Missing().Names())
	}
	begin := b.begins(t)
	for _, want := range []string{"without nested_commands (", "are advisory"} {
		if len(begin) != 1 || begin[0].Mechanism != NoEngine || begin[0].Decision != "degraded" || !strings.Contains(begin[0].Hint, want) {
			t.Errorf("the first event does not say %q: %+v", want, begin)
		}
	}
	if exit, _ := b.run(t, "id"); exit.Kind != wire.ExitDenied {
		t.Errorf("a denied command: %+v", exit)
	}
	denied := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventCommand && e.Decision == "deny" })
	if len(denied) != 1 || denied[0].Rule == nil {
		t.Errorf("events of the denial: %+v", denied)
	}
	for script, want := range map[string]string{
		"echo $INJECTED; sh -c 'echo $INJECTED'": "yes\nyes\n",
		"type -t kill":                           "function\n", // BASH_ENV is read
		"/usr/bin/id >/dev/null && echo advice":  "advice\n",
		"echo x >file && cat file":               "x\n",
		"{ : <" + filepath.Dir(b.workspace) + "/audit.jsonl; } 2>/dev/null; echo $?": "1\n",
		"{ : >/tmp/../var/tmp/agentsh-test; } 2>/dev/null; echo $?":                  "1\n",
		"/bin/kill -0 " + strconv.Itoa(os.Getpid()) + " 2>/dev/null; echo $?":        "1\n",
		"/bin/kill -STOP $PPID && echo stopped the init":                             "stopped the init\n",
	} {
		if exit, out := b.run(t, "bash", "-c", script); exit.Kind != wire.ExitExited || out != want {
			t.Errorf("%s: %+v %q", script, exit, out)
		}
	}
	exit, left := b.run(t, "bash", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!")
	if exit.Code != 0 {
		t.Errorf("%+v %s", exit, left)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(left)); err == nil {
		t.Errorf("process %s outlives its session", left)
	}
	t.Log("held: unjudged")
}
