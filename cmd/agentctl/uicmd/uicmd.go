// Package uicmd has the command agentctl ui.
package uicmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/webui"
)

// New is agentctl ui.
func New() *cobra.Command {
	var address string
	var metrics settings.Metrics
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show batches, runs and what waits for an answer on a local page",
		Long: `ui serves one page for a browser on this machine, until Ctrl-C. The page shows the batches and
the runs of this user as they go on, the steps and denials of a run, and the questions of
'agentctl approvals list', which it answers.

Open the printed address. It has a token: who has it can answer questions. The page loads
nothing from elsewhere, and needs no network.

With --metrics it also serves counts of runs, batches and questions for Prometheus.`,
		Example: "  agentctl ui --listen 127.0.0.1:8080 --metrics 127.0.0.1:9466",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := settings.RunsState()
			if err != nil {
				return err
			}
			counts, err := metrics.Serve(cmd.Context(), false, cmd.ErrOrStderr(), source{state}.gather)
			if err != nil {
				return err
			}
			defer counts.Close()
			s, err := webui.Listen(cmd.Context(), address, source{state})
			if err != nil {
				return &output.Failure{Code: controller.ExitConfiguration, Err: err}
			}
			fmt.Fprintln(cmd.OutOrStdout(), s.URL())
			if err := s.Serve(cmd.Context()); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:0", "`ADDRESS` of this machine to serve at; port 0: any that is free")
	metrics.Add(cmd, "")
	return cmd
}
