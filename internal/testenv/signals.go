package testenv

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals has the programs that tests start begin with no signal ignored,
// whatever this process was started with: a signal that it catches is the
// default in them. See execve(2).
func DefaultSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGUSR2} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}
