package supervisor

import (
	"fmt"
	"os"

	"agentsh/internal/threads"
	"agentsh/supervisor/fileserver"
	"agentsh/supervisor/probe"
)

// Reexec must be called first in main, and in TestMain of tests that open
// sessions: this program is also its own file server and the process in which
// detection tries things, and then never returns. The session's first process
// does not come this far.
func Reexec() {
	delayCollection()
	if len(os.Args) != 1 {
		return
	}
	roles := map[string]func() error{fileserver.ProcessName: serveFiles, probe.ProcessName: probe.Serve}
	role := roles[os.Args[0]]
	if role == nil {
		return
	}
	if err := role(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// reservedThreads are threads that a supervisor and a file server have from the start.
// Commands can leave no process for later ones.
const reservedThreads = 16

// serveFiles is the file server's process. Its reserve is made while it reads its rules.
func serveFiles() error {
	returnMemoryWhenQuiet()
	return fileserver.Serve(threads.Reserve(reservedThreads))
}
