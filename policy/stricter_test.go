package policy_test

import (
	"fmt"
	"testing"

	"agentsh/policy"
)

func TestEnvFilterAndLimitsAreTheStricterOfBoth(t *testing.T) {
	p := load(t, `
env_policy: {allow: ["AWS_*", PATH, "LC_*"], deny: [SECRET], max_bytes: 100, max_keys: 50}
resource_limits: {max_memory_mb: 100, pids_max: 10, command_timeout: 1m, memory_swap_max_mb: 0}
command_rules:
  - {name: a, commands: [a], decision: allow, env_allow: ["AWS_REGION", "P*", HOME, "*_ALL"], env_deny: [X], env_max_bytes: 200, env_max_keys: 5, limits: {max_memory_mb: 50, pids_max: 20, open_files: 3, memory_swap_max_mb: 5}, timeout: 30s}
  - {name: b, commands: [b], decision: allow}
  - {name: c, commands: [c], decision: allow, env_allow: []}
`)
	a, b, c := p.Rules(policy.GroupCommand)[0], p.Rules(policy.GroupCommand)[1], p.Rules(policy.GroupCommand)[2]
	if f := p.EnvFilter(a); fmt.Sprint(f.Allow, f.Deny, f.MaxBytes, f.MaxKeys) != "[AWS_REGION PATH] [SECRET X] 100 5" {
		t.Errorf("%+v", f)
	}
	if f := p.EnvFilter(c); f.Allow == nil || len(f.Allow) != 0 {
		t.Errorf("env_allow: [] lets %v through", f.Allow)
	}
	if fmt.Sprint(p.EnvFilter(b)) != fmt.Sprint(p.EnvFilter(nil)) {
		t.Error("a rule without env_* changes the filter")
	}
	l := p.Limits(a)
	if l.MemoryBytes != 50<<20 || l.Pids != 10 || l.OpenFiles != 3 || l.CommandTimeout.Seconds() != 30 || !l.SwapLimited || l.SwapBytes != 0 {
		t.Errorf("%+v", l)
	}
	only := load(t, "command_rules: [{name: a, commands: [a], decision: allow, env_allow: [Y]}]\n")
	if f := only.EnvFilter(only.Rules(policy.GroupCommand)[0]); fmt.Sprint(f.Allow) != "[Y]" || only.EnvFilter(nil).Allow != nil {
		t.Errorf("%+v", f)
	}
}
