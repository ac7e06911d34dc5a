// Package testenv asks for kernel features that a test needs.
package testenv

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"agentsh/supervisor/probe/trial"
)

// Feature is something of the machine that a test needs.
type Feature struct {
	name  string
	probe func() error
}

// The features tests ask for. Those of the kernel are tried by using them.
var (
	Root      = Feature{"root", probeRoot}
	UserNotif = Feature{"seccomp user notification", tried("seccomp_notify", 0)}
	FUSE      = Feature{"a FUSE mount", tried("fuse", syscall.CLONE_NEWNS)}
	Landlock  = Feature{"Landlock", tried("landlock", 0)}
	UserNS    = Feature{"user namespaces", tried(trial.Nothing, syscall.CLONE_NEWUSER)}
)

// That is a feature whose probe belongs to the package under test; nil: it is
// there.
func That(name string, probe func() error) Feature { return Feature{name, probe} }

// Program is the feature that a program can be found on PATH.
func Program(name string) Feature {
	return Feature{"program " + name, func() error { _, err := exec.LookPath(name); return err }}
}

// Asked returns the value of the environment variable by which a make target asks for a
// test. Without it the test is skipped, also when a missing feature is an error.
func Asked(t testing.TB, variable, target string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		t.Skipf("make %s runs it", target)
	}
	return value
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
