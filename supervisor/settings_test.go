package supervisor

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy/syntax"
	"agentsh/supervisor/notify/listener"
	"agentsh/supervisor/notify/tracer"
	"agentsh/supervisor/probe"
)

// settingsBase has rules about whole trees alone, which every session can hold. A setting
// replaces its comments.
const settingsBase = `version: 1
name: settings
command_rules:
  #command
  - {name: rest, commands: [bash, 'true', '#rest'], decision: allow}
file_rules:
  #file
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', '${HOME}', '${HOME}/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/{usr,bin,lib,lib64}/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
`

// setting is what a policy has for a row of the table, and what shows that it is held.
type setting struct {
	policy string // lines of settingsBase: "command" and "file" begin rules
	first  string // the words of a first program that is denied; empty: not tried
	nested string // a shell command that fails where the setting is held; empty: not tried
}

// settings are by the begin of their row in doc/detect.md.
var settings = map[string]setting{
	"`version`": {first: "id", policy: `description: text
command {name: id, commands: [id], decision: deny, message: no, description: text, accept_warnings: [reachable]}`},
	"`defaults.*`": {first: "id", nested: "/usr/bin/id", policy: "defaults: {command: deny, signal: deny}"},
	"`command_rules.commands`": {first: "id -u", nested: "/usr/bin/id -u",
		policy: "command {name: id, commands: [id], args: ['-u'], decision: deny}"},
	"`command_rules.decision: approve`": {first: "id", policy: `approvals: {via: channel}
command {name: id, commands: [id], decision: approve, timeout: 1s}`},
	"`command_rules.redirect_to.*`": {nested: "/usr/bin/id",
		policy: "command {name: id, commands: [id], decision: redirect, redirect_to: {command: 'false'}}"},
	"`command_rules.env_*`": {nested: "printenv PASSED", policy: `env_policy: {allow: [PASSED], max_keys: 100}
command {name: bash, commands: [bash], decision: allow, env_deny: [PASSED]}`},
	"`command_rules.limits.*`": {nested: "sh -c '[ $(ulimit -n) -ne 100 ]'",
		policy: "command {name: bash, commands: [bash], decision: allow, limits: {open_files: 100, command_timeout: 1m}}"},
	"`transparent_commands.*`": {first: "nice id", policy: `transparent_commands: {add: [nice]}
command {name: id, commands: [id], decision: deny}`},
	"`env_inject`":       {nested: `sh -c '[ "$A" != b ]'`, policy: "env_inject: {A: b}"},
	"`exec_from`":        {nested: "cp /usr/bin/true x && ./x", policy: "exec_from: [/usr, /bin, /lib, /lib64]"},
	"`file_rules.paths`": {nested: "cat /etc/passwd", policy: "file {name: passwd, paths: [/etc/passwd], operations: ['*'], decision: deny}"},
	"the same, that differ in a tree that commands can write": {nested: "touch x",
		policy: "file {name: inside, paths: ['${WORKSPACE}/x'], operations: [write, create, delete], decision: deny}"},
	"the same, about reading files below /proc": {nested: "cat /proc/self/environ",
		policy: "file {name: variables, paths: ['/proc/*/environ'], operations: [read, write], decision: deny}"},
	"`file_rules.decision: approve`": {nested: "touch x", policy: `approvals: {via: channel}
file {name: asked, paths: ['${WORKSPACE}/x'], operations: [write, create], decision: approve, timeout: 1s}`},
	"`file_rules.redirect_to`": {policy: `file {name: other, paths: ['${WORKSPACE}/x/**'], operations: [write, create], ` +
		`decision: redirect, redirect_to: '${WORKSPACE}/y', preserve_tree: true}`},
	"`file_rules.decision: soft_delete`": {
		policy: "file {name: kept, paths: ['${WORKSPACE}/x'], operations: [delete], decision: soft_delete}"},
	"`git_guard`":       {policy: "git_guard: true"},
	"`ssh.*`":           {policy: "ssh: {sessions: true, forwarding: true}"},
	"`network_rules.*`": {policy: "network_rules: [{name: one, domains: [allowed.test], ports: [443], decision: allow}]"},
	"`signal_rules.*`": {nested: "sh -c 'sleep 1000 & kill -CONT $!'",
		policy: "signal_rules: [{name: own, signals: ['@all'], target: {type: session}, decision: deny}]"},
	"`unix_socket_rules.*`": {policy: "unix_socket_rules: [{name: one, paths: [/tmp/one], operations: ['*'], decision: allow}]"},
	"`resource_limits.open_files`": {nested: "sh -c '[ $(ulimit -n) -ne 100 ]'",
		policy: "resource_limits: {open_files: 100, pids_max: 1000, command_timeout: 1m, session_timeout: 1h, idle_timeout: 1h}"},
	"`resource_limits.max_memory_mb`":      {policy: "resource_limits: {max_memory_mb: 1000, cpu_quota_percent: 50}"},
	"`resource_limits.net_bandwidth_mbps`": {policy: "resource_limits: {net_bandwidth_mbps: 10}"},
	"`resource_limits.disk_*`":             {policy: "resource_limits: {disk_write_mb: 10}"},
	"`audit.log_denied`":                   {policy: "audit: {retention_days: 3}"},
	"`audit.log_allowed`":                  {policy: "audit: {log_allowed: true, redact: true}"},
}

// text is the policy of a setting.
func (s setting) text() string {
	out := settingsBase
	for line := range strings.SplitSeq(s.policy, "\n") {
		section, rule, _ := strings.Cut(line, " ")
		if section == "command" || section == "file" {
			out = strings.Replace(out, "#"+section, "- "+rule, 1)
		} else {
			out += line + "\n"
		}
	}
	if !strings.Contains(s.policy, "defaults:") {
		out = strings.Replace(out, "#rest", "*", 1)
	}
	return out
}

// settingOf returns the setting for a row.
func settingOf(row string) setting {
	for begin, s := range settings {
		if strings.HasPrefix(row, begin) {
			return s
		}
	}
	return setting{}
}

// settingsTable returns the rows of the table in doc/detect.md: for each row the cells of the
// three engines.
func settingsTable(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile("../doc/detect.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), "\n### Settings of a policy under each engine\n")
	table, _, _ := strings.Cut(after, "\n#")
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 || strings.HasPrefix(cells[0], "---") || strings.Contains(cells[0], "setting") {
			continue
		}
		rows[strings.TrimSpace(cells[0])] = []string{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
	}
	return rows
}

// schemaKeys returns the keys of policies to the depth of the table.
func schemaKeys(t *testing.T) []string {
	t.Helper()
	type node struct {
		Ref        string           `json:"$ref"`
		Defs       map[string]*node `json:"$defs"`
		Properties map[string]*node `json:"properties"`
		Items      *node            `json:"items"`
	}
	var root node
	schema, err := syntax.Schema()
	if err == nil {
		err = json.Unmarshal(schema, &root)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	var walk func(n *node, name string)
	walk = func(n *node, name string) {
		for n.Ref != "" {
			n = root.Defs[path.Base(n.Ref)]
		}
		if n.Items != nil {
			walk(n.Items, name)
		}
		for key, value := range n.Properties {
			key = strings.TrimPrefix(name+"."+key, ".")
			before := len(out)
			walk(value, key)
			if len(out) == before {
				out = append(out, key)
			}
		}
	}
	walk(&root, "")
	return out
}

// Every key of a policy stands in one row of the table.
func TestEachKeyOfAPolicyIsInTheTableOfEngines(t *testing.T) {
	rows := settingsTable(t)
	texts := []string{".name", ".description", ".message", ".accept_warnings"} // of every group of rules
	quoted := regexp.MustCompile("`([^`:]*)(: [a-z_]*)?`")
	keys := schemaKeys(t)
	if len(keys) < 50 || len(rows) < 20 {
		t.Fatalf("%d keys, %d rows", len(keys), len(rows))
	}
	for _, key := range keys {
		found := 0
		for row := range rows {
			for _, m := range quoted.FindAllStringSubmatch(row, -1) {
				ok, _ := path.Match(m[1], key)
				if ok && m[2] == "" && (!strings.HasSuffix(m[1], ".*") || !slices.Contains(texts, path.Ext(key))) {
					found++
				}
			}
		}
		if found != 1 {
			t.Errorf("%s stands in %d rows of the table", key, found)
		}
	}
}

// A session under each engine opens with the settings of a row and holds them, or is rejected
// with file and line, as the table says.
func TestTheTableOfSettingsUnderEachEngine(t *testing.T) {
	engines := []string{listener.Name, tracer.Name}
	if testenv.Outer() == NoEngine {
		engines = []string{NoEngine} // below a supervisor that forbids the others
	} else {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock, enforcedByGroups)
		testenv.Below(t, t.Name(), "whole", NoEngine, "OUTER_UID=60600", "HOME=/nonexistent")
	}
	rows := settingsTable(t)
	for row, cells := range rows {
		setting := settingOf(row)
		if setting.policy == "" {
			t.Errorf("no policy for the row %s", row)
			continue
		}
		for _, engine := range engines {
			cell := cells[slices.Index([]string{listener.Name, tracer.Name, NoEngine}, engine)]
			t.Run(engine+" "+row, func(t *testing.T) { setting.check(t, engine, cell) })
		}
	}
	if len(rows) != len(settings) {
		t.Errorf("%d rows, %d policies", len(rows), len(settings))
	}
	t.Log("held: " + NoEngine)
}

// check opens a session with the setting and an engine, of which the table says what is in cell.
func (s setting) check(t *testing.T, engine, cell string) {
	cfg, _ := wholeConfig(t, s.text())
	cfg.Files.Store = filepath.Join(t.TempDir(), "keep")
	switch engine {
	case listener.Name:
		cfg.Forbidden = []probe.Setting{{Name: tracer.Name, At: "c.yaml:1:1"}}
	case tracer.Name:
		cfg.Forbidden = []probe.Setting{{Name: listener.Name, At: "c.yaml:1:1"}}
	default:
		cfg.Degraded = []probe.Setting{{Name: probe.NestedCommands, At: "c.yaml:1:1"}}
	}
	rejected := strings.HasPrefix(cell, "rejected") || strings.Contains(cell, "control group that") && probe.Try("cgroup") != nil
	session, err := Open(t.Context(), cfg)
	if err != nil {
		if positioned := regexp.MustCompile(`\btest\.yaml:\d+:\d+: `).MatchString(err.Error()); !rejected || !positioned {
			t.Errorf("the table says %q: %v", cell, err)
		}
		return
	}
	b := &box{Session: session, workspace: cfg.Cwd}
	if rejected || b.Engine() != engine {
		t.Errorf("the table says %q: a session opens with the engine %s", cell, b.Engine())
	}
	if engine != listener.Name { // with the listener all tests of settings run
		s.checkHeld(t, b, cell)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// checkHeld tries what the setting denies, first by itself and then by a shell.
func (s setting) checkHeld(t *testing.T, b *box, cell string) {
	if s.first != "" {
		if exit, out := b.run(t, strings.Fields(s.first)...); exit.Kind != wire.ExitDenied {
			t.Errorf("the table says %q: %s: %+v %s", cell, s.first, exit, out)
		}
	}
	if s.nested == "" {
		return
	}
	want := "held\n"
	if strings.Contains(cell, "advisory") || strings.HasSuffix(cell, "first program of a command") {
		want = "advisory\n"
	}
	exit, out := b.request(t, wire.ExecRequest{ID: t.Name(), Env: []string{"PASSED=1"},
		Argv: []string{"bash", "-c", "if " + s.nested + "; then echo advisory; else echo held; fi 2>/dev/null"}})
	if !strings.HasSuffix(out, want) {
		t.Errorf("the table says %q: %s: %+v %s", cell, s.nested, exit, out)
	}
}
