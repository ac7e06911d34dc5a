// Package statedir keeps state of one user on this machine: directories that
// only that user may write, locks that end with their process, files that are
// replaced whole, trees that go away whatever their modes.
package statedir

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

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
	for _, d := range []string{dir, s.Runs(), s.Sandboxes()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return Dir{}, fmt.Errorf("create state directory: %w", err)
		}
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

// Sandboxes returns the directory of the local backend.
func (s Dir) Sandboxes() string { return s.state.Sandboxes() }

// Lock stops a collector from seeing a run or sandbox between the creation of
// its directory and its lock. Release it soon.
func (s Dir) Lock() (unlock func(), err error) {
	f, err := TakeLock(s.state.Lock(), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}
