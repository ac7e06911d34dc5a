// Command agentsh runs commands under policy.
package main

import (
	"context"
	"os"
	"os/signal"

	"agentsh/cmd/agentsh/mcpcmd"
	"agentsh/internal/foreground"
	"agentsh/internal/shim"
	_ "agentsh/internal/shim/client" // it starts shells before main
	"agentsh/supervisor"
)

// version and commit are set by the build.
var (
	version = "unknown"
	commit  string
)

func main() {
	if code, is := runHook(os.Args, os.Stdin, os.Stdout, os.Stderr); is {
		os.Exit(code)
	}
	if mcpcmd.IsCall(os.Args) {
		os.Exit(0)
	}
	supervisor.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), foreground.EndSignals()...)
	code := dispatch(ctx)
	stop()
	os.Exit(code)
}

// dispatch runs the shell that this program was started as, or the command line.
// A program that cannot find its own file, as without /proc, is not an
// installed shell: runShim refuses it.
func dispatch(ctx context.Context) int {
	executable, _ := os.Executable()
	if len(os.Args) == 0 || shim.Name(os.Args[0], executable) {
		return runShim(ctx, executable, os.Args)
	}
	return run(ctx, os.Args[1:])
}
