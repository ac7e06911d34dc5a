package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/boxes"
	"agentsh/internal/channel"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// inSandbox connects to a sandbox for one thing to do.
func inSandbox(ctx context.Context, name string, do func(*channel.Client) error) error {
	client, _, err := attachTo(ctx, name)
	if err != nil {
		return err
	}
	if err := errors.Join(do(client), client.Close()); err != nil {
		failure := &output.Failure{Code: controller.ExitSandbox, Err: err}
		if errors.Is(err, fs.ErrNotExist) {
			failure.Hint = "'agentctl sandbox snapshot " + name + " --list' prints the numbers of those that there are"
		}
		return failure
	}
	return nil
}

func newSandboxSnapshotCommand() *cobra.Command {
	var name string
	var list, asJSON bool
	var forget []string
	cmd := &cobra.Command{
		Use:   "snapshot SANDBOX",
		Short: "Remember the files of a sandbox, to go back to them",
		Long: `Remember all files below /sandbox as they are, and print the number of the snapshot. Commands
in the sandbox wait meanwhile. 'agentctl sandbox rollback' goes back to it. A snapshot ends
with its sandbox: 'agentctl sandbox save' writes a file that others start from.`,
		Example: "  agentctl sandbox snapshot latest --name clean\n  agentctl sandbox snapshot latest --list",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inSandbox(cmd.Context(), args[0], func(client *channel.Client) error {
				h, out := boxes.History{Box: client}, cmd.OutOrStdout()
				switch {
				case list:
					all, err := h.List(cmd.Context())
					if err != nil {
						return err
					}
					if asJSON {
						return output.WriteJSON(out, append([]wire.Checkpoint{}, all...))
					}
					return printSnapshots(out, all)
				case len(forget) > 0:
					return h.Forget(cmd.Context(), forget...)
				}
				one, err := h.Create(cmd.Context(), name)
				if err != nil {
					return err
				}
				if asJSON {
					return output.WriteJSON(out, one)
				}
				_, err = fmt.Fprintln(out, one.ID)
				return err
			})
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "what it is called in the list")
	f.BoolVar(&list, "list", false, "list the snapshots instead, oldest first")
	f.StringArrayVar(&forget, "forget", nil, "forget the snapshot `ID` instead; may be given again")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("name", "list", "forget")
	cmd.MarkFlagsMutuallyExclusive("json", "forget")
	return cmd
}

// printSnapshots prints a table; without snapshots, nothing.
func printSnapshots(out io.Writer, list []wire.Checkpoint) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tMADE\tFILES\tBYTES\tNAME")
	for _, one := range list {
		name := text.Visible(one.Name)
		if one.Unfinished {
			name += " (a rollback to it was broken off: do it again)"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", text.Visible(one.ID), one.Time.Local().Format(time.DateTime), one.Files, one.Bytes, name)
	}
	return w.Flush()
}

func newSandboxRollbackCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rollback SANDBOX SNAPSHOT",
		Short: "Make the files of a sandbox what they were at a snapshot",
		Long: `Make all files below /sandbox what they were at a snapshot, and print what changed. What is
newer is removed. Commands that have files open keep the old ones.`,
		Example: "  agentctl sandbox rollback latest 1",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inSandbox(cmd.Context(), args[0], func(client *channel.Client) error {
				out := cmd.OutOrStdout()
				each := func(c boxes.Change) error {
					_, err := fmt.Fprintf(out, "%-8s  %s\n", c.Kind, text.Visible(string(c.Path)))
					return err
				}
				if !asJSON {
					return boxes.History{Box: client}.Rollback(cmd.Context(), args[1], each)
				}
				list := output.JSONList{W: out}
				err := boxes.History{Box: client}.Rollback(cmd.Context(), args[1], func(c boxes.Change) error { return list.Add(c) })
				if err == nil {
					err = list.End()
				}
				return err
			})
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list of what changed")
	return cmd
}

func newSandboxSaveCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "save SANDBOX FILE",
		Short: "Save the files of a sandbox, for other sandboxes to start from",
		Long: `Save the workspace and the home of a sandbox in a file of this machine, without what agentctl
delivers there. 'agentctl sandbox create --from FILE' puts them into a new sandbox, on any
backend. The file appears whole or not at all.`,
		Example: "  agentctl sandbox save latest ready.box",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inSandbox(cmd.Context(), args[0], func(client *channel.Client) error {
				state, err := settings.State()
				if err != nil {
					return err
				}
				size, err := boxes.Save(cmd.Context(), client, state, args[1])
				if err != nil || !asJSON {
					return err
				}
				return output.WriteJSON(cmd.OutOrStdout(), map[string]any{"file": args[1], "bytes": size})
			})
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
