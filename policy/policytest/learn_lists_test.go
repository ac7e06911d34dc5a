package policytest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestProgramsOfTheUserAreTheSameEverywhere: packs and learned policies have one list of them.
func TestProgramsOfTheUserAreTheSameEverywhere(t *testing.T) {
	i := slices.IndexFunc(surroundings, func(r learnedRule) bool { return r.Name == "user-programs" })
	if i < 0 {
		t.Fatal("learned policies have no rule user-programs")
	}
	var want strings.Builder
	for _, p := range surroundings[i].Paths {
		want.WriteString("      - '" + p + "'\n")
	}
	for _, pack := range []string{"default", "observe"} {
		text, err := os.ReadFile("../../packaging/policies/" + pack + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, rule, _ := strings.Cut(string(text), "  - name: user-programs\n")
		_, rule, _ = strings.Cut(rule, "    paths:\n")
		got, _, _ := strings.Cut(rule, "    operations:")
		if got != want.String() {
			t.Errorf("%s.yaml has\n%s, learned policies have\n%s", pack, got, want.String())
		}
	}
}
