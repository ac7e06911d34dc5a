package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"

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
	program, err := seccomp.SelfProgram(s.rules.policy().Approvals().Via == "command")
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
	tasks, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer tasks.Close()
	threads, err := tasks.Readdirnames(-1)
	if err != nil || len(threads) == 0 {
		return errors.Join(errors.New("the threads cannot be listed"), err)
	}
	var buf bytes.Buffer
	for _, thread := range threads {
		filtered, err := contains(tasks, thread+"/status", []byte("\nSeccomp:\t2\n"), &buf)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		if !filtered {
			return fmt.Errorf("/proc/self/task/%s: not filtered", thread)
		}
	}
	return nil
}

// contains reports whether a file has a text, and reads no further. There are dozens of
// threads: an [os.File] for each would cost more than what is read.
func contains(dir *os.File, name string, text []byte, buf *bytes.Buffer) (bool, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	buf.Reset()
	for !bytes.Contains(buf.Bytes(), text) {
		buf.Grow(4 << 10)
		n, err := unix.Read(fd, buf.AvailableBuffer()[:4<<10])
		if err != nil || n == 0 {
			return false, err
		}
		buf.Write(buf.AvailableBuffer()[:n])
	}
	return true, nil
}
