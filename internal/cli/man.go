package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewMan returns the man command. It prints the manual pages of all commands of
// the program.
func NewMan(program string) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [--dir DIR] [COMMAND ...]",
		Short: "Print the manual page of a command",
		Long: `Print the manual page of a command. A terminal shows it in a pager, by man(1).
Elsewhere it is printed in the language of man(7).

With --dir the pages of all commands are written as files into a directory, as
` + program + `.1 and ` + program + `-COMMAND.1. The pages say what --help says.`,
		Example: "  " + program + " man\n  " + program + " man --dir /usr/local/share/man/man1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.InitDefaultHelpCmd() // also when this command was reached without it
			if dir != "" {
				if len(args) > 0 {
					return errors.New("--dir writes the pages of all commands: name none")
				}
				return writePages(root, dir)
			}
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("no command %q", strings.Join(args, " "))
			}
			return show(cmd.OutOrStdout(), page(of))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write the pages of all commands into `DIR`")
	return cmd
}

// writePages writes a page for cmd and every command below it.
func writePages(cmd *cobra.Command, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, pageName(cmd)+".1"), []byte(page(cmd)), 0o644); err != nil {
		return err
	}
	for _, c := range shown(cmd) {
		if err := writePages(c, dir); err != nil {
			return err
		}
	}
	return nil
}

// shown lists the commands below cmd that have a page.
func shown(cmd *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() && c.Name() != "help" {
			out = append(out, c)
		}
	}
	return out
}

func pageName(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

// page returns the manual page of a command in the language of man(7).
func page(cmd *cobra.Command) string {
	cmd.InitDefaultHelpFlag()
	name := pageName(cmd)
	var b strings.Builder
	// No date: a page says the same whenever it is made.
	fmt.Fprintf(&b, ".TH %q 1 \"\" \"agentsh %s\" \"agentsh manual\"\n", strings.ToUpper(name), roff(cmd.Root().Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(lowerFirst(cmd.Short)))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n\\fB%s\\fR\n", roff(synopsis(cmd)))
	for _, c := range shown(cmd) {
		fmt.Fprintf(&b, "\\fB%s\\fR\n", roff(synopsis(c)))
	}
	b.WriteString(".fi\n.SH DESCRIPTION\n")
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	prose(&b, long)
	flags(&b, "OPTIONS", cmd.NonInheritedFlags())
	flags(&b, "OPTIONS OF THE COMMANDS ABOVE", cmd.InheritedFlags())
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, strings.Split(strings.Trim(cmd.Example, "\n"), "\n"))
	}
	seeAlso(&b, cmd)
	return b.String()
}

// synopsis returns the usage line without the "[flags]" that cobra appends.
func synopsis(cmd *cobra.Command) string {
	return strings.TrimSuffix(cmd.UseLine(), " [flags]")
}

func seeAlso(b *strings.Builder, cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
	}
	for _, c := range shown(cmd) {
		names = append(names, pageName(c))
	}
	if len(names) == 0 {
		return
	}
	b.WriteString(".SH SEE ALSO\n")
	for i, n := range names {
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		fmt.Fprintf(b, ".BR %s (1)%s\n", roff(n), comma)
	}
}

func flags(b *strings.Builder, title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		names := "\\fB\\-\\-" + roff(f.Name) + "\\fR"
		if f.Shorthand != "" {
			names = "\\fB\\-" + roff(f.Shorthand) + "\\fR, " + names
		}
		if value != "" {
			names += " \\fI" + roff(value) + "\\fR"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", names, roff(usage))
	})
}

// prose writes paragraphs. Indented lines are written unchanged.
func prose(b *strings.Builder, text string) {
	for _, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		b.WriteString(".PP\n")
		for len(lines) > 0 {
			indented := strings.HasPrefix(lines[0], " ")
			end := 1
			for end < len(lines) && strings.HasPrefix(lines[end], " ") == indented {
				end++
			}
			if indented {
				verbatim(b, lines[:end])
			} else {
				fmt.Fprintln(b, roff(strings.Join(lines[:end], "\n")))
			}
			lines = lines[end:]
		}
	}
}

func verbatim(b *strings.Builder, lines []string) {
	fmt.Fprintf(b, ".nf\n%s\n.fi\n", roff(strings.Join(lines, "\n")))
}

// roff escapes text for groff(7), see ESCAPES there. A line that begins with a
// dot would be a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
