package syntax

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

// behaviour is everything a policy does, as text.
func behaviour(p *policy.Policy) string {
	var b strings.Builder
	for _, r := range fixture.Requests() {
		d, g := p.Evaluate(r)
		fmt.Fprintf(&b, "%s %s %s %s\n", d.Effect, g.Rule, g.Message, g.Hint)
		if d.Rule != nil {
			fmt.Fprintf(
				&b,
				"  %s %v %v %+v %+v %+v\n",
				d.Rule.Description,
				d.Rule.Accepted,
				d.Rule.ApproveTimeout,
				d.Rule.Redirect,
				p.EnvFilter(d.Rule),
				p.Limits(d.Rule),
			)
		}
	}
	var keys []string
	for _, s := range p.Settings() {
		keys = append(keys, s.Key)
	}
	fmt.Fprintf(&b, "%s %s %+v %v %v %+v %+v %+v %v %v %v\n", p.Name(), p.Description(), p.EnvFilter(nil), p.EnvInject(), p.EnvNested(),
		p.Limits(nil), p.Audit(), p.Approvals(), p.ExecFrom(), p.DeniedPrograms(), keys)
	return b.String()
}

// The rules the cases fill in: %s is where the key under test stands.
const (
	oneCommand = "command_rules:\n- {name: r, commands: [git, x], decision: allow%s}\n"
	denyKill   = "command_rules:\n- {name: r, commands: [kill], decision: deny%s}\n- {name: all, commands: ['*'], decision: allow}\n"
	redirect   = "command_rules:\n- {name: r, commands: [git], decision: redirect, redirect_to: {command: x%s}}\n"
	oneFile    = "file_rules:\n- {name: r, paths: ['/ws/**'], operations: [write], decision: %s}\n"
	oneNetwork = "network_rules:\n- {name: r%s, decision: allow}\n"
	oneSocket  = "unix_socket_rules:\n- {name: r, paths: [/run/a.sock, '@a'], decision: allow%s}\n"
	allSignals = "signal_rules: [{name: r, signals: ['@all'], target: {type: children}, decision: allow%s}]"
	oneSignal  = "signal_rules:\n- {name: r, signals: [KILL, TERM], target: {%s}, decision: allow}\n"
)

// keyCases gives for every key a file without it, or with another value, and
// one with it.
var keyCases = map[string][3]string{
	"name":                              {"", "", ""},
	"description":                       {"%s", "", "description: other"},
	"version":                           {"", "", ""},
	"extends":                           {"", "", ""},
	"defaults.command":                  {"defaults: {%s}", "command: deny", "command: allow"},
	"defaults.file":                     {"defaults: {%s}", "file: deny", "file: allow"},
	"defaults.file_read":                {"defaults: {%s}", "file_read: deny", "file_read: audit"},
	"defaults.file_write":               {"defaults: {%s}", "file_write: deny", "file_write: approve"},
	"defaults.network":                  {"defaults: {%s}", "network: deny", "network: allow"},
	"defaults.unix_socket":              {"defaults: {%s}", "unix_socket: deny", "unix_socket: allow"},
	"defaults.signal":                   {"defaults: {%s}", "signal: deny", "signal: allow"},
	"command_rules.name":                {"command_rules: [{name: %s, commands: [git], decision: allow}]", "a", "b"},
	"command_rules.description":         {oneCommand, "", ", description: other"},
	"command_rules.accept_warnings":     {oneCommand, "", ", accept_warnings: [case]"},
	"file_rules.accept_warnings":        {oneFile, "allow", "allow, accept_warnings: [shadowed]"},
	"network_rules.accept_warnings":     {oneNetwork, ", domains: ['*']", ", domains: ['*'], accept_warnings: [guarded]"},
	"unix_socket_rules.accept_warnings": {oneSocket, "", ", accept_warnings: [shadowed]"},
	"signal_rules.accept_warnings":      {allSignals, "", ", accept_warnings: [shadowed]"},
	"command_rules.decision":            {"command_rules: [{name: r, commands: [git], decision: %s}]", "allow", "audit"},
	"command_rules.message":             {oneCommand, "", ", message: hello"},
	"command_rules.timeout":             {oneCommand, "", ", timeout: 5m"},
	"command_rules.commands":            {"command_rules: [{name: r, commands: [%s], decision: allow}]", "git", "/opt/bin/*"},
	"command_rules.args_patterns":       {oneCommand, "", ", args_patterns: ['^status$']"},
	"command_rules.args":                {oneCommand, "", ", args: [status]"},
	"command_rules.context":             {oneCommand, "", ", context: direct"},
	"command_rules.context.min_depth":   {oneCommand, "", ", context: {min_depth: 1}"},
	"command_rules.context.max_depth":   {oneCommand, "", ", context: {max_depth: 2}"},
	"command_rules.when.parent":         {oneCommand, "", ", when: {parent: make}"},
	"command_rules.when.ancestor":       {oneCommand, "", ", when: {ancestor: [bash]}"},
	"command_rules.when.cwd":            {oneCommand, "", ", when: {cwd: /tmp}"},
	"command_rules.when.interactive":    {oneCommand, "", ", when: {interactive: true}"},
	"command_rules.redirect_to.command": {
		"command_rules: [{name: r, commands: [git], decision: redirect, redirect_to: {command: %s}}]",
		"a",
		"b",
	},
	"command_rules.redirect_to.args":        {redirect, "", ", args: [a]"},
	"command_rules.redirect_to.args_append": {redirect, "", ", args_append: [a]"},
	"command_rules.redirect_to.environment": {redirect, "", ", environment: {A: b}"},
	"command_rules.env_allow":               {oneCommand, "", ", env_allow: [A]"},
	"command_rules.env_deny":                {oneCommand, "", ", env_deny: [A]"},
	"command_rules.env_max_bytes":           {oneCommand, "", ", env_max_bytes: 5"},
	"command_rules.env_max_keys":            {oneCommand, "", ", env_max_keys: 5"},
	"command_rules.env_block_iteration":     {oneCommand, "", ", env_block_iteration: true"},
	"command_rules.identity":                {denyKill, "", ", identity: name"},
	"file_rules.name":                       {"file_rules: [{name: %s, paths: [/ws/a], operations: [read], decision: allow}]", "a", "b"},
	"file_rules.description":                {oneFile, "allow", "allow, description: other"},
	"file_rules.decision":                   {oneFile, "allow", "audit"},
	"file_rules.message":                    {oneFile, "deny", "deny, message: 'no {{.Path}}'"},
	"file_rules.timeout":                    {oneFile, "approve", "approve, timeout: 5m"},
	"file_rules.paths":                      {"file_rules: [{name: r, paths: [%s], operations: [read], decision: allow}]", "/ws/b", "/ws/*"},
	"file_rules.operations":                 {"file_rules: [{name: r, paths: [/ws/a], operations: [%s], decision: allow}]", "read", "delete"},
	"file_rules.redirect_to":                {oneFile, "redirect, redirect_to: /tmp/a", "redirect, redirect_to: /tmp/b"},
	"file_rules.preserve_tree":              {oneFile, "redirect, redirect_to: /tmp/a", "redirect, redirect_to: /tmp/a, preserve_tree: true"},
	"network_rules.name":                    {"network_rules: [{name: %s, domains: ['*'], decision: allow}]", "a", "b"},
	"network_rules.description":             {oneNetwork, ", domains: ['*']", ", domains: ['*'], description: other"},
	"network_rules.decision":                {"network_rules: [{name: r, domains: ['*'], decision: %s}]", "allow", "audit"},
	"network_rules.message":                 {oneNetwork, ", domains: ['*']", ", domains: ['*'], message: hello"},
	"network_rules.timeout":                 {"network_rules: [{name: r, domains: ['*'], decision: approve%s}]", "", ", timeout: 5s"},
	"network_rules.domains":                 {oneNetwork, ", domains: ['*.example.com']", ", domains: ['*.example.org']"},
	"network_rules.cidrs":                   {oneNetwork, ", cidrs: [192.0.2.0/24]", ", cidrs: [198.51.100.0/24]"},
	"network_rules.ports":                   {oneNetwork, ", ports: [443]", ", ports: ['1-100']"},
	"network_rules.protocols":               {oneNetwork, ", protocols: [tcp]", ", protocols: [udp]"},
	"network_rules.methods":                 {oneNetwork, ", methods: [GET]", ", methods: [PUT]"},
	"network_rules.paths":                   {oneNetwork, ", paths: [/x]", ", paths: [/y]"},
	"network_rules.binaries":                {oneNetwork, ", binaries: [git]", ", binaries: [curl]"},
	"unix_socket_rules.name":                {"unix_socket_rules: [{name: %s, paths: ['@a'], decision: allow}]", "a", "b"},
	"unix_socket_rules.description":         {oneSocket, "", ", description: other"},
	"unix_socket_rules.decision":            {"unix_socket_rules: [{name: r, paths: ['@a'], decision: %s}]", "allow", "audit"},
	"unix_socket_rules.message":             {oneSocket, "", ", message: hello"},
	"unix_socket_rules.timeout":             {"unix_socket_rules: [{name: r, paths: ['@a'], decision: approve%s}]", "", ", timeout: 5s"},
	"unix_socket_rules.paths":               {"unix_socket_rules: [{name: r, paths: [%s], decision: allow}]", "'@b'", "/run/*.sock"},
	"unix_socket_rules.operations":          {oneSocket, "", ", operations: [listen]"},
	"signal_rules.name": {
		"signal_rules: [{name: %s, signals: ['@all'], target: {type: children}, decision: allow}]",
		"a",
		"b",
	},
	"signal_rules.description": {allSignals, "", ", description: other"},
	"signal_rules.decision": {
		"signal_rules: [{name: r, signals: ['@all'], target: {type: children}, decision: %s}]",
		"allow",
		"absorb",
	},
	"signal_rules.message": {allSignals, "", ", message: hello"},
	"signal_rules.timeout": {
		"signal_rules: [{name: r, signals: ['@all'], target: {type: children}, decision: approve%s}]",
		"",
		", timeout: 5s",
	},
	"signal_rules.signals": {
		"signal_rules: [{name: r, signals: [%s], target: {type: children}, decision: allow}]",
		"TERM",
		"SIGKILL",
	},
	"signal_rules.target.type":    {oneSignal, "type: children", "type: external"},
	"signal_rules.target.pattern": {oneSignal, "type: process, pattern: 'gi?'", "type: process, pattern: x"},
	"signal_rules.target.min":     {oneSignal, "type: pid_range, min: 1, max: 800", "type: pid_range, min: 500, max: 800"},
	"signal_rules.target.max":     {oneSignal, "type: pid_range, min: 1, max: 800", "type: pid_range, min: 1, max: 80"},
	"signal_rules.redirect_to": {
		"signal_rules: [{name: r, signals: [KILL], target: {type: children}, decision: redirect, redirect_to: %s}]",
		"TERM",
		"INT",
	},
	"signal_rules.fallback": {
		"signal_rules: [{name: r, signals: [KILL], target: {type: children}, decision: deny%s}]",
		"",
		", fallback: audit",
	},
	"env_policy.allow":           {"env_policy: {%s}", "", "allow: [A]"},
	"env_policy.deny":            {"env_policy: {%s}", "", "deny: [A]"},
	"env_policy.max_bytes":       {"env_policy: {%s}", "", "max_bytes: 9"},
	"env_policy.max_keys":        {"env_policy: {%s}", "", "max_keys: 9"},
	"env_policy.block_iteration": {"env_policy: {%s}", "", "block_iteration: true"},
	"env_inject":                 {"env_inject: {A: %s}", "x", "y"},
	"env_inject.value":           {"env_inject: {A: {value: %s}}", "x", "y"},
	"env_inject.enforce":         {"env_inject: {A: {value: x, enforce: %s}}", "nested", "start"},
	"approvals.via":              {"approvals: {via: %s}", "tty", "channel"},
	"approvals.command":          {"approvals: {via: command, command: [%s]}", "a", "b"},
	"approvals.timeout":          {"approvals: {via: tty%s}", "", ", timeout: 5s"},
	"audit.log_allowed":          {"audit: {%s}", "log_allowed: false", "log_allowed: true"},
	"audit.redact":               {"audit: {%s}", "redact: false", "redact: true"},
	"audit.log_denied":           {"audit: {%s}", "log_denied: true", "log_denied: false"},
	"audit.log_approved":         {"audit: {%s}", "log_approved: true", "log_approved: false"},
	"audit.include_stdout":       {"audit: {%s}", "include_stdout: false", "include_stdout: true"},
	"audit.include_stderr":       {"audit: {%s}", "include_stderr: false", "include_stderr: true"},
	"audit.include_file_content": {"audit: {%s}", "include_file_content: false", "include_file_content: true"},
	"audit.retention_days":       {"audit: {%s}", "", "retention_days: 9"},
	"transparent_commands.add": {
		"command_rules:\n- {name: r, commands: [kill], decision: deny}\n- {name: all, commands: ['*'], decision: allow}\ntransparent_commands: {add: [%s]}",
		"other",
		"myrunner",
	},
	"transparent_commands.remove": {
		"command_rules:\n- {name: r, commands: [kill], decision: deny}\n- {name: all, commands: ['*'], decision: allow}\ntransparent_commands: {remove: [%s]}",
		"sudo",
		"nice",
	},
	"exec_from": {
		"command_rules: [{name: r, commands: [git, x], decision: allow}]\nexec_from: [%s]",
		"/usr/**",
		"/opt",
	},
	"git_guard":      {"git_guard: %s", "false", "true"},
	"ssh.sessions":   {"ssh: {sessions: %s}", "false", "true"},
	"ssh.forwarding": {"ssh: {forwarding: %s}", "false", "true"},
}

// keysOf lists every accepted key with a value of its own, as a path of keys.
func keysOf(prefix string, fields []field) []string {
	var out []string
	for _, f := range fields {
		if f.refused != "" {
			continue
		}
		name := prefix + f.name
		inner := f.shape
		if inner.kind == shapeList || inner.kind == shapeMap {
			inner = *inner.item
		}
		if inner.kind == shapeObject {
			out = append(out, keysOf(name+".", inner.fields())...)
			continue
		}
		out = append(out, name)
		for _, o := range inner.others {
			if o.kind == shapeObject {
				out = append(out, keysOf(name+".", o.fields())...)
			}
		}
	}
	return out
}

func TestEveryKeyChangesSomething(t *testing.T) {
	for _, limit := range keysOf("", fieldsOf(limitKeys)) {
		low, high := "1", "2"
		if strings.HasSuffix(limit, "timeout") {
			low, high = "1s", "2s"
		}
		keyCases["resource_limits."+limit] = [3]string{"resource_limits: {" + limit + ": %s}", low, high}
		if limit == "session_timeout" || limit == "idle_timeout" {
			continue
		}
		keyCases["command_rules.limits."+limit] = [3]string{
			oneCommand,
			", limits: {" + limit + ": " + low + "}",
			", limits: {" + limit + ": " + high + "}",
		}
	}
	keys := keysOf("", fieldsOf(policyKeys))
	for _, name := range keys {
		c, ok := keyCases[name]
		if !ok {
			t.Errorf("%s: no case: say what the key changes", name)
			continue
		}
		if c[0] == "" {
			continue // held by a test of its own
		}
		t.Run(name, func(t *testing.T) {
			before, after := outcomeOf(c[0], c[1]), outcomeOf(c[0], c[2])
			if strings.HasPrefix(before, "error") {
				t.Fatalf("the first file does not load: %s", before)
			}
			if before == after {
				t.Errorf("%q and %q do the same", c[1], c[2])
			}
			short := name[strings.LastIndexByte(name, '.')+1:]
			if strings.HasPrefix(after, "error") && !strings.Contains(after, "cannot be") {
				t.Errorf("%s: %s", short, after)
			}
		})
	}
	for name := range keyCases {
		if !slices.Contains(keys, name) {
			t.Errorf("%s is no key", name)
		}
	}
}

func outcomeOf(format, value string) string {
	body := strings.Replace(format, "%s", value, 1)
	p, err := Load(policy.Source{Name: "k.yaml", Data: []byte("version: 1\nname: k\n" + body + "\n")}, Options{Vars: fixture.Vars})
	if err != nil {
		return "error: " + err.Error()
	}
	return behaviour(p)
}

func TestRefusedKeysSayWhy(t *testing.T) {
	refusals := 0
	for _, f := range fieldsOf(policyKeys) {
		if f.refused == "" {
			continue
		}
		refusals++
		if got := problems(t, f.name+": {}\n"); !strings.Contains(got, "test.yaml:3:1: "+f.name) || !strings.Contains(got, f.refused) {
			t.Errorf("%s: %s", f.name, got)
		}
	}
	if refusals < 9 {
		t.Errorf("only %d keys are refused", refusals)
	}
}

func TestVersionAndNameAreRequired(t *testing.T) {
	for data, want := range map[string]string{
		"name: a\n":               "p.yaml:1:1: the policy has no version (write version: 1)",
		"version: 1\n":            "p.yaml:1:1: the policy has no name (write name: and a value)",
		"version: 2\nname: a\n":   "p.yaml:1:10: version \"2\" is not known",
		"version: '1'\nname: a\n": "p.yaml:1:10: version \"1\" is not known",
		"version: 1\nname: ''\n":  "p.yaml:2:7: a policy name",
		"version: 1\nname:\n":     "p.yaml:2:6: name has no value",
	} {
		_, err := Load(policy.Source{Name: "p.yaml", Data: []byte(data)}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", data, err, want)
		}
	}
}
