// Package trial tries mechanisms of the kernel by using them.
//
// A trial changes the process or the thread that runs it: a filter is loaded, a
// Landlock domain is entered, a limit is set. Run each in a process that ends
// with it. The package imports nothing of the project, so that tests of every
// package may ask it through internal/testenv.
package trial

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Nothing is the trial whose success is that its process could be started.
const Nothing = "nothing"

// Undumpable is the trial whose process is as closed to others as a session's first one.
const Undumpable = "undumpable"

// trials are all trials by name. Each returns what it found out.
var trials = map[string]func() (string, error){
	Nothing:            bare(func() error { return nil }),
	"seccomp_notify":   func() (string, error) { return probeSeccomp(0) },
	"wait_killable":    probeKillable,
	"private_proc":     bare(probePrivateProc),
	"new_root":         bare(probeNewRoot),
	Undumpable:         bare(becomeUndumpable),
	"landlock":         probeLandlock,
	"landlock_scopes":  probeLandlockScopes,
	"landlock_net":     probeLandlockNet,
	"net_namespace":    Loopback,
	"mount_api":        probeMountAPI,
	"overlayfs":        probeOverlay,
	"fuse":             probeFUSE,
	"fuse_mapping":     probeMapping,
	"fuse_passthrough": probePassthrough,
	"fanotify":         probeFanotify,
	"inotify":          probeInotify,
	"pidfd":            probePidfd,
	"pidfd_getfd":      probeGetfd,
	"subreaper":        bare(probeSubreaper),
	"limits":           bare(probeLimits),
	"oom_score":        bare(probeOOMScore),
	"vsock":            probeVsock,
}

// bare is a trial that finds out nothing but whether it works.
func bare(try func() error) func() (string, error) {
	return func() (string, error) { return "", try() }
}

// ErrUnknown is in the chain of the error of a trial that does not exist.
var ErrUnknown = errors.New("no such trial")

// Run runs one trial in this process and returns what it found out. The error
// is why the mechanism does not work.
func Run(name string) (string, error) {
	run := trials[name]
	if run == nil {
		return "", fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	return run()
}

// Mark is what another process must find in the memory of this one. It is in the
// data of the program, which does not move.
var Mark = [16]byte([]byte("agentsh was here"))

// MustFail is nil if err is the error that a forbidden operation must end with.
func MustFail(what string, err error, want unix.Errno) error {
	if errors.Is(err, want) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s was not refused", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// restrict locks the goroutine to a thread that ends with it, and has the thread
// give up gaining privileges: the restrictions that follow are the thread's own.
func restrict() error {
	runtime.LockOSThread()
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
