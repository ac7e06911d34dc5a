package controller

import (
	"path/filepath"
	"testing"

	"agentsh/controller/harness"
	"agentsh/internal/layout"
	"agentsh/policy"
)

// The example for Claude Code passes all checks before a sandbox. Its policy
// allows the program to connect only to its model.
func TestTheClaudeExampleIsReady(t *testing.T) {
	t.Chdir("..")
	h, ps := harness.Load("examples/claude/harness.yaml", harness.Options{})
	if len(ps) > 0 || len(h.Refusals()) > 0 {
		t.Fatalf("%v %v", ps, h.Refusals())
	}
	repoDir := layout.Workspace + "/app"
	plan, err := expand(h, lookupIn([]string{"ANTHROPIC_API_KEY=sk-no-key-of-anybody"}))
	if err != nil {
		t.Fatal(err)
	}
	prog, err := newProgram(plan, "examples/claude/harness.yaml", checkout{dir: repoDir}, runIdentity{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := loadPolicy(filepath.Join("examples/claude", h.Policy.V), runRules{files: fileRules(plan, prog, repoDir)}, policyVars(repoDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkEnv(prog, p, h.Policy.V); err != nil {
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
