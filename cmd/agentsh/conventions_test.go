package main

import (
	"testing"

	"github.com/spf13/cobra"

	"agentsh/internal/testenv"
)

// TestCommandsFollowTheConventions: each command that does something has an
// example, and a letter is the same flag in both programs.
func TestCommandsFollowTheConventions(t *testing.T) { testenv.Conventions(t, newRoot()) }

// TestEveryFlagOfAPolicyTakesAName: -p agent-sandbox means the same everywhere.
func TestEveryFlagOfAPolicyTakesAName(t *testing.T) {
	found := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if f := cmd.LocalFlags().Lookup("policy"); f != nil {
			found++
			if f.Value.Type() != "policy" || f.Shorthand != "p" {
				t.Errorf("%s: the flag --policy is not that of discovery.PolicyFlag", cmd.CommandPath())
			}
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot())
	if found < 10 {
		t.Errorf("only %d commands have the flag", found)
	}
}

func TestCommandsHaveTheirNames(t *testing.T) {
	for _, c := range commands {
		if made := c.make(); made.Name() != c.name || len(made.Aliases) > 0 {
			t.Errorf("%s makes %s, also called %q", c.name, made.Name(), made.Aliases)
		}
		alone, _, err := newRootFor([]string{c.name, "x"}).Find([]string{c.name})
		whole, _, errWhole := newRoot().Find([]string{c.name})
		if err != nil || errWhole != nil || alone.CommandPath() != whole.CommandPath() || alone.UsageString() != whole.UsageString() {
			t.Errorf("%s made alone: %v, %v\n%s\nwith all:\n%s", c.name, err, errWhole, alone.UsageString(), whole.UsageString())
		}
	}
}
