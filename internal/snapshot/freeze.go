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

// Of a workspace: the file that is locked while it is frozen, and the holder.
const (
	freezeName = "freeze"
	holderName = "freeze.json"
)

// holder names the frozen workspace and the process that froze it.
type holder struct {
	Workspace string `json:"workspace"`
	PID       int    `json:"pid"`
}

// ErrFrozen means that a workspace is frozen.
var ErrFrozen = errors.New("its files are frozen for a checkpoint or a rollback")

// Freeze is a period in which no command creates, moves or opens files in a
// workspace.
type Freeze struct {
	// Ended is closed if the freeze ended before Release; nil: it cannot.
	Ended <-chan struct{}
	// Release ends the freeze and reports to commands what changed meanwhile.
	Release func([]wire.Change) error
}

// ErrFreezeEnded means that a freeze ended before its work was done.
var ErrFreezeEnded = errors.New("a session in the workspace is not frozen any more: it has ended, or was told to go on")

// check returns [ErrFreezeEnded] if the freeze has ended.
func (f *Freeze) check() error {
	select {
	case <-f.Ended:
		return ErrFreezeEnded
	default:
		return nil
	}
}

// freeze locks the workspace against new sessions and then freezes the running
// ones. The lock ends with this process at the latest.
func (c *Checkpoints) freeze(running func() (*Freeze, error)) (*Freeze, error) {
	lock, err := statedir.TakeLock(filepath.Join(c.dir, freezeName), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("freeze: %w", err)
	}
	err = statedir.WriteJSON(filepath.Join(c.dir, holderName), holder{c.workspace, os.Getpid()})
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

// checkFrozen returns [ErrFrozen] if a frozen workspace overlaps one of these.
// The session has already registered itself, so either it sees the freeze or
// the freeze sees it.
func (s *Store) checkFrozen(workspace []wire.Governed) error {
	locks, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", "*", freezeName))
	if err != nil {
		return err
	}
	for _, name := range locks {
		if !isLocked(name) {
			continue
		}
		var by holder
		data, err := os.ReadFile(filepath.Join(filepath.Dir(name), holderName))
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

// isLocked reports whether a process holds a lock file. A file that cannot be
// opened is not locked.
func isLocked(name string) bool {
	lock, err := os.Open(name)
	if err != nil {
		return false
	}
	defer lock.Close()
	return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
