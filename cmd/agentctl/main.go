// Command agentctl runs agents in sandboxes. It merges and checks harness
// files, prepares providers, and starts, watches and cleans up runs.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/internal/foreground"
)

// version and commit are set by the build.
var (
	version = "unknown"
	commit  string
)

func main() {
	output.Version = version
	limitMemory()
	ctx := interrupted()
	err := newRoot().ExecuteContext(ctx)
	os.Exit(output.Report(ended(ctx, err), foreground.Messages(ctx, os.Stderr)))
}

// interrupted is a context that the first signal ends, with the signal as its cause. A
// second signal ends this process, unless the command has a handler of its own.
func interrupted() context.Context {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, foreground.EndSignals()...)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // ends with a signal, or with the process
		s, _ := (<-signals).(syscall.Signal)
		signal.Stop(signals)
		cancel(controller.Interrupted{Signal: s})
	}()
	return ctx
}

// ended replaces the error of a command that a signal ended by the signal. A run says
// itself how it ended.
func ended(ctx context.Context, err error) error {
	var of *controller.Failure
	var by controller.Interrupted
	if !errors.Is(err, context.Canceled) || errors.As(err, &of) || !errors.As(context.Cause(ctx), &by) {
		return err
	}
	return &output.Failure{Code: 128 + int(by.Signal), Err: by}
}
