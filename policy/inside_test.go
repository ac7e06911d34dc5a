package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPayloads(t *testing.T) {
	tests := []struct{ argv, want string }{
		{"git push", ""},
		{"env", ""},
		{"env A=b -- kill 1", "-- kill 1"}, // after an assignment -- is a name
		{"env -i A=b kill 1", "kill 1"},
		{"env -i -- A=b kill 1", "kill 1"},
		{"env - kill", "kill"},
		{"env -u PATH -C /x --chdir /y --unset=Z kill", "kill"},
		{"env -iu PATH kill", "kill"},
		{"/usr/bin/env --argv0 x kill", "kill"},
		{"env -vS kill|-9|1", "kill -9 1"},
		{"nice -n 5 kill", "kill"},
		{"nice -5 kill", "kill"},
		{"nice --adjustment 5 kill", "kill"},
		{"nice --adj=5 kill", "kill"},
		{"nohup kill", "kill"},
		{"time -p kill", "kill"},
		{"time -f %e -o x kill", "kill"},
		{"timeout 5 kill", "kill"},
		{"timeout -k 3 -s KILL --preserve-status 5 kill", "kill"},
		{"timeout --signal KILL 5 kill", "kill"},
		{"xargs -0 -n 1 -P4 -I {} kill {}", "kill {}"},
		{"xargs -i kill", "kill"},
		{"xargs --max-args 2 kill", "kill"},
		{"sudo -u root -n A=b kill", "kill"},
		{"sudo --user root kill", "kill"},
		{"sudo -uroot kill", "kill"},
		{"doas -u root kill", "kill"},
		{"setsid -w kill", "kill"},
		{"stdbuf -oL -e 0 kill", "kill"},
		{"stdbuf --output=L kill", "kill"},
		{"nice env timeout 3 kill", "env timeout 3 kill; timeout 3 kill; kill"},
		{"busybox kill 1", "kill 1 !"},
		{"busybox --list", ""},
		{"busybox env kill", "env kill !; kill !"},
		{"busybox env /bin/kill", "env /bin/kill !; /bin/kill"},
		{"busybox busybox kill", "busybox kill !; kill !"},
		{"toybox kill", "kill !"},
		{"/lib64/ld-linux-x86-64.so.2 /bin/kill 1", "/bin/kill 1 !"},
		{"/lib64/ld-linux-x86-64.so.2 --library-path /x --preload=/y --inhibit-cache /bin/kill 1", "/bin/kill 1 !"},
		{"/lib64/ld-linux-x86-64.so.2 --argv0 x /bin/kill 1", "x 1 !"},
		{"/lib/ld-musl-x86_64.so.1 -- /bin/kill", "/bin/kill !"},
		{"ld.so env kill", "env kill !; kill"},
		{"/lib64/ld-linux-x86-64.so.2 --new /bin/kill", "error"},
		{"env -Z kill", "error"},
		{"sudo -@ kill", "error"},
		{strings.Repeat("nice ", 20) + "kill", "error"},
	}
	for _, test := range tests {
		argv := strings.Fields(test.argv)
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], "|", " ")
		}
		list, err := allPayloads(argv)
		var parts []string
		for _, p := range list {
			text := strings.Join(p.Argv, " ")
			if p.InProcess {
				text += " !"
			}
			parts = append(parts, text)
		}
		got := strings.Join(parts, "; ")
		if err != nil {
			got = "error"
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.argv, got, test.want)
		}
	}
}

func TestTheProgramOfALoaderIsFound(t *testing.T) {
	for _, c := range []struct{ argv, want string }{
		{"ld.so", ""},
		{"ld.so /bin/ls -l", "/bin/ls: /bin/ls -l"},
		{"any-name --list /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so --argv0 x /bin/ls --argv0", "/bin/ls: x --argv0"},
		{"ld.so --library-path=/x /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so -- /bin/ls", "/bin/ls: /bin/ls"},
		{"ld.so -- --weird/x", "--weird/x: --weird/x"},
		{"ld.so --preload /a", ""},
		{"ld.so --preload", ""},
		{"ld.so --what /bin/ls", "error"},
		{"ld.so -x /bin/ls", "error"},
		{"ld.so --list=1 /bin/ls", "error"},
	} {
		p, err := LoaderPayload(strings.Fields(c.argv))
		got := ""
		switch {
		case err != nil:
			got = "error"
		case p.Program != "":
			got = p.Program + ": " + strings.Join(p.Argv, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.argv, got, c.want)
		}
	}
}

// allPayloads follows the arguments of any built-in wrapper.
func allPayloads(argv []string) ([]Payload, error) {
	return payloads(wrapperName(argv[0]), argv, func(name string) bool {
		_, known := wrappers[name]
		return known
	})
}

func TestSplitString(t *testing.T) {
	for text, want := range map[string]string{
		`a b`: "a|b", ` a  b `: "a|b", `a\_b`: "a|b", `"a\_b" c`: "a b|c", `'a b'c`: "a bc", `a # c`: "a", `a\#b`: "a#b",
		`""`: "", `a "" b`: "a||b", `'a\'b'`: "a'b", `a\tb`: "a\tb", `a\cb`: "a", `${X}`: "error", `"$X"`: "error", `'$X'`: "$X",
		`'a`: "error", `a\`: "error",
	} {
		words, err := splitString(text)
		got := strings.Join(words, "|")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestShellCommands(t *testing.T) {
	list, err := ShellCommands("cd /x && git push \"--force\" 'a b' $REMOTE; (sudo rm -rf /)\nfor i in 1; do k\\ill $(pidof x); done")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		got = append(got, fmt.Sprintf("%d:%s", c.Line, strings.Join(c.Argv, "|")))
	}
	want := []string{"1:cd|/x", "1:git|push|--force|a b|$REMOTE", "1:sudo|rm|-rf|/", "2:kill|$(pidof x)", "2:pidof|x"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if k := list[1].Known; !k[3] || k[4] {
		t.Errorf("known words: %v", k)
	}
	for _, bad := range []string{"echo (", "if", strings.Repeat("(", 5000), strings.Repeat("x", MaxShellText+1), "a 'b"} {
		if _, err := ShellCommands(bad); err == nil {
			t.Errorf("%.20q parses", bad)
		}
	}
}

func TestEnvFilterAndLimitsAreTheStricterOfBoth(t *testing.T) {
	p := load(t, `
env_policy: {allow: ["AWS_*", PATH, "LC_*"], deny: [SECRET], max_bytes: 100, max_keys: 50}
resource_limits: {max_memory_mb: 100, pids_max: 10, command_timeout: 1m, memory_swap_max_mb: 0}
command_rules:
  - {name: a, commands: [a], decision: allow, env_allow: ["AWS_REGION", "P*", HOME, "*_ALL"], env_deny: [X], env_max_bytes: 200, env_max_keys: 5, limits: {max_memory_mb: 50, pids_max: 20, open_files: 3, memory_swap_max_mb: 5}, timeout: 30s}
  - {name: b, commands: [b], decision: allow}
  - {name: c, commands: [c], decision: allow, env_allow: []}
`)
	a, b, c := p.Rules(GroupCommand)[0], p.Rules(GroupCommand)[1], p.Rules(GroupCommand)[2]
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
	if f := only.EnvFilter(only.Rules(GroupCommand)[0]); fmt.Sprint(f.Allow) != "[Y]" || only.EnvFilter(nil).Allow != nil {
		t.Errorf("%+v", f)
	}
}

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
				if p.Severity != SeverityWarning || p.Pos.Line == 0 {
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
		t.Errorf("%v", Problems(got))
	}
}

func TestSchemaNamesEveryKeyThatLoads(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	properties := root["properties"].(map[string]any)
	for _, f := range fieldsOf(policyKeys) {
		_, there := properties[f.name]
		if there == (f.refused != "") {
			t.Errorf("%s: in the schema %v, refused %q", f.name, there, f.refused)
		}
		if there && f.doc == "" {
			t.Errorf("%s has no sentence", f.name)
		}
	}
	rule := properties["command_rules"].(map[string]any)["items"].(map[string]any)
	if rule["additionalProperties"] != false || !strings.Contains(fmt.Sprint(rule["required"]), "commands") {
		t.Errorf("%v", rule)
	}
}
