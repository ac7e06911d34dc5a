package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func TestTheResultNamesTheEngineOfTheSandbox(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	for _, engine := range []string{"listener", "trace"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			p := newFixture(t, "true", "")
			p.write("config.yaml", fmt.Sprintf("require: [engine_%s]\n", engine), 0o644)
			r, code := p.run("--agentsh-config", "config.yaml", "--allow-dirty")
			if code != controller.ExitDone || r.Engine != engine || len(r.Degraded) > 0 {
				t.Fatalf("exit code %d, engine %q, without %q: %+v", code, r.Engine, r.Degraded, r.Error)
			}
			for _, g := range r.Guarantees {
				if held := g.Group != wire.GroupBuiltins; g.HeldBy != map[bool]string{true: "agentsh", false: "not held"}[held] {
					t.Errorf("%+v", g)
				}
			}
			first, _, _ := strings.Cut(p.read("out/audit.jsonl"), "\n")
			var e wire.Event
			if err := json.Unmarshal([]byte(first), &e); err != nil || e.Mechanism != engine {
				t.Errorf("the first event: %v, %s", err, first)
			}
			page, errs, code := p.try("", "runs", "report", "latest", "--output", "markdown")
			if code != 0 || !strings.Contains(page, "- engine: `"+engine+"`") || !strings.Contains(page, "- held by agentsh: `commands; files ") {
				t.Errorf("the report: exit code %d, %s%s", code, page, errs)
			}
		})
	}
}

// What a harness says in degraded and require reaches the supervisor of its sandbox.
func TestAHarnessSaysWhatItsSandboxMayRunWithout(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	p.above = []string{testenv.OuterProgram(t), "plain"}
	base := p.read("harness.yaml")
	lines := strings.Count(base, "\n") + 1
	r, code := p.run("--allow-dirty")
	if code != controller.ExitSandbox || !strings.Contains(r.Error.Message, "signal_rules need kill") ||
		!strings.Contains(r.Error.Hint, "degraded of the harness") {
		t.Errorf("without a word of the harness: exit code %d, %+v", code, r.Error)
	}
	p.write("harness.yaml", base+"degraded: [call_rules]\nrequire: [engine_listener]\n", 0o644)
	if r, code = p.run("--allow-dirty"); code != controller.ExitSandbox ||
		!strings.Contains(r.Error.Message, fmt.Sprintf("harness.yaml:%d:11: require engine_listener", lines+1)) {
		t.Errorf("a requirement that is not met: exit code %d, %+v", code, r.Error)
	}
	p.write("harness.yaml", base+"degraded: [call_rules]\nrequire: [engine_trace]\n", 0o644)
	r, code = p.run("--allow-dirty")
	if code != controller.ExitDone || r.Engine != "trace" || !slices.Equal(r.Degraded, []string{"call_rules"}) {
		t.Errorf("exit code %d, engine %q, without %q: %+v", code, r.Engine, r.Degraded, r.Error)
	}
	page, errs, code := p.try("", "runs", "report", "latest", "--output", "markdown")
	if code != 0 || !strings.Contains(page, "- without: `call_rules`") {
		t.Errorf("the report: exit code %d, %s%s", code, page, errs)
	}
}
