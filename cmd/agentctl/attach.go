package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/record"
)

func newAttachCommand() *cobra.Command {
	var asJSON bool
	var own settings.Run // its flags
	cmd := &cobra.Command{
		Use:   "attach RUN",
		Short: "End a run whose agentctl was killed",
		Long: `attach takes the place of an agentctl that was killed while the sandbox of its
run goes on: on another machine, in a container, or here with --keep-sandbox. It ends the run as Ctrl-C would have: it stops
the agent, delivers the work done so far and deletes the sandbox. The work of an
agent that had ended is delivered as if nothing had happened.

The sandbox goes on for as long as --lease or --keep-sandbox of the run says. Without
--keep-sandbox, another 'agentctl run' or 'agentctl gc' of this user removes it. attach uses the files and
flags that the run was started with, and the variables of its own environment.

Runs of the backend local without --keep-sandbox, and of 'agentctl mcp', cannot be
taken over.`,
		Example:           "  agentctl attach latest",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteRuns(func(r record.Run) bool { return r.Status == record.StatusAbandoned && len(r.Command) > 0 }),
		RunE: func(cmd *cobra.Command, args []string) error {
			return takeOver(cmd, args[0], asJSON, own.Space)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one result object on standard output, and nothing else there")
	own.AddSpace(cmd)
	return cmd
}

// takeOver ends a run with the options that it was started with.
func takeOver(this *cobra.Command, name string, asJSON bool, space time.Duration) error {
	one, err := settings.FindRun(name)
	if err != nil {
		return err
	}
	if len(one.Command) == 0 {
		return &output.Failure{
			Code: controller.ExitSandbox, Err: fmt.Errorf("run %s was not started by 'agentctl run': nobody can take it over", one.RunID),
			Hint: "'agentctl gc' removes what is left of it",
		}
	}
	var f settings.Run
	cmd := runCommand(&f)
	if err := cmd.ParseFlags(one.Command); err != nil {
		return fmt.Errorf("command line of run %s: %w", one.RunID, err)
	}
	args := f.KeepFor(cmd, cmd.Flags().Args())
	if len(args) != 1 {
		return fmt.Errorf("command line of run %s: no harness file", one.RunID)
	}
	if err := os.Chdir(one.Dir); err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("directory of run %s: %w", one.RunID, err)}
	}
	if this.Flags().Changed("wait-for-space") {
		f.Space = space
	}
	o, err := f.Options(args[0])
	if err != nil {
		return err
	}
	f.JSON = asJSON
	take := func(ctx context.Context, o controller.Options) (controller.Result, error) {
		return controller.TakeOver(ctx, o, one.RunID)
	}
	return f.Finish(this.Context(), o, this.OutOrStdout(), this.ErrOrStderr(), take)
}
