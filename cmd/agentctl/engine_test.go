package main

import (
	"encoding/json"
	"fmt"
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
			first, _, _ := strings.Cut(p.read("out/audit.jsonl"), "\n")
			var e wire.Event
			if err := json.Unmarshal([]byte(first), &e); err != nil || e.Mechanism != engine {
				t.Errorf("the first event: %v, %s", err, first)
			}
			page, errs, code := p.try("", "runs", "report", "latest", "--output", "markdown")
			if code != 0 || !strings.Contains(page, "- engine: `"+engine+"`") {
				t.Errorf("the report: exit code %d, %s%s", code, page, errs)
			}
		})
	}
}
