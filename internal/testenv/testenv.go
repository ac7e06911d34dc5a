// Package testenv asks for kernel features that a test needs.
package testenv

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Feature is something of the machine that a test needs.
type Feature struct {
	name  string
	probe func() error
}

// The features tests ask for. Each probe tries the thing itself.
var (
	Root      = Feature{"root", probeRoot}
	UserNotif = Feature{"seccomp user notification", probeUserNotif}
	FUSE      = Feature{"/dev/fuse", probeFUSE}
	Landlock  = Feature{"Landlock", probeLandlock}
	UserNS    = Feature{"user namespaces", probeUserNS}
)

// That is a feature whose probe belongs to the package under test; nil: it is
// there.
func That(name string, probe func() error) Feature { return Feature{name, probe} }

// Program is the feature that a program can be found on PATH.
func Program(name string) Feature {
	return Feature{"program " + name, func() error { _, err := exec.LookPath(name); return err }}
}

// Need skips the test when a feature is missing, and fails it instead when
// AGENTSH_TEST_STRICT is 1, as CI sets it.
func Need(t testing.TB, features ...Feature) {
	t.Helper()
	for _, f := range features {
		err := f.probe()
		if err == nil {
			continue
		}
		if os.Getenv("AGENTSH_TEST_STRICT") == "1" {
			t.Fatalf("%s is needed: %v", f.name, err)
		}
		t.Skipf("%s is needed: %v", f.name, err)
	}
}

func probeRoot() error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	return nil
}

// See seccomp(2), SECCOMP_GET_ACTION_AVAIL.
func probeUserNotif() error {
	const getActionAvail, retUserNotif = 2, 0x7fc00000
	action := uint32(retUserNotif)
	return seccompOp(getActionAvail, &action)
}

func probeFUSE() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// See landlock_create_ruleset(2), LANDLOCK_CREATE_RULESET_VERSION.
func probeLandlock() error {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	if errno != 0 {
		return errno
	}
	return nil
}

func probeUserNS() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) == "0" {
		return os.ErrPermission
	}
	return nil
}
