package sandboxcmd

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/boxes"
	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

func newSandboxCpCommand() *cobra.Command {
	var git, asJSON bool
	cmd := &cobra.Command{
		Use:   "cp {SANDBOX:SRC DST | SRC SANDBOX:DST}",
		Short: "Copy files out of a sandbox or into it",
		Long: `Copy a file or a directory with all below it out of a sandbox or into it.

Paths in the sandbox are below /sandbox; a relative one starts in the repository.

When DST is a directory, the copy is made in it under the name of SRC; otherwise it is
DST, whose directory must exist. A file replaces a file; nothing replaces or merges
with a directory on this machine.

A copy out has at most 200,000 files, 24 MiB of names and 16 GiB.

Files, directories and links that stay within what is copied travel; devices, sockets,
fifos and links that lead out do not, and are named. Set-user-id bits and owners never
travel. What comes out appears whole or not at all. A .git is left out: the agent wrote
it, and git runs what it names.

What is copied in counts among the agent's changes when its work is taken out.`,
		Example: "  agentctl sandbox cp latest:go.mod .\n" +
			"  agentctl sandbox cp latest:/sandbox/workspace/output/report.txt .\n  agentctl sandbox cp fix.patch " +
			"latest:/sandbox/workspace/",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, out := splitSandbox(args[0])
			to, in := splitSandbox(args[1])
			if (from == "") == (to == "") {
				return &output.Failure{
					Code: controller.ExitConfiguration,
					Err:  errors.New("one of the two is SANDBOX:PATH"),
					Hint: "a file whose name has a colon is ./NAME",
				}
			}
			state, err := settings.State()
			if err != nil {
				return err
			}
			client, one, err := attachTo(cmd.Context(), from+to)
			if err != nil {
				return err
			}
			c := &boxes.Copier{Box: client, State: state, Git: git}
			if from != "" {
				err = c.Out(cmd.Context(), inRepository(one.Workdir, out), args[1])
			} else {
				err = c.In(cmd.Context(), args[0], inRepository(one.Workdir, in))
			}
			if err == nil && asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), map[string]any{"skipped": append([]string{}, c.Skipped...)})
			}
			for _, s := range c.Skipped {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentctl: left out: %s\n", text.Visible(s))
			}
			if err == nil && len(c.Skipped) > 0 {
				err = fmt.Errorf("%d of the files could not travel", len(c.Skipped))
			}
			if err = errors.Join(err, client.Close()); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err, Hint: hintOfCp(err)}
			}
			return nil
		},
		ValidArgsFunction: completeCp,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object with the files that did not travel")
	cmd.Flags().BoolVar(&git, "git", false, "copy .git too; run no git in a copy of an agent's")
	return cmd
}

// splitSandbox splits SANDBOX:PATH. Without a sandbox it is a path of this
// machine.
func splitSandbox(arg string) (sandbox, name string) {
	sandbox, name, ok := strings.Cut(arg, ":")
	if !ok || sandbox == "" || strings.Contains(sandbox, "/") {
		return "", arg
	}
	return sandbox, name
}

// inRepository makes a path of a sandbox absolute. A relative one starts in the
// repository; a slash at its end remains.
func inRepository(repository, name string) string {
	if path.IsAbs(name) || repository == "" {
		return name
	}
	abs := path.Join(repository, name)
	if strings.HasSuffix(name, "/") {
		abs += "/"
	}
	return abs
}

// hintOfCp says what to do about a path that a sandbox does not copy.
func hintOfCp(err error) string {
	if outside := (*wire.Error)(nil); errors.As(err, &outside) && outside.Code == wire.CodeOutside {
		return "files are copied below " + layout.Sandbox + " only; 'agentctl sandbox exec SANDBOX -- cat FILE' prints others"
	}
	return ""
}

// completeCp completes files, and sandboxes followed by a colon.
func completeCp(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.ContainsAny(word, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := settings.CompleteRuns(settings.HasSandbox)(cmd, nil, word)
	for i := range names {
		name, about, _ := strings.Cut(names[i], "\t")
		names[i] = cobra.CompletionWithDesc(name+":", about)
	}
	return names, cobra.ShellCompDirectiveNoSpace
}
