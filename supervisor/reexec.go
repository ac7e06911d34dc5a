package supervisor

import (
	"context"
	"fmt"
	"os"

	"agentsh/fuse"
	"agentsh/supervisor/launch"
)

// Reexec must be called first in main, and in TestMain of tests that open
// sessions: this program is also its own file server and the process in which
// detection tries things, and then never returns. The session's first process
// does not come this far.
func Reexec() {
	if len(os.Args) != 1 {
		return
	}
	roles := map[string]func() error{serverName: serveFiles, probeName: serveProbe}
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

func serveFiles() error {
	if err := proveConfinement(); err != nil {
		return err
	}
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	control := files[controlName]
	if control == nil {
		return fmt.Errorf("no control socket")
	}
	delete(files, controlName)
	giveBackWhenQuiet()
	return fuse.Run(context.Background(), control, files)
}
