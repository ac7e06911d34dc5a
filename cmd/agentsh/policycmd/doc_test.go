package policycmd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/shell"

	"agentsh/internal/testenv"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

const policyPage = "../../../doc/policy.md"

// TestExamplesOfTheReference loads every policy of the page, runs its cases
// and the command lines below it.
func TestExamplesOfTheReference(t *testing.T) {
	page, err := filepath.Abs(policyPage)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ran := map[string]int{}
	for _, b := range testenv.Blocks(t, page) {
		at := fmt.Sprintf("doc/policy.md:%d", b.Line)
		switch {
		case b.Kind == "console":
			ran["console"]++
			runConsole(t, at, dir, b.Text)
		case strings.HasPrefix(b.Text, "tests:"):
			ran["tests"]++
			write(t, filepath.Join(dir, "policy_test.yaml"), "policy: policy.yaml\n"+b.Text)
			if out, code := agentsh(t, dir, "policy", "test", "policy_test.yaml"); code != 0 {
				t.Errorf("%s: exit code %d\n%s", at, code, out)
			}
		default:
			ran["policy"]++
			keepLast(t, dir)
			write(t, filepath.Join(dir, "policy.yaml"), b.Text)
			p, err := loadPolicy(filepath.Join(dir, "policy.yaml"), policytest.Vars())
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			write(t, filepath.Join(dir, p.Name()+".yaml"), b.Text) // what extends names
		}
	}
	if ran["policy"] < 25 || ran["tests"] < 20 || ran["console"] < 3 {
		t.Errorf("ran %v: the page was not read", ran)
	}
}

// keepLast gives the policy before this one the name the page compares with.
func keepLast(t *testing.T, dir string) {
	t.Helper()
	if data, err := os.ReadFile(filepath.Join(dir, "policy.yaml")); err == nil {
		write(t, filepath.Join(dir, "before.yaml"), string(data))
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runConsole runs the lines after "$ agentsh" and looks for the lines below
// each in what it prints, in their order.
func runConsole(t *testing.T, at, dir, text string) {
	t.Helper()
	rest := ""
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if command, ok := strings.CutPrefix(l, "$ agentsh "); ok {
			words, err := shell.Fields(command, func(string) string { return "" })
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			rest, _ = agentsh(t, dir, words...)
			continue
		}
		_, after, found := strings.Cut(rest, l+"\n")
		if !found {
			t.Errorf("%s: %q is not printed, what is left is\n%s", at, l, rest)
		}
		rest = after
	}
}

// TestTheReferenceShowsEveryKey: a key of the language that no example uses is
// not documented.
func TestTheReferenceShowsEveryKey(t *testing.T) {
	var text strings.Builder
	for _, b := range testenv.Blocks(t, policyPage) {
		text.WriteString(b.Text)
	}
	data, err := syntax.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	seen := 0
	walkSchema(schema, func(key string) {
		seen++
		if !strings.Contains(text.String(), key+":") && key != "description" && key != "fallback" {
			t.Errorf("no example has %s", key)
		}
	})
	if seen < 80 {
		t.Errorf("the schema has only %d keys", seen)
	}
}

func walkSchema(node any, key func(string)) {
	switch n := node.(type) {
	case map[string]any:
		if properties, ok := n["properties"].(map[string]any); ok {
			for name := range properties {
				key(name)
			}
		}
		for _, v := range n {
			walkSchema(v, key)
		}
	case []any:
		for _, v := range n {
			walkSchema(v, key)
		}
	}
}

// TestPoliciesThatASessionCannotEnforceAreRefused: the page says so of these keys.
func TestPoliciesThatASessionCannotEnforceAreRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	const base = "version: 1\nname: x\nfile_rules: [{name: w, paths: ['${WORKSPACE}/**', '/tmp/**'], operations: ['*'], decision: allow}]\n"
	tests := []struct{ key, text string }{
		{"signal_rules.fallback", "signal_rules: [{name: s, signals: [KILL], target: {type: children}, decision: deny, fallback: audit}]\n"},
		{"audit.include_stdout", "audit: {include_stdout: true}\n"},
		{"audit.retention_days", "audit: {retention_days: 30}\n"},
		{"network_rules.protocols.udp", "network_rules: [{name: n, domains: [a.example], protocols: [tcp, udp], decision: allow}]\n"},
		{"network_rules.protocols.udp", "network_rules: [{name: n, domains: ['*'], protocols: [udp], decision: approve}]\n"},
		{"unix_socket_rules.operations.listen", "unix_socket_rules: [{name: u, paths: [/tmp/a], operations: [bind, listen], decision: deny}]\n"},
		{"resource_limits.disk_write_mb", "resource_limits: {disk_write_mb: 100}\n"},
	}
	for _, tt := range tests {
		t.Run(tt.key, func(t *testing.T) {
			p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(base + tt.text)}, syntax.Options{Vars: policytest.Vars()})
			if err != nil {
				t.Fatal(err)
			}
			s, err := openScratch(t.Context(), p, nil)
			if err == nil {
				err = s.Close()
				t.Errorf("a session started (closed: %v)", err)
				return
			}
			if !strings.Contains(err.Error(), tt.key) || !strings.Contains(err.Error(), "p.yaml:4:") {
				t.Errorf("error is %v, want %s and its line", err, tt.key)
			}
		})
	}
}
