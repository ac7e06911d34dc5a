package testenv

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// letters are the flags with a letter, which are the same in both programs.
var letters = map[string]string{
	"o": "output", "f": "follow", "p": "policy", "w": "workspace", "e": "env", "s": "session", "t": "tty",
	"q": "quiet", "v": "verbose", "n": "limit",
	"h": "help",
}

// named matches the use of a command that takes the name of something that runs.
var named = regexp.MustCompile(`\b(RUN|SANDBOX|SESSION)\b`)

// Conventions checks the commands of a program: each that does something has an
// example, each letter is the flag that it is everywhere, and runs, sandboxes and sessions
// are completed.
func Conventions(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	for _, c := range cmd.Commands() {
		Conventions(t, c)
	}
	if !cmd.HasSubCommands() && cmd.Name() != "help" && cmd.Example == "" {
		t.Errorf("%s has no example", cmd.CommandPath())
	}
	if named.MatchString(cmd.Use) && cmd.ValidArgsFunction == nil {
		t.Errorf("%s does not complete its arguments", cmd.CommandPath())
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		version := f.Name == "version" && !cmd.HasParent() // cobra's
		if f.Shorthand != "" && letters[f.Shorthand] != f.Name && !version {
			t.Errorf("%s: -%s is --%s, elsewhere --%s", cmd.CommandPath(), f.Shorthand, f.Name, letters[f.Shorthand])
		}
	})
}
