package syntax

import (
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

// load loads the rules of a test under a header.
func load(t testing.TB, body string) *policy.Policy {
	t.Helper()
	p, err := Load(policy.Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + body)}, Options{Vars: fixture.Vars})
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return p
}

// problems are the complaints about a file with the header.
func problems(t testing.TB, body string) string {
	t.Helper()
	_, err := Load(policy.Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + body)}, Options{Vars: fixture.Vars})
	if err == nil {
		t.Fatalf("loads:\n%s", body)
	}
	return err.Error()
}
