package harness

import (
	"fmt"
	"path/filepath"

	"agentsh/internal/layout"

	"agentsh/controller/openshell"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// policyVars are placeholders for the variables that a run passes to a policy.
// Only their names matter here.
var policyVars = map[string]string{
	"WORKSPACE": layout.Workspace, "PROJECT_ROOT": layout.Workspace + "/repo", "GIT_ROOT": layout.Workspace + "/repo",
	"HOME": layout.Sandbox + "/home", "TMPDIR": "/tmp",
}

// checkInjected rejects variables that the policy's env_inject sets: they would
// be dropped. A policy that cannot be loaded is a warning; a run rejects it.
func (h *Harness) checkInjected(ps *Problems) {
	if !h.Policy.IsSet() || isURL(h.Policy.V) {
		return
	}
	name := h.Path(h.Policy)
	data, err := ReadFile(name)
	if err != nil {
		return // checkPath reports it
	}
	if openshell.IsPolicy(data) {
		foreign, problems := openshell.ReadPolicy(shownName(name), data)
		ps.openshell(problems, Error)
		if foreign != nil {
			ps.openshell(foreign.Notes, Note)
		}
		return // it injects nothing
	}
	p, err := syntax.Load(policy.Source{Name: shownName(name), Data: data}, syntax.Options{Vars: policyVars, ReadFile: readPolicy})
	if err != nil {
		ps.warnf(h.Policy.At, RuleRun, "policy: %s is no policy that can be enforced here: %s", clip(h.Policy.V), firstLine(err))
		ps.hint("agentsh policy check %s", shownName(name))
		return
	}
	injected := p.EnvInject()
	for _, k := range sortedKeys(injected) {
		if v, ok := h.Env.Sandbox[k]; ok {
			ps.errorf(v.At, RuleReserved, "env.sandbox: %s is set by env_inject of the policy %s", k, clip(h.Policy.V))
		}
	}
	for _, v := range h.EnvFileVars {
		if _, ok := injected[v.V]; ok {
			ps.errorf(v.At, RuleReserved, "%s is set by env_inject of the policy %s", v.V, clip(h.Policy.V))
		}
	}
}

// readPolicy reads a policy that another one extends.
func readPolicy(name string) ([]byte, error) {
	data, err := ReadFile(filepath.FromSlash(name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}

// firstLine is the first problem of several.
func firstLine(err error) string {
	text := err.Error()
	for i := range len(text) {
		if text[i] == '\n' {
			return text[:i]
		}
	}
	return text
}
