package secretfiles_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/secretfiles"
)

// TestThePoliciesHaveTheSameNames: each list of a home's files in a shipped policy has these
// names, with .env and .envrc.
func TestThePoliciesHaveTheSameNames(t *testing.T) {
	want := []string{".env", ".envrc"}
	want = append(want, secretfiles.Names...)
	slices.Sort(want)
	lists := regexp.MustCompile(`'\$\{WORKSPACE_HOME:-/nonexistent\}/\.\{(netrc,[^}]*)\}'`)
	for _, name := range []string{"default.yaml", "agent-strict.yaml"} {
		text, err := os.ReadFile("../../packaging/policies/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found := lists.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s has no list", name)
		}
		for _, m := range found {
			got := strings.Split("."+strings.ReplaceAll(string(m[1]), ",", ",."), ",")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s has\n%q, not\n%q", name, got, want)
			}
		}
	}
}
