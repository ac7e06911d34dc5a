package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"agentsh/internal/statedir"
	"agentsh/supervisor/cgroup"
)

// statePattern is how the names of state directories begin.
const statePattern = "agentsh-session-"

// startingPattern names one that is not locked yet.
const startingPattern = "agentsh-starting-"

// state is a session's directory outside. It is locked while the session lives,
// so that one whose supervisor was killed is recognised and removed.
type state struct {
	dir  string
	lock *os.File
}

// newState makes a state directory in parent, and removes those of sessions that
// have ended.
// The directory gets the name that others look for when it is locked: before,
// a session that starts at the same moment would remove it.
func newState(parent string) (*state, error) {
	sweepStates(parent)
	fresh, err := os.MkdirTemp(parent, startingPattern)
	if err != nil {
		return nil, fmt.Errorf("session state: %w", err)
	}
	lock, err := statedir.LockDir(fresh, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, fmt.Errorf("session state: %w", errors.Join(err, os.RemoveAll(fresh)))
	}
	dir := filepath.Join(parent, statePattern+strings.TrimPrefix(filepath.Base(fresh), startingPattern))
	if err := os.Rename(fresh, dir); err != nil {
		return nil, fmt.Errorf("session state: %w", errors.Join(err, lock.Close(), os.RemoveAll(fresh)))
	}
	return &state{dir, lock}, nil
}

// groupsFile is the file in a state directory that names the control groups of
// its session, one a line.
const groupsFile = "cgroups"

// note records the session's control groups, to be removed with the state.
func (s *state) note(groups []string) error {
	text := strings.Join(groups, "\n")
	if err := os.WriteFile(filepath.Join(s.dir, groupsFile), []byte(text), 0o600); err != nil {
		return fmt.Errorf("session state: %w", err)
	}
	return nil
}

// sweepGroups removes the control groups of a session that is gone. Only those
// named after its state are its own.
func sweepGroups(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, groupsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var groups []string
	for group := range strings.Lines(string(text)) {
		if group = strings.TrimSuffix(group, "\n"); filepath.IsAbs(group) && filepath.Base(group) == filepath.Base(dir) {
			groups = append(groups, group)
		}
	}
	return cgroup.Remove(groups)
}

// sweepStates removes what killed supervisors of this user left. What cannot be
// examined or removed stays: it contains no secret.
func sweepStates(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, statePattern+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		lock, err := statedir.LockDir(dir, 0)
		if err != nil {
			continue // its session lives
		}
		if sweepGroups(dir) == nil { // else its commands are still dying
			_ = os.RemoveAll(dir) // the next session tries again
		}
		lock.Close()
	}
}

// remove removes the directory with everything in it.
func (s *state) remove() error {
	defer s.lock.Close()
	return os.RemoveAll(s.dir)
}
