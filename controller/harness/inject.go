package harness

import (
	"fmt"
	"path/filepath"

	"agentsh/internal/layout"

	"agentsh/controller/openshell"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/policy/syntax"
)

// policyVars are placeholders for the variables that a run passes to a policy.
// Only their names matter here.
var policyVars = map[string]string{
	"WORKSPACE": layout.Workspace, "PROJECT_ROOT": layout.Workspace + "/repo", "GIT_ROOT": layout.Workspace + "/repo",
	"HOME": layout.Sandbox + "/home", "TMPDIR": "/tmp",
}

// checkVariables rejects variables that the policy's env_inject sets, or that its env_policy denies: they would
// be dropped. A policy that cannot be loaded is a warning; a run rejects it.
func (h *Harness) checkVariables(ps *Problems) {
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
	h.checkFilter(ps, p.EnvFilter(nil), shownName(name))
	injected := p.EnvInject()
	for _, k := range sortedKeys(injected) {
		if v, ok := h.Env.Sandbox[k]; ok {
			ps.errorf(v.At, RuleReserved, "env.sandbox: %s is set by env_inject of the policy %s", k, shownName(name))
		}
	}
	for _, v := range h.EnvFileVars {
		if _, ok := injected[v.V]; ok {
			ps.errorf(v.At, RuleReserved, "%s is set by env_inject of the policy %s", v.V, shownName(name))
		}
	}
}

// checkFilter rejects variables of the sandbox that env_policy denies, and requested ones that it does not allow.
func (h *Harness) checkFilter(ps *Problems, filter env.Filter, policyName string) {
	refuses := filter.Denies
	if h.requested {
		refuses = filter.Refuses
	}
	check := func(where, name string, at Origin) {
		why := refuses(name)
		if why == "" || reservedInSandbox(name) != "" { // reported elsewhere
			return
		}
		ps.errorf(at, RuleReserved, "%s: commands would not get %s: it is %s of the policy %s", where, name, why, policyName)
		if h.requested {
			ps.hint("write %s into allow of env_policy there", name)
		}
	}
	for _, k := range sortedKeys(h.Env.Sandbox) {
		check("env.sandbox", k, h.Env.Sandbox[k].At)
	}
	for _, v := range h.EnvFileVars {
		if why := filter.Denies(v.V); why != "" {
			ps.warnf(v.At, RuleReserved, "commands do not get %s: it is %s of the policy %s", v.V, why, policyName)
		}
	}
	for _, name := range h.Container.EnvPassthrough {
		if !h.Outside() {
			check("container.env_passthrough", name.V, name.At)
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
