package sandboxcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/channel"
	"agentsh/internal/foreground"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

func newSandboxLogsCommand() *cobra.Command {
	var follow, events bool
	var limit int64
	cmd := &cobra.Command{
		Use:     "logs SANDBOX [--follow] [--events]",
		Example: "  agentctl sandbox logs --follow 20260102-fix",
		Short:   "Print what the agent in a sandbox printed",
		Long: `Print what the agent in a sandbox printed so far. With --events, the events of the
audit log are printed instead, one JSON object a line, from the first one on. With
--follow, it continues until the sandbox ends.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--max-output %d: a number of MiB", limit)
			}
			client, one, err := attachTo(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if limit > 0 {
				out = foreground.NewLimit(limit<<20, "--max-output").Writer(out)
			}
			if events {
				err = printEvents(cmd.Context(), client, out, follow)
			} else {
				err = printLog(cmd.Context(), client, one, out, follow)
			}
			if errors.Is(err, context.Canceled) {
				err = nil // Ctrl-C is the normal end
			}
			if err = errors.Join(err, client.Close()); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the sandbox ends")
	cmd.Flags().BoolVar(&events, "events", false, "print the events of the audit log instead")
	cmd.Flags().Int64Var(&limit, "max-output", maxExecOutput, "end after `MIB` were printed; 0: no limit")
	return cmd
}

// printLog prints the log of the agent while it is written.
func printLog(ctx context.Context, client *channel.Client, one record.Run, out io.Writer, follow bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-client.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() {
		cancel()
		<-ended
	}()
	dir := one.Staging
	if dir == "" && !one.Live { // the run has ended
		dir = one.Path
	}
	log, err := os.Open(filepath.Join(dir, record.AgentLogFile))
	if errors.Is(err, os.ErrNotExist) && follow {
		return errors.New("the agent does not run yet, or its results are being taken out")
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	changes, err := audit.WatchFile(log)
	if err != nil {
		return err
	}
	defer func() { _ = changes.Close() }() // nothing was written
	for {
		if _, err := io.Copy(out, log); err != nil || !follow {
			return err
		}
		if err := changes.Wait(ctx); err != nil {
			_, last := io.Copy(out, log) // lines written meanwhile
			if isDone(client) {
				return last
			}
			return errors.Join(err, last)
		}
	}
}

func isDone(client *channel.Client) bool {
	select {
	case <-client.Done():
		return true
	default:
		return false
	}
}

// printEvents prints the events of the audit log so far, or until the sandbox ends.
func printEvents(ctx context.Context, client *channel.Client, out io.Writer, follow bool) error {
	encoder := json.NewEncoder(output.PrintableJSON{W: out})
	var failed error // of the output
	err := client.Events(ctx, wire.EventRequest{SoFar: !follow}, func(e wire.Event) error {
		failed = encoder.Encode(e)
		return failed
	})
	if follow && failed == nil && errors.Is(err, io.ErrUnexpectedEOF) {
		awaitEnd(ctx, client)
	}
	if follow && isDone(client) {
		return failed
	}
	return err
}

// endWait is the time from the end of the events of a run to the end of its connection.
const endWait = 10 * time.Second

// awaitEnd waits for the end of the connection. What forwards the events of a run that ends
// closes their channel before the connection.
func awaitEnd(ctx context.Context, client *channel.Client) {
	limit := time.NewTimer(endWait)
	defer limit.Stop()
	select {
	case <-client.Done():
	case <-limit.C:
	case <-ctx.Done():
	}
}
