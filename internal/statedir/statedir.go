// Package statedir keeps state of one user on this machine: directories that
// only that user may write, locks that end with their process, files that are
// replaced whole, trees that go away whatever their modes.
package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is the directory where runs and sandboxes of this user are kept.
type Dir struct{ path string }

// Path is where the state of a user belongs: $XDG_STATE_HOME/agentctl,
// else /var/lib/agentctl for root and ~/.local/state/agentctl for others.
func Path(getenv func(string) string, uid int) (string, error) {
	if base := getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "agentctl"), nil
	}
	if uid == 0 {
		return "/var/lib/agentctl", nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("no place for the state: HOME is not set; set XDG_STATE_HOME to an absolute path")
	}
	return filepath.Join(home, ".local/state/agentctl"), nil
}

// Open makes the directory when it is missing. One that somebody else
// owns or may write is refused: the audit log and the sandboxes are in it.
func Open(dir string) (Dir, error) {
	if !filepath.IsAbs(dir) {
		return Dir{}, fmt.Errorf("state directory %s is not absolute", dir)
	}
	s := Dir{path: dir}
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

// Runs holds one directory for each run.
func (s Dir) Runs() string { return filepath.Join(s.path, "runs") }

// Sandboxes is the state of the local backend.
func (s Dir) Sandboxes() string { return filepath.Join(s.path, "sandboxes") }

// Lock keeps a collector from seeing a run or sandbox between its directory and
// its lock. Hold it shortly.
func (s Dir) Lock() (unlock func(), err error) {
	f, err := TakeLock(filepath.Join(s.path, "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}
