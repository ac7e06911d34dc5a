package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"agentsh/supervisor/probe/trial"
)

// trialName is argv[0] of a test binary that is re-executed to run one trial of
// the kernel and end.
const trialName = "agentsh-test-trial"

func init() {
	if os.Args[0] != trialName {
		return
	}
	if _, err := trial.Run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// tried returns a function that runs a trial once, in a process of its own and in
// new namespaces. A process that is not root gets a user namespace for them.
func tried(name string, namespaces uintptr) func() error {
	return sync.OnceValue(func() error {
		if namespaces != 0 && os.Geteuid() != 0 {
			namespaces |= syscall.CLONE_NEWUSER
		}
		// The link also works for a user who cannot reach the file by its name.
		cmd := &exec.Cmd{
			Path: "/proc/self/exe", Args: []string{trialName, name}, SysProcAttr: &syscall.SysProcAttr{Cloneflags: namespaces},
		}
		if namespaces&syscall.CLONE_NEWUSER != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s (%w)", name, strings.TrimSpace(string(out)), err)
		}
		return nil
	})
}
