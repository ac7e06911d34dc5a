package policy_test

import "testing"
import (
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestTheNearestGitGuardDecides(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte("version: 1\nname: far\ngit_guard: true\n"), nil }
	for text, want := range map[string]bool{"": true, "git_guard: true\n": true, "git_guard: false\n": false} {
		p, err := syntax.Load(
			policy.Source{Name: "near.yaml", Data: []byte("version: 1\nname: near\nextends: [far.yaml]\n" + text)},
			syntax.Options{ReadFile: read},
		)
		if err != nil {
			t.Fatal(err)
		}
		on, at := p.GitGuard()
		if on != want || at.Line == 0 {
			t.Errorf("%q: %v at %v", text, on, at)
		}
		held := false
		for _, s := range p.Settings() {
			held = held || s.Key == "git_guard"
		}
		if held != want {
			t.Errorf("%q: a setting to hold: %v", text, held)
		}
	}
	if p := (&policy.Policy{}); func() bool { on, _ := p.GitGuard(); return on }() {
		t.Error("on without the key")
	}
	wrong := policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\ngit_guard: maybe\n")}
	if _, err := syntax.Load(wrong, syntax.Options{}); err == nil {
		t.Error("a value that is neither true nor false loads")
	}
}
