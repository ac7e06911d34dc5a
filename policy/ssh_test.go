package policy_test

import (
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestNobodyEntersBySSHUnlessThePolicySaysSo(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte("version: 1\nname: far\nssh: {sessions: true}\n"), nil }
	for text, want := range map[string][2]bool{
		"":                          {false, false},
		"ssh: {}\n":                 {false, false},
		"ssh: {sessions: true}\n":   {true, false},
		"ssh: {forwarding: true}\n": {false, true},
		"extends: [far.yaml]\n":     {true, false},
		"extends: [far.yaml]\nssh: {sessions: false, forwarding: true}\n": {false, true},
	} {
		p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\n" + text)}, syntax.Options{ReadFile: read})
		if err != nil {
			t.Fatal(err)
		}
		for i, via := range []string{wire.ViaSSH, wire.ViaForward} {
			permitted, why := p.SSH().Permits(via)
			if permitted != want[i] {
				t.Errorf("%q: %s: %v", text, via, permitted)
			}
			if !permitted && (!strings.Contains(why.Hint, ": true}") || !strings.HasPrefix(why.Rule, "ssh.")) {
				t.Errorf("%q: %s: %+v", text, via, why)
			}
		}
		if permitted, _ := p.SSH().Permits(""); !permitted {
			t.Errorf("%q: other commands are refused", text)
		}
		if permitted, _ := p.SSH().Permits("telnet"); permitted {
			t.Errorf("%q: an unknown way is permitted", text)
		}
	}
}
