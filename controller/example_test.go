package controller

import (
	"path/filepath"
	"testing"

	"agentsh/controller/harness"
	"agentsh/internal/layout"
	"agentsh/policy"
)

// The example for Claude Code passes every check before a sandbox, and its policy
// lets the program reach its model and nothing else.
func TestTheClaudeExampleIsReady(t *testing.T) {
	t.Chdir("..")
	h, ps := harness.Load("examples/claude/harness.yaml", harness.Options{})
	if len(ps) > 0 || len(h.Refusals()) > 0 {
		t.Fatalf("%v %v", ps, h.Refusals())
	}
	r := &run{harness: h, repoDir: layout.Workspace + "/app", lookup: lookupIn([]string{"ANTHROPIC_API_KEY=sk-no-key-of-anybody"})}
	r.result.Runtime = h.Runtime.V
	if err := r.expand(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.checkRuntime(); err != nil {
		t.Fatal(err)
	}
	p, err := loadPolicy(filepath.Join("examples/claude", h.Policy.V), ownRules{files: r.guarded()}, policyVars(r.repoDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.checkEnv(p); err != nil {
		t.Error(err)
	}
	for host, permitted := range map[string]bool{"api.anthropic.com": true, "evil.example": false, "api.anthropic.com.evil.example": false} {
		if d, why := p.Evaluate(&policy.NetworkRequest{Domain: host, Port: 443, Protocol: "tcp"}); d.Permits() != permitted {
			t.Errorf("%s: %+v", host, why)
		}
	}
	if d, why := p.Evaluate(&policy.FileRequest{Path: h.Command[0].V, Op: policy.OpExecute}); !d.Permits() {
		t.Errorf("%s: %+v", h.Command[0].V, why)
	}
}
