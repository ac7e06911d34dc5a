// Command agentctl runs agents in sandboxes. It merges and checks harness
// files, prepares providers, and starts, watches and cleans up runs.
package main

import (
	"context"
	"os"
	"os/signal"

	"agentsh/internal/foreground"
)

// version and commit are set by the build.
var (
	version = "unknown"
	commit  string
)

func main() {
	limitMemory()
	ctx, stop := signal.NotifyContext(context.Background(), foreground.EndSignals()...)
	context.AfterFunc(ctx, stop) // a second signal ends this process, unless the command has a handler of its own
	root := newRoot()
	code := report(root.ExecuteContext(ctx), foreground.Messages(ctx, os.Stderr))
	stop()
	os.Exit(code)
}
