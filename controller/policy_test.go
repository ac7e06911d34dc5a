package controller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/harness"
	"agentsh/internal/layout"
	"agentsh/policy"
)

// claudeRun returns a run of Claude Code with a policy that allows everything,
// and the file of the policy.
func claudeRun(t *testing.T, more string) (plan, program, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.md": "x", "p.yaml": "version: 1\nname: p\nfile_rules: [{name: all, paths: ['/**'], operations: ['*'], decision: allow}]\n" + more,
		"h.yaml": "agent: a.md\nrole: r\npolicy: p.yaml\nreadonly_repo: true\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, ps := harness.Load(filepath.Join(dir, "h.yaml"), harness.Options{})
	if ps.HasErrors() {
		t.Fatal(ps)
	}
	p, err := expand(h, lookupIn(nil))
	if err != nil {
		t.Fatal(err)
	}
	prog, err := newProgram(p, "h.yaml", checkout{dir: testRepoDir}, runIdentity{})
	if err != nil {
		t.Fatal(err)
	}
	return p, prog, filepath.Join(dir, "p.yaml")
}

const testRepoDir = layout.Workspace + "/app"

// The rules of a run have precedence over every rule of a policy.
func TestTheRulesOfARunComeFirst(t *testing.T) {
	plan, prog, name := claudeRun(t, "")
	p, err := loadPolicy(name, runRules{files: fileRules(plan, prog, testRepoDir)}, policyVars(testRepoDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		op         policy.FileOp
		path, rule string
	}{
		{policy.OpWrite, "/sandbox/workspace/.claude/settings.json", "delivered-files"},
		{policy.OpCreate, layout.ConfigDir + "/agents/b.md", "delivered-files"},
		{policy.OpWrite, layout.ConfigDir + "/skills/x/SKILL.md", "delivered-files"},
		{policy.OpRename, "/sandbox/workspace/.claude", "above-delivered-files"},
		{policy.OpDelete, layout.ConfigDir, "above-delivered-files"},
		{policy.OpCreate, layout.ConfigDir + "/settings.local.json", "runtime-configuration"},
		{policy.OpCreate, layout.ConfigDir + "/CLAUDE.md", "runtime-configuration"},
		{policy.OpCreate, layout.ConfigDir + "/projects/x/y.jsonl", "runtime-state"},
		{policy.OpCreate, layout.ConfigDir + "/.claude.json.tmp.4.ab", "runtime-state"},
		{policy.OpExecute, layout.ConfigDir + "/projects/tool", "all"},
		{policy.OpExecute, layout.ConfigDir + "/skills/x/run.sh", "delivered-programs"},
		{policy.OpRead, layout.ConfigDir + "/agents/a.md", "delivered-configuration"},
		{policy.OpCreate, "/sandbox/workspace/app/.claude/settings.local.json", "readonly-repo"},
		{policy.OpRead, "/sandbox/workspace/app/.claude/settings.json", "hidden-files"},
		{policy.OpWrite, "/sandbox/workspace/app/a.go", "readonly-repo"},
		{policy.OpCreate, "/sandbox/workspace/app/.git/index.lock", "readonly-repo"},
		{policy.OpRead, "/sandbox/workspace/app/a.go", "all"},
		{policy.OpWrite, "/sandbox/workspace/output/a", "all"},
		{policy.OpCreate, layout.EnvDir + "/a.env", "delivered-environment"},
		{policy.OpWrite, layout.GeneratedEnv, "delivered-environment"},
		{policy.OpRename, layout.EnvDir, "delivered-environment"},
		{policy.OpRead, layout.GeneratedEnv, "all"},
		{policy.OpRename, layout.Workspace, "above-delivered-environment"},
	} {
		if _, why := p.Evaluate(&policy.FileRequest{Op: tt.op, Path: tt.path}); why.Rule != tt.rule {
			t.Errorf("%v %s: %+v, want %s", tt.op, tt.path, why, tt.rule)
		}
	}
}

// A run without an agent's program has what the harness delivered, too, and scans it.
func TestARunWithoutAProgramReadsWhatWasDelivered(t *testing.T) {
	plan, prog, name := claudeRun(t, "")
	prog.files, prog.runtime = nil, nil
	p, err := loadPolicy(name, runRules{files: fileRules(plan, prog, testRepoDir)}, policyVars(testRepoDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		op         policy.FileOp
		path, rule string
	}{
		{policy.OpStat, layout.ConfigDir, "delivered-configuration"},
		{policy.OpRead, layout.ConfigDir + "/agents/a.md", "delivered-configuration"},
		{policy.OpExecute, layout.ConfigDir + "/skills/x/run.sh", "delivered-programs"},
		{policy.OpWrite, layout.ConfigDir + "/agents/a.md", "delivered-files"},
		{policy.OpCreate, layout.ConfigDir + "/other", "runtime-configuration"},
		{policy.OpList, layout.Sandbox, "sandbox-root"},
	} {
		if _, why := p.Evaluate(&policy.FileRequest{Op: tt.op, Path: tt.path}); why.Rule != tt.rule {
			t.Errorf("%v %s: %+v, want %s", tt.op, tt.path, why, tt.rule)
		}
	}
}

func TestAPolicyThatKeepsTheRuntimesVariablesIsRefused(t *testing.T) {
	for more, want := range map[string]string{
		"": "",
		"env_policy: {allow: ['CLAUDE_*', IS_SANDBOX, DISABLE_AUTOUPDATER]}\n": "",
		"env_policy: {allow: [PATH]}\n":                                        "CLAUDE_CONFIG_DIR",
		"env_policy: {deny: ['CLAUDE_CODE*']}\n":                               "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
	} {
		plan, prog, name := claudeRun(t, more)
		p, err := loadPolicy(name, runRules{files: fileRules(plan, prog, testRepoDir)}, policyVars(testRepoDir))
		if err != nil {
			t.Fatal(err)
		}
		err = checkEnv(prog, p, name)
		var f *Failure
		if want == "" && err != nil ||
			want != "" && (!errors.As(err, &f) || f.Code != ExitConfiguration || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", more, err)
		}
	}
}
