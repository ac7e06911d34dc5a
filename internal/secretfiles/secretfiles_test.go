package secretfiles_test

import (
	"os"
	"path/filepath"
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
	policies, err := filepath.Glob("../../packaging/policies/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var with []string
	for _, name := range policies {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found := lists.FindAllSubmatch(text, -1)
		if len(found) > 0 {
			with = append(with, filepath.Base(name))
		}
		for _, m := range found {
			got := strings.Split("."+strings.ReplaceAll(string(m[1]), ",", ",."), ",")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s has\n%q, not\n%q", name, got, want)
			}
		}
	}
	if all := []string{"agent-strict.yaml", "default.yaml", "observe.yaml"}; !slices.Equal(with, all) {
		t.Errorf("these policies have a list: %q, not %q", with, all)
	}
}
