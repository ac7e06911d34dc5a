package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Consumers names the step that reads each leaf of the schema. A leaf without a
// step has its reason in Unsupported: it is accepted so that the file stays
// portable, lint warns about it and a run rejects it.
var Consumers = map[string]string{
	"schema_version":                  "load",
	"version":                         "load",
	"base":                            "load",
	"allowed_remote_resources":        "load",
	"agent":                           "bootstrap",
	"description":                     "record",
	"doc":                             "record",
	"role":                            "record",
	"slug":                            "record",
	"runtime":                         "runtime",
	"command":                         "runtime",
	"policy":                          "create sandbox",
	"openshell.profiles":              "create sandbox",
	"model":                           "runtime",
	"effort":                          "runtime",
	"readonly_repo":                   "create sandbox",
	"backend":                         "create sandbox",
	"connect":                         "create sandbox",
	"connect_key":                     "create sandbox",
	"container.harness":               "runtime",
	"container.env_passthrough":       "runtime",
	"container.confine_agent":         "runtime",
	"container.model_hosts":           "runtime",
	"container.user":                  "create sandbox",
	"container.memory_mb":             "create sandbox",
	"container.cpus":                  "create sandbox",
	"container.pids":                  "create sandbox",
	"container.disk_mb":               "create sandbox",
	"container.network":               "create sandbox",
	"container.mounts.source":         "create sandbox",
	"container.mounts.target":         "create sandbox",
	"container.mounts.writable":       "create sandbox",
	"degraded":                        "create sandbox",
	"require":                         "create sandbox",
	"plugins.path":                    "bootstrap",
	"mcp_servers.name":                "runtime",
	"mcp_servers.command":             "runtime",
	"mcp_servers.tools.allow":         "runtime",
	"mcp_servers.tools.deny":          "runtime",
	"mcp_servers.pins":                "runtime",
	"skills.path":                     "bootstrap",
	"skills.overrides":                "bootstrap",
	"host_files.src":                  "bootstrap",
	"host_files.dest":                 "bootstrap",
	"host_files.expand":               "expand",
	"host_files.optional":             "expand",
	"env.runner":                      "pre_script",
	"env.sandbox":                     "bootstrap",
	"env.both":                        "load",
	"runner_env":                      "load",
	"providers":                       "providers",
	"pre_script":                      "pre_script",
	"preflight_check":                 "preflight",
	"script_directory":                "validate",
	"validation_loop.preflight_check": "preflight",
	"post_script":                     "post_script",
	"pre_script_timeout_seconds":      "pre_script",
	"post_script_timeout_seconds":     "post_script",
	"agent_input":                     "bootstrap",
	"timeout_minutes":                 "runtime",
	"sandbox_timeout_seconds":         "wait ready",
	"validation_loop.script":          "validate",
	"validation_loop.schema":          "validate",
	"validation_loop.max_iterations":  "validate",
	"validation_loop.feedback_mode":   "validate",
	"validation_loop.timeout_seconds": "validate",
	"security.enabled":                "scan context",
	"security.fail_mode":              "scan context",
	"security.host_scanners.unicode_normalizer":   "scan context",
	"security.host_scanners.context_injection":    "scan context",
	"security.host_scanners.ssrf_validator":       "scan context",
	"security.host_scanners.secret_redactor":      "scan context",
	"security.host_scanners.llm_guard.enabled":    "scan context",
	"security.host_scanners.llm_guard.threshold":  "scan context",
	"security.host_scanners.llm_guard.match_type": "scan context",

	"security.host_scanners.llm_guard.url":             "scan context",
	"security.host_scanners.llm_guard.model":           "scan context",
	"security.host_scanners.llm_guard.credential":      "scan context",
	"security.host_scanners.llm_guard.timeout_seconds": "scan context",
	"security.escalation.on_critical":                  "scan context",
	"security.escalation.review_label":                 "scan context",

	"security.sandbox_hooks.tirith.enabled":                 "runtime",
	"security.sandbox_hooks.tirith.fail_on":                 "runtime",
	"security.sandbox_hooks.ssrf_pretool":                   "runtime",
	"security.sandbox_hooks.secret_redact_posttool":         "runtime",
	"security.sandbox_hooks.unicode_posttool":               "runtime",
	"security.sandbox_hooks.context_suppress_posttool":      "runtime",
	"security.sandbox_hooks.canary_pretool":                 "runtime",
	"security.sandbox_hooks.canary_posttool":                "runtime",
	"security.sandbox_hooks.tool_allowlist_pretool.enabled": "runtime",
	"security.trace.enabled":                                "record",

	"kubernetes.agentsh_image":        "create sandbox",
	"kubernetes.image_pull_policy":    "create sandbox",
	"kubernetes.image_pull_secrets":   "create sandbox",
	"kubernetes.service_account":      "create sandbox",
	"kubernetes.runtime_class":        "create sandbox",
	"kubernetes.priority_class":       "create sandbox",
	"kubernetes.node_selector":        "create sandbox",
	"kubernetes.tolerations.key":      "create sandbox",
	"kubernetes.tolerations.operator": "create sandbox",
	"kubernetes.tolerations.value":    "create sandbox",
	"kubernetes.tolerations.effect":   "create sandbox",
	"kubernetes.tolerations.seconds":  "create sandbox",
	"kubernetes.requests.memory_mb":   "create sandbox",
	"kubernetes.requests.cpus":        "create sandbox",
	"kubernetes.fuse_device":          "create sandbox",
	"kubernetes.seccomp":              "create sandbox",
	"kubernetes.apparmor":             "create sandbox",
	"kubernetes.user_namespace":       "create sandbox",
	"kubernetes.network_policy":       "create sandbox",
	"kubernetes.dns_namespace":        "create sandbox",
	"kubernetes.labels":               "create sandbox",
	"kubernetes.annotations":          "create sandbox",
	"kubernetes.agent_sandbox":        "create sandbox",
	"kubernetes.warm_pool":            "create sandbox",
	"kubernetes.start_seconds":        "create sandbox",
	"kubernetes.max_seconds":          "create sandbox",
}

// Runtimes are the runtimes that a run can start, each with the leaves of
// [Particular] that it reads. A file may name other runtimes, so that it stays
// portable; a run rejects them.
var Runtimes = map[string][]string{
	"claude":   {"model", "effort", "plugins.path", hooksLeaf, serversLeaf},
	"codex":    {"model", "effort", hooksLeaf, serversLeaf},
	"command":  {},
	"gemini":   {"model", hooksLeaf, serversLeaf},
	"opencode": {"model", hooksLeaf, serversLeaf},
}

// Particular are the leaves that only some runtimes read, with a description of
// each.
var Particular = map[string]string{
	"model":        "a model",
	"effort":       "a reasoning effort",
	"plugins.path": "plugins",
	hooksLeaf:      "hooks",
	serversLeaf:    "MCP servers",
}

// hooksLeaf stands for all leaves below it.
const hooksLeaf = "security.sandbox_hooks"

// serversLeaf stands for all leaves below it, too.
const serversLeaf = "mcp_servers"

// particular is the key of [Particular] that a leaf belongs to, or "".
func particular(where string) string {
	if strings.HasPrefix(where, hooksLeaf+".") {
		return hooksLeaf
	}
	if strings.HasPrefix(where, serversLeaf+".") {
		return serversLeaf
	}
	if _, ok := Particular[where]; ok {
		return where
	}
	return ""
}

// Unsupported gives the reason why no step reads a leaf. An entry also applies
// to all leaves below its path.
var Unsupported = map[string]string{
	"plugins.env":       "plugins get no variables of their own; write env.sandbox",
	"plugins.pi":        "no runtime here takes arguments for plugins",
	"container.backend": "backend names the kind of the sandbox",

	"steer":               "a running agent takes no updates",
	"api_servers":         "a server with credentials of this machine would obey the sandbox; use a provider",
	"privilege_levels":    "no step mints tokens",
	"allow_runtime_fetch": "the agent would choose instructions that no scan has seen; name them in skills",
	"max_runtime_fetches": "nothing is fetched while the agent runs",
}

// Meaningless are leaves that say nothing about a run. They are said once, as
// notes, and a run ignores them.
var Meaningless = map[string]string{
	"image":   "without a path to it the sandbox has this machine's programs, as far as the policy shows them",
	"trigger": "agentctl does not wait for events: a run starts when it is called",
}

// ImageHint says how an image gets a root file system.
func ImageHint(name string) string {
	return "run with --image " + name + "=PATH, where PATH is its root file system or an archive of it"
}

// Refusals are the settings of the harness that no step reads, as errors. A run
// rejects them before it creates anything.
func (h *Harness) Refusals() Problems {
	ps := h.unsupported(Error)
	for _, p := range h.skipped {
		p.Severity = Error
		ps = append(ps, p)
	}
	return ps.Sorted()
}

// unsupported reports the leaves that no step reads. A setting that is
// explicitly switched off is not reported.
func (h *Harness) unsupported(s Severity) Problems {
	var ps Problems
	runtime := h.Runtime.Or("claude")
	takes, known := Runtimes[runtime]
	if s == Warning && !known {
		at := h.Runtime.At
		if at.IsZero() {
			at = Origin{File: h.File, Line: 1, Column: 1}
		}
		ps.warnf(
			at,
			RuleUnsupport,
			"the runtime %s is not supported here, only %s",
			runtime,
			strings.Join(slices.Sorted(maps.Keys(Runtimes)), ", "),
		)
	}
	leaves(fields, h.merged, "", func(where string, f *field, t *tree) {
		if f.off != "" && t.text == f.off {
			return
		}
		if key := particular(where); key != "" && known && !contains(takes, key) {
			ps = append(
				ps,
				Problem{
					At:       t.at,
					Severity: s,
					Rule:     RuleUnsupport,
					Message:  where + " is not supported here: the runtime " + runtime + " takes no " + strings.TrimPrefix(Particular[key], "a "),
				},
			)
			return
		}
		if _, ok := Consumers[where]; ok || where == "image" && h.makesImages() {
			return
		}
		if why, ok := Meaningless[where]; ok {
			if s == Warning {
				p := Problem{At: t.at, Severity: Note, Rule: RuleNoEffect, Message: where + " has no meaning here: " + why}
				if where == "image" && t.text != "" {
					p.Hint = ImageHint(t.text)
				}
				ps = append(ps, p)
			}
			return
		}
		ps = append(ps, Problem{At: t.at, Severity: s, Rule: RuleUnsupport, Message: where + " is not supported here: " + reason(where)})
	})
	leaves(fields, h.merged, "", func(where string, f *field, t *tree) {
		list := []*tree{t}
		if where == "skills.overrides" {
			list = slices.Collect(maps.Values(t.dict))
		} else if f.path == notPath || f.path == pathHost {
			return
		}
		for _, t := range list {
			if isURL(t.text) {
				ps = append(ps, notFetched(s, where, t.at))
			}
		}
	})
	ps = append(ps, h.Security.contradictions(s)...)
	ps = append(ps, h.place(s, runtime)...)
	for _, entry := range h.Providers {
		if isURL(entry.V) {
			ps = append(ps, notFetched(s, "providers", entry.At))
		}
	}
	return ps
}

// Outsiders are the runtimes whose programs can work on the host, with the tools of the sandbox.
var Outsiders = []string{"claude", "codex", "command"}

// place reports settings that have no effect where the agent's program runs.
func (h *Harness) place(s Severity, runtime string) Problems {
	var ps Problems
	add := func(at Origin, format string, args ...any) {
		ps = append(ps, Problem{At: at, Severity: s, Rule: RuleUnsupport, Message: fmt.Sprintf(format, args...)})
	}
	c := h.Container
	if !h.Outside() {
		if c.ConfineAgent.IsSet() {
			add(c.ConfineAgent.At, "container.confine_agent has no effect without container.harness: false")
		}
		for _, host := range c.ModelHosts {
			add(host.At, "container.model_hosts has no effect without container.harness: false: network_rules of the policy name the hosts")
		}
		return ps
	}
	if !contains(Outsiders, runtime) {
		add(c.Harness.At, "container.harness: false is not supported here for the runtime %s, only for %s",
			runtime, strings.Join(Outsiders, ", "))
	}
	for _, p := range h.Plugins {
		add(p.Path.At, "plugins.path is not supported with container.harness: false: a plugin runs programs outside of the sandbox")
	}
	for _, m := range h.MCPServers {
		add(m.Name.At, "mcp_servers is not supported with container.harness: false: servers work in the sandbox, and the agent outside of it")
	}
	for _, host := range c.ModelHosts {
		if c.ConfineAgent.V == ConfineNever {
			add(host.At, "container.model_hosts has no effect with confine_agent: never")
		}
	}
	return ps
}

// notFetched is the problem of a setting that names a URL.
func notFetched(s Severity, where string, at Origin) Problem {
	text := where + " names a URL, which is not supported here: only a base is fetched"
	return Problem{At: at, Severity: s, Rule: RuleUnsupport, Message: text}
}

// contradictions reports settings of escalation that have no effect because of
// another one.
func (c Security) contradictions(s Severity) Problems {
	e := c.Escalation
	var ps Problems
	add := func(at Origin, text string) {
		ps = append(ps, Problem{At: at, Severity: s, Rule: RuleUnsupport, Message: text})
	}
	if e.OnCritical.IsSet() && e.OnCritical.V != OnCriticalReview && c.FailMode.V == FailOpen {
		add(e.OnCritical.At, "security.escalation.on_critical: halt is against security.fail_mode: open, which stops nothing")
	}
	if e.ReviewLabel.IsSet() && e.OnCritical.V != OnCriticalReview {
		add(e.ReviewLabel.At, "security.escalation.review_label has no effect without on_critical: review")
	}
	return ps
}

// noStep is the reason for a leaf without one. A test fails for such a leaf.
const noStep = "no step acts on it"

// reason is the entry of Unsupported for a leaf.
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
