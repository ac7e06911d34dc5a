package testenv

import (
	"regexp"
	"slices"
	"strings"
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

// completed are the flags whose values are completed.
var completed = []string{"output", "policy", "rule", "session"}

// Conventions checks the commands of a program: each that does something has an
// example with flags that it has, each letter is the flag that it is everywhere, and runs,
// sandboxes, sessions and rules are completed.
func Conventions(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	for _, c := range cmd.Commands() {
		Conventions(t, c)
	}
	if !cmd.HasSubCommands() && cmd.Name() != "help" && cmd.Example == "" {
		t.Errorf("%s has no example", cmd.CommandPath())
	}
	for line := range strings.Lines(cmd.Example) {
		example(t, cmd, line)
	}
	if named.MatchString(cmd.Use) && cmd.ValidArgsFunction == nil {
		t.Errorf("%s does not complete its arguments", cmd.CommandPath())
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		version := f.Name == "version" && !cmd.HasParent() // cobra's
		if f.Shorthand != "" && letters[f.Shorthand] != f.Name && !version {
			t.Errorf("%s: -%s is --%s, elsewhere --%s", cmd.CommandPath(), f.Shorthand, f.Name, letters[f.Shorthand])
		}
		if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok && f.NoOptDefVal == "" && slices.Contains(completed, f.Name) {
			t.Errorf("%s: the values of --%s are not completed", cmd.CommandPath(), f.Name)
		}
	})
}

// example checks a line of an example: it is a call of the command with flags that the
// command has.
func example(t *testing.T, cmd *cobra.Command, line string) {
	t.Helper()
	words := strings.Fields(line)
	at := slices.Index(words, cmd.Root().Name())
	if at < 0 {
		return // a step before or after the call
	}
	words = words[at+1:]
	if end := slices.IndexFunc(words, func(w string) bool { return slices.Contains([]string{"--", "|", ">", "&&", "#", "<"}, w) }); end >= 0 {
		words = words[:end]
	}
	called, _, err := cmd.Root().Find(words)
	if err != nil {
		t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
		return
	}
	for _, w := range words {
		name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
		long := strings.HasPrefix(w, "--")
		switch {
		case !strings.HasPrefix(w, "-") || name == "" || called.DisableFlagParsing:
		case long && called.Flag(name) == nil && name != "help", !long && called.Flags().ShorthandLookup(name[:1]) == nil:
			t.Errorf("%s: example %q: %s has no flag %s", cmd.CommandPath(), strings.TrimSpace(line), called.CommandPath(), w)
		}
	}
}
