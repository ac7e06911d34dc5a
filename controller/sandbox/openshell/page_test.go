package openshell

import (
	"os"
	"slices"
	"strings"
	"testing"

	"agentsh/controller/openshell"
)

// TestThePolicyOfThePageHoldsAgentsh: what agentsh needs is in openshell.yaml of doc/platforms/openshell.md.
func TestThePolicyOfThePageHoldsAgentsh(t *testing.T) {
	page, err := os.ReadFile("../../../doc/platforms/openshell.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\nversion: 1\nfilesystem_policy:")
	text, _, found := strings.Cut(text, "```")
	if !found {
		t.Fatal("the page has no policy")
	}
	p, problems := openshell.ReadPolicy("openshell.yaml", []byte("version: 1\nfilesystem_policy:"+text))
	if p == nil {
		t.Fatal(problems)
	}
	for _, name := range ownWrites {
		if !slices.Contains(p.ReadWrite, name) {
			t.Errorf("%s is not written", name)
		}
	}
	for _, name := range ownReads {
		if !slices.Contains(p.ReadOnly, name) {
			t.Errorf("%s is not read", name)
		}
	}
}
