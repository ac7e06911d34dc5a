package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
)

// Confine restricts this whole process, for good, to what a supervisor needs once
// its session runs: without mounts, namespaces and parts of the kernel, and without
// other programs unless approvals.via is command. It proves the restriction. The
// process can open no further session.
func (s *Session) Confine() error {
	if s.confined.unjudged() {
		return nil // what forbids an engine forbids further filters
	}
	program, err := seccomp.SelfPlan(s.rules.policy().Approvals().Via == "command").Compile(runtime.GOARCH)
	if err == nil {
		err = seccomp.RestrictSelf(program)
	}
	if err == nil {
		err = provenConfined()
	}
	if err != nil {
		return fmt.Errorf("confine the supervisor: %w", err)
	}
	s.restricted.Store(true)
	return nil
}

// provenConfined tries what must now fail and looks at every thread. See
// keyctl(2) and proc_pid_status(5).
func provenConfined() error {
	if _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_PROCESS_KEYRING, false); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("a refused call is not refused: %w", err)
	}
	const tasks = "/proc/self/task"
	threads, err := os.ReadDir(tasks)
	if err != nil || len(threads) == 0 {
		return errors.Join(errors.New("the threads cannot be listed"), err)
	}
	for _, t := range threads {
		name := filepath.Join(tasks, t.Name(), "status")
		status, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		if !bytes.Contains(status, []byte("\nSeccomp:\t2\n")) {
			return fmt.Errorf("%s: not filtered", filepath.Dir(name))
		}
	}
	return nil
}
