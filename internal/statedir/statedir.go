// Package statedir keeps state of one user on this machine: directories that
// only that user may write, locks that end with their process, files that are
// replaced whole, trees that go away whatever their modes.
package statedir

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentsh/internal/layout"

	"golang.org/x/sys/unix"
)

// Dir is the open state directory of a user.
type Dir struct{ state layout.State }

// Open creates the directory if it is missing. It refuses one that another user
// owns or may write to, because audit logs and sandboxes lie in it.
func Open(state layout.State) (Dir, error) {
	dir := string(state)
	if !filepath.IsAbs(dir) {
		return Dir{}, fmt.Errorf("state directory %s is not absolute", dir)
	}
	s := Dir{state}
	if err := state.Make(s.Runs(), s.Sandboxes()); err != nil {
		return Dir{}, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return Dir{}, fmt.Errorf("open state directory: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return Dir{}, fmt.Errorf("state directory %s must be a directory of uid %d that nobody else may write", dir, os.Geteuid())
	}
	return s, nil
}

// Runs returns the directory that holds one directory for each run.
func (s Dir) Runs() string { return s.state.Runs() }

// Batches returns the directory that holds one directory for each batch. It may be missing.
func (s Dir) Batches() string { return s.state.Batches() }

// Sandboxes returns the directory of the local backend.
func (s Dir) Sandboxes() string { return s.state.Sandboxes() }

// Machines is [layout.State.Machines]. It is made when it is needed.
func (s Dir) Machines() string { return s.state.Machines() }

// OpenShell is [layout.State.OpenShell]. It is made when it is needed.
func (s Dir) OpenShell() string { return s.state.OpenShell() }

// lockWait is how long Lock waits. Nobody holds the lock that long, unless it was
// stopped.
const lockWait = 10 * time.Second

// Lock stops a collector from seeing a run or sandbox between the creation of
// its directory and its lock. Release it soon. If another process holds it for
// 10 seconds, the error names that process.
func (s Dir) Lock() (unlock func(), err error) { return s.lock(lockWait) }

func (s Dir) lock(wait time.Duration) (unlock func(), err error) {
	type taken struct {
		f   *os.File
		err error
	}
	done := make(chan taken, 1)
	go func() { // ends when the lock is free
		f, err := TakeLock(s.state.Lock(), unix.LOCK_EX)
		done <- taken{f, err}
	}()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case t := <-done:
		if t.err != nil {
			return nil, t.err
		}
		s.sign(t.f)
		return func() { t.f.Close() }, nil
	case <-limit.C:
	}
	go func() { // ends like the one above
		if t := <-done; t.err == nil {
			t.f.Close()
		}
	}()
	return nil, fmt.Errorf("%s is locked by %s for more than %s: continue or end that process", s.state.Lock(), s.holder(), wait)
}

// sign writes the number of this process into the lock file, for others that wait.
func (s Dir) sign(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteString(strconv.Itoa(os.Getpid())) // it only helps to find the process
	}
}

// holder describes the process that signed the lock file last.
func (s Dir) holder() string {
	data, err := os.ReadFile(s.state.Lock())
	pid, wrong := strconv.Atoi(string(data))
	if err != nil || wrong != nil {
		return "another process"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%q)", pid, strings.TrimSpace(string(name)))
}
