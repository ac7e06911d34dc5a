package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/provider"
	"agentsh/internal/text"
)

func newGCCommand() *cobra.Command {
	var asJSON, dryRun bool
	var place settings.Placement
	days := int(controller.RecordAge / (24 * time.Hour))
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what killed runs left behind, and old records",
		Long: `gc removes sandboxes with their processes, files and unpublished results of
runs whose agentctl was killed, temporary files of other commands that were killed, and
the records of runs that ended long ago. It also removes extracted images that were not used for that long, and for at least 25 hours.
Runs that are going on are not touched, and neither are results and their images. A
run does the same when it starts, except for images.

The audit log of a sandbox that is removed stays with the record of its run.

With --backend and --connect of a run, gc also asks the place of its sandbox, and
removes there what this user's runs left.`,
		Example: "  agentctl gc --dry-run --runs-older-than 7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 0 || days > maxDays {
				return fmt.Errorf("--runs-older-than %d: a number of days", days)
			}
			place.Look = true
			state, backend, err := place.OpenState("", "")
			if err != nil {
				return err
			}
			found, failed := controller.Collect(cmd.Context(), state, backend, controller.CollectOptions{
				RunsOlderThan: time.Duration(days) * 24 * time.Hour, Images: settings.ImageCache(), DryRun: dryRun,
			})
			if gateway, err := settings.GatewayDir(); err == nil && !dryRun {
				failed = errors.Join(failed, provider.CleanLocal(cmd.Context(), gateway))
			}
			if asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), append([]controller.Collected{}, found...))
			} else {
				err = printCollected(cmd.OutOrStdout(), found, dryRun)
			}
			if err != nil {
				return err
			}
			if failed != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: failed}
			}
			return nil
		},
	}
	place.Add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "remove nothing, and print what would be removed")
	cmd.Flags().IntVar(&days, "runs-older-than", days,
		"remove records of runs that ended more than `DAYS` ago, and images unused since; 0: of all that ended")
	return cmd
}

// maxDays is the maximum of --runs-older-than.
const maxDays = 100_000

func printCollected(out io.Writer, found []controller.Collected, dryRun bool) error {
	did := "removed"
	if dryRun {
		did = "would remove"
	}
	w := bufio.NewWriter(out)
	for _, c := range found {
		switch {
		case c.Image != "":
			fmt.Fprintf(w, "%s image %s\n", did, text.Visible(c.Image))
		case c.File != "":
			fmt.Fprintf(w, "%s %s\n", did, text.Visible(c.File))
		case c.Elsewhere != "":
			fmt.Fprintf(w, "%s what is here of sandbox %s: it goes on at its place until its lease ends, or until "+
				"'agentctl gc --backend %s' and the --connect of its run\n", did, text.Visible(c.Sandbox), text.Visible(c.Elsewhere))
		case c.Sandbox != "":
			fmt.Fprintf(w, "%s sandbox %s\n", did, text.Visible(c.Sandbox))
		case c.Record:
			fmt.Fprintf(w, "%s record of run %s\n", did, text.Visible(c.RunID))
		default:
			fmt.Fprintf(w, "%s files of run %s\n", did, text.Visible(c.RunID))
		}
	}
	return w.Flush()
}
