package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Of a workspace: the file that is locked while it is frozen, and the freezer.
const (
	freezeName  = "freeze"
	freezerName = "freeze.json"
)

// freezer says what is frozen, and by which process.
type freezer struct {
	Workspace string `json:"workspace"`
	PID       int    `json:"pid"`
}

// ErrFrozen says that a workspace is frozen.
var ErrFrozen = errors.New("its files are frozen for a checkpoint or a rollback")

// Freeze is a time in which no command makes, moves or opens anything in a
// workspace.
type Freeze struct {
	// Lost is closed when it ended before Release; nil: it cannot.
	Lost <-chan struct{}
	// Release ends it and tells the commands what was changed meanwhile.
	Release func([]wire.Change) error
}

// ErrThawed says that a freeze ended too early.
var ErrThawed = errors.New("a session in the workspace is not frozen any more: it has ended, or was told to go on")

// check reports [ErrThawed] when the freeze has ended.
func (f *Freeze) check() error {
	select {
	case <-f.Lost:
		return ErrThawed
	default:
		return nil
	}
}

// freeze takes the lock that keeps sessions from beginning, and then freezes those
// that run. The lock ends with the process, too.
func (c *Checkpoints) freeze(running func() (*Freeze, error)) (*Freeze, error) {
	lock, err := statedir.TakeLock(filepath.Join(c.dir, freezeName), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("freeze: %w", err)
	}
	err = statedir.WriteJSON(filepath.Join(c.dir, freezerName), freezer{c.workspace, os.Getpid()})
	var frozen *Freeze
	if err == nil {
		frozen, err = running()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	release := frozen.Release
	frozen.Release = func(list []wire.Change) error { return errors.Join(release(list), lock.Close()) }
	return frozen, nil
}

// checkFrozen reports [ErrFrozen] when a workspace that overlaps one of these is
// frozen. A session asks when it is already known to whoever freezes: one of the
// two sees the other.
func (s *Store) checkFrozen(workspace []wire.Governed) error {
	locks, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", "*", freezeName))
	if err != nil {
		return err
	}
	for _, name := range locks {
		if !isLocked(name) {
			continue
		}
		var by freezer
		data, err := os.ReadFile(filepath.Join(filepath.Dir(name), freezerName))
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing was asked to freeze yet
		}
		if err == nil {
			err = json.Unmarshal(data, &by)
		}
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		for _, g := range workspace {
			if Overlap(g.Backing, by.Workspace) {
				return fmt.Errorf("%s: %w: begin when process %d has ended, or end it (kill -9 %d)", g.Backing, ErrFrozen, by.PID, by.PID)
			}
		}
	}
	return nil
}

// Overlap reports whether one of two directories is the other or lies below it.
func Overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// isLocked reports whether a process has a lock. One that cannot be looked at has
// none.
func isLocked(name string) bool {
	lock, err := os.Open(name)
	if err != nil {
		return false
	}
	defer lock.Close()
	return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
