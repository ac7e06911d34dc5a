package syntax

import (
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
)

func TestLint(t *testing.T) {
	tests := []struct{ name, rules, code string }{
		{
			"a shadowed command rule",
			"command_rules:\n- {name: a, commands: [git, 'mk*'], decision: allow}\n- {name: b, commands: [mkfs, git], args: [x], decision: allow}\n",
			"b:shadowed",
		},
		{
			"a shadowed file rule",
			"file_rules:\n- {name: a, paths: ['/a/**'], operations: ['*'], decision: allow}\n- {name: b, paths: ['/a/b/*.go'], operations: [read], decision: deny}\n",
			"b:shadowed",
		},
		{
			"a shadowed network rule",
			"network_rules:\n- {name: a, domains: ['*.x.org'], decision: allow}\n- {name: b, domains: [a.x.org], ports: [443], decision: deny}\n",
			"b:shadowed",
		},
		{
			"a shadowed signal rule",
			"signal_rules:\n- {name: a, signals: ['@all'], target: {type: self}, decision: allow}\n- {name: b, signals: [KILL], target: {type: self}, decision: deny}\n",
			"b:shadowed",
		},
		{
			"a permit that takes a part of a denial",
			"file_rules:\n- {name: a, paths: ['/ws/**'], operations: [read], decision: allow}\n- {name: b, paths: ['**/.env'], operations: ['*'], decision: deny}\n",
			"b:allow-before-deny",
		},
		{
			"a permit before a denial of commands",
			"command_rules:\n- {name: a, commands: ['g*'], decision: allow}\n- {name: b, commands: [git, rm], decision: deny}\n",
			"b:allow-before-deny",
		},
		{
			"one name for two rules",
			"command_rules:\n- {name: a, commands: [x], decision: allow}\n- {name: a, commands: [y], decision: allow}\n",
			"a:same-name",
		},
		{
			"an open pattern that permits",
			"command_rules:\n- {name: a, commands: [git], args_patterns: [status], decision: allow}\n",
			"a:unanchored",
		},
		{"-rf without -r -f", "command_rules:\n- {name: a, commands: [rm], args_patterns: ['.*-rf.*'], decision: deny}\n", "a:bundled-options"},
		{
			"an option only looked for in front",
			"command_rules:\n- {name: a, commands: [rm], args_patterns: ['^-r'], decision: deny}\n",
			"a:anchored-option",
		},
		{
			"a denied program whose effect a shell has",
			"command_rules:\n- {name: a, commands: [kill], decision: deny}\n- {name: b, commands: [bash], decision: allow}\n",
			"a:reachable",
		},
		{"approve without anybody to ask", "command_rules:\n- {name: a, commands: [x], decision: approve}\n", "a:nobody-asked"},
		{"arguments in a message", "command_rules:\n- {name: a, commands: [x], decision: deny, message: '{{.Args}}'}\n", "a:args-hidden"},
		{"a wide network rule", "network_rules:\n- {name: a, cidrs: [0.0.0.0/0], decision: allow}\n", "a:guarded"},
		{"another word for an operation", "file_rules: [{name: a, paths: [/a], operations: [open], decision: allow}]\n", "a:operation-alias"},
		{"a fallback", "signal_rules: [{name: a, signals: [KILL], target: {type: system}, decision: deny, fallback: audit}]\n", ":fallback"},
		{"datagrams that are permitted", "network_rules: [{name: a, domains: [a.example], protocols: [udp], decision: allow}]\n", ":datagrams"},
		{"a rule about listening", "unix_socket_rules: [{name: a, paths: [/a], operations: [listen], decision: deny}]\n", ":listen"},
		{"capitals", "command_rules:\n- {name: a, commands: [Make], decision: allow}\n", "a:case"},
		{
			"env_allow beside env_policy",
			"env_policy: {allow: [A]}\ncommand_rules:\n- {name: a, commands: [x], decision: allow, env_allow: [B]}\n",
			"a:env-narrows",
		},
		{"identity by name", "command_rules:\n- {name: a, commands: [x], decision: deny, identity: name}\n", "a:by-name"},
		{"a loader that is not looked into", "transparent_commands: {remove: [ld-linux]}\n", ":unseen-payload"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, p := range Lint(load(t, test.rules)) {
				rule, _, _ := strings.Cut(strings.TrimPrefix(p.Message, "rule "), ":")
				if !strings.HasPrefix(p.Message, "rule ") {
					rule = ""
				}
				got = append(got, rule+":"+p.Code)
				if p.Severity != policy.SeverityWarning || p.Pos.Line == 0 || p.Code == "unseen-payload" && p.Pos.Line == 1 {
					t.Errorf("%+v", p)
				}
			}
			if !slices.Contains(got, test.code) {
				t.Errorf("%q, want %s", got, test.code)
			}
		})
	}
	clean := load(t, `
command_rules:
  - {name: a, commands: [git], args: [push, "**", "--force|-f"], decision: deny}
  - {name: b, commands: [git, ls], decision: allow}
  - {name: c, commands: ["*"], decision: deny}
file_rules:
  - {name: a, paths: ["/ws/.git/**"], operations: [write, rename, symlink], decision: deny}
  - {name: b, paths: ["/ws/**"], operations: ["*"], decision: allow}
  - {name: c, paths: ["**"], operations: ["*"], decision: deny}
`)
	if got := Lint(clean); len(got) != 0 {
		t.Errorf("%v", policy.Problems(got))
	}
}
