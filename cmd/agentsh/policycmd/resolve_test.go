package policycmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

// TestExplainResolvesProgramsAsSessionsDo: links, chains of scripts and copies of
// denied programs.
func TestExplainResolvesProgramsAsSessionsDo(t *testing.T) {
	dir := t.TempDir()
	kill, err := os.ReadFile("/bin/kill")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"copy": string(kill), "script": "#!/bin/sh\n", "env": "#!/usr/bin/env kill\n", "chain": "#!" + dir + "/link\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/kill", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	text := "version: 1\nname: x\ncommand_rules:\n- {name: no, commands: [kill], decision: deny}\n- {name: rest, commands: ['*'], decision: allow}\n"
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]policy.Effect{
		"copy": policy.Deny, "link": policy.Deny, "chain": policy.Deny, "env": policy.Deny, "script": policy.Allow, "absent": policy.Allow,
	} {
		r := policytest.Command([]string{filepath.Join(dir, name)})
		r.Cwd = dir
		if missing := resolve(p, r); (missing != "") != (name == "absent") {
			t.Errorf("%s: missing is %q", name, missing)
		}
		if d, why := p.Evaluate(r); d.Effect != want {
			t.Errorf("%s is %s: %s %+v", name, d.Effect, why.Message, r)
		}
	}
}

// A log has the file of a script. Its interpreter is found as a session finds it.
func TestALogIsReadAsTheSessionRan(t *testing.T) {
	dir := t.TempDir()
	link, script := filepath.Join(dir, "link"), filepath.Join(dir, "script")
	if err := os.Symlink("/bin/kill", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!"+link+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"p.yaml": "version: 1\nname: x\ncommand_rules:\n" +
			"- {name: no, commands: [kill], decision: deny}\n- {name: rest, commands: ['*'], decision: allow}\n",
		"log.jsonl": `{"seq":1,"type":"exec","path":"` + script + `","argv":["` + script + `"],"decision":"allow"}
{"seq":2,"type":"exec","path":"` + script + `.gone","argv":["x"],"decision":"allow"}
`,
	}
	out, code := agentsh(t, tree(t, files), "policy", "replay", "-p", "p.yaml", "log.jsonl")
	if code != 1 || !strings.Contains(out, "event 1: ") || !strings.Contains(out, "2 requests evaluated, 1 decided otherwise") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	out, code = agentsh(t, tree(t, files), "policy", "learn", "log.jsonl")
	if code != 0 || !strings.Contains(out, "/script.gone', kill]") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// A case is about the program that a session would run. What the case says about it, and
// a program that is not here, stay as written.
func TestPolicyTestsAreAboutTheProgramsOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/kill\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"p.yaml": "version: 1\nname: x\ncommand_rules:\n" +
			"- {name: no, commands: [kill], decision: deny}\n- {name: rest, commands: ['*'], decision: allow}\n",
		"p_test.yaml": `policy: p.yaml
tests:
- {name: found, command: ['` + script + `'], expect: {decision: deny, rule: "no"}}
- {name: variable, variable: X, command: ['` + script + `'], expect: deny}
- {name: described, command: ['` + script + `'], chain: [/bin/sh], expect: allow}
- {name: absent, command: ['` + script + `.gone'], expect: allow}
- {name: wrong, command: ['` + script + `'], expect: allow}
`,
	}
	out, code := agentsh(t, tree(t, files), "policy", "test", "p.yaml")
	if code != 1 || !strings.Contains(out, "5 tests, 1 failed") ||
		!strings.Contains(out, "wrong: decision is deny by rule no at p.yaml:4:3, expected allow; here "+script+" is "+script+", run by /") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
