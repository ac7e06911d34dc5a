package harness

import "strings"

// Consumers names the step that acts on each leaf of the schema. A leaf that
// is not here has its reason in Unsupported: it is accepted so that the file
// stays portable, lint warns about it and a run refuses it.
var Consumers = map[string]string{
	"schema_version":                 "load",
	"version":                        "load",
	"base":                           "load",
	"agent":                          "bootstrap",
	"description":                    "record",
	"doc":                            "record",
	"role":                           "record",
	"slug":                           "record",
	"runtime":                        "runtime",
	"command":                        "runtime",
	"policy":                         "create sandbox",
	"model":                          "runtime",
	"skills.path":                    "bootstrap",
	"providers":                      "reconcile providers",
	"host_files.src":                 "bootstrap",
	"host_files.dest":                "bootstrap",
	"host_files.expand":              "expand",
	"host_files.optional":            "expand",
	"env.runner":                     "pre_script",
	"env.sandbox":                    "bootstrap",
	"env.both":                       "load",
	"runner_env":                     "load",
	"pre_script":                     "pre_script",
	"post_script":                    "post_script",
	"agent_input":                    "bootstrap",
	"timeout_minutes":                "runtime",
	"sandbox_timeout_seconds":        "wait ready",
	"validation_loop.script":         "validate",
	"validation_loop.schema":         "validate",
	"validation_loop.max_iterations": "validate",
	"validation_loop.feedback_mode":  "validate",
}

// Unsupported says why nothing acts on a leaf; a path covers what is below it.
var Unsupported = map[string]string{
	"image":                           "no backend here takes an image",
	"effort":                          "no runtime here takes a reasoning effort",
	"readonly_repo":                   "the repository is not mounted read-only yet; write it in the policy",
	"openshell":                       "there is no openshell backend here",
	"skills.overrides":                "skills are delivered as they are",
	"plugins":                         "no runtime here loads plugins",
	"preflight_check":                 "no step runs it; put the check into pre_script",
	"validation_loop.preflight_check": "no step runs it; put the check into pre_script",
	"container":                       "the agent always runs in the sandbox of the local backend",
	"security":                        "no scanner or hook reads it",
	"trigger":                         "agentctl does not wait for events",
	"steer":                           "a running agent takes no updates",
	"api_servers":                     "no step starts servers on the host",
	"privilege_levels":                "no step mints tokens",
	"allowed_remote_resources":        "resources are never fetched",
	"allow_runtime_fetch":             "resources are never fetched",
	"max_runtime_fetches":             "resources are never fetched",
}

// Refusals are the settings of the harness that nothing acts on, as errors.
// A run refuses them before it creates anything.
func (h *Harness) Refusals() Problems {
	ps := h.unsupported(Error)
	for _, p := range h.skipped {
		p.Severity = Error
		ps = append(ps, p)
	}
	return ps.Sorted()
}

// noProxy says why a provider with credentials is refused.
func noProxy(name string) string {
	return "the credentials of the provider " + name + " are not supported here: no gateway swaps their placeholders"
}

// unsupported reports the leaves that nothing acts on. What is switched off in
// so many words asks for nothing.
func (h *Harness) unsupported(s Severity) Problems {
	var ps Problems
	leaves(fields, h.merged, "", func(where string, f *field, t *tree) {
		if _, ok := Consumers[where]; ok {
			return
		}
		if f.off != "" && t.text == f.off {
			return
		}
		ps = append(ps, Problem{At: t.at, Severity: s, Rule: RuleUnsupport, Message: where + " is not supported here: " + reason(where)})
	})
	leaves(fields, h.merged, "", func(where string, f *field, t *tree) {
		for _, v := range append([]*tree{t}, t.items...) {
			if (f.path != notPath && f.path != pathHost || where == "providers") && isURL(v.text) {
				ps = append(ps, Problem{At: v.at, Severity: s, Rule: RuleUnsupport, Message: where + " names a URL, which is not supported here: resources are never fetched"})
			}
		}
	})
	for _, name := range sortedKeys(h.Definitions) {
		if p := h.Definitions[name]; len(p.Credentials) > 0 {
			ps = append(ps, Problem{At: p.At, Severity: s, Rule: RuleUnsupport, Message: noProxy(name)})
		}
	}
	return ps
}

// noStep is the reason of a leaf that has none; a test finds it.
const noStep = "no step acts on it"

// reason is the text of Unsupported for a leaf.
func reason(where string) string {
	for p := where; p != ""; {
		if r, ok := Unsupported[p]; ok {
			return r
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return noStep
}
