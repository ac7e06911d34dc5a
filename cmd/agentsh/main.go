// Command agentsh runs commands under policy.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"agentsh/supervisor"
)

// version is set by the build.
var version = "unknown"

func main() {
	supervisor.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
