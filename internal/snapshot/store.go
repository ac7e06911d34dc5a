package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/statedir"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

// maxSessions is how many sessions whose trash is empty are left by a sweep.
const maxSessions = 100

// Store is the directory in which the sessions of one user store states of
// their workspaces.
type Store struct{ dir string }

// Record describes the session that a directory belongs to.
type Record struct {
	// Session is the stored state of one session.
	Session   string          `json:"session"`
	Policy    string          `json:"policy"`
	Workspace []wire.Governed `json:"workspace"` // directories under file policy; the first is the workspace
	Started   time.Time       `json:"started"`
}

// Names of a session's directory.
const (
	recordName   = "session.json"
	lockName     = "lock"
	trashName    = "trash"
	changesName  = "changes.json"
	previousName = "previous"
)

// isSessionID reports whether a text can name a session's directory.
func isSessionID(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	return s != "" && len(s) <= 64 && strings.Trim(s, letters) == ""
}

// OpenStore opens a store and creates it if it is missing. It refuses a
// directory that others can change.
func OpenStore(dir string) (*Store, error) {
	for _, d := range []string{dir, filepath.Join(dir, "sessions"), filepath.Join(dir, "checkpoints")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); !info.IsDir() || owner != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("store %s is not a directory of mode 0700 of user %d", dir, os.Geteuid())
	}
	return &Store{dir}, nil
}

// Session is what the store has of one session.
type Session struct {
	Record
	dir  string
	lock *os.File // of the session itself; nil: only looked at
}

// NewSession creates the directory of a new session, and now and then removes old
// sessions with an empty trash. [ErrFrozen] is in the chain of the error if the
// workspace is frozen for a checkpoint or a rollback.
func (s *Store) NewSession(r Record) (*Session, error) {
	if !isSessionID(r.Session) {
		return nil, fmt.Errorf("store: session %.70q is no name", r.Session)
	}
	one := &Session{Record: r, dir: filepath.Join(s.dir, "sessions", r.Session)}
	if err := os.Mkdir(one.dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	var err error
	if one.lock, err = statedir.TakeLock(filepath.Join(one.dir, lockName), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	for _, d := range []string{trashName, previousName} {
		if err := os.Mkdir(filepath.Join(one.dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("store: %w", errors.Join(err, one.Close()))
		}
	}
	if err := one.writeJSON(recordName, r); err != nil {
		return nil, errors.Join(err, one.Close())
	}
	if err := s.checkFrozen(r.Workspace); err != nil {
		return nil, errors.Join(err, one.Close(), os.RemoveAll(one.dir))
	}
	return one, s.removeOld()
}

// writeJSON creates a complete file by a rename. It does not sync it.
func (s *Session) writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := filepath.Join(s.dir, beneath.TempName())
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("store: %w", errors.Join(err, os.Remove(temp)))
	}
	if err := os.Rename(temp, filepath.Join(s.dir, name)); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// Close marks the session as ended.
func (s *Session) Close() error {
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

// Running reports whether the session has not ended.
func (s *Session) Running() bool { return isLocked(filepath.Join(s.dir, lockName)) }

// Sessions returns the stored sessions, oldest first.
func (s *Store) Sessions() ([]*Session, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "sessions"))
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	var out []*Session
	for _, e := range entries {
		one := &Session{dir: filepath.Join(s.dir, "sessions", e.Name())}
		data, err := os.ReadFile(filepath.Join(one.dir, recordName))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being made, or removed
		}
		if err == nil {
			err = json.Unmarshal(data, &one.Record)
		}
		if err != nil {
			return nil, fmt.Errorf("store: session %s: %w", e.Name(), err)
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b *Session) int { return a.Started.Compare(b.Started) })
	return out, nil
}

// sweepEvery is how many sessions are added before old ones are looked for again. To read
// the records of a hundred takes longer than everything else that a new session stores.
const sweepEvery = 25

// sweptName is the file with the number of sessions that the last sweep left.
const sweptName = "swept"

// removeOld removes all but the newest sessions when sweepEvery have been added. It leaves
// running sessions and those with files in their trash.
func (s *Store) removeOld() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "sessions"))
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	left := 0
	if text, err := os.ReadFile(filepath.Join(s.dir, sweptName)); err == nil {
		left, _ = strconv.Atoi(string(text)) // a damaged file: there is one more sweep
	}
	if len(entries) <= max(maxSessions, left)+sweepEvery {
		return nil
	}
	all, err := s.Sessions()
	if err != nil {
		return err
	}
	left = len(all)
	for _, one := range all[:max(0, len(all)-maxSessions)] {
		if one.Running() {
			continue
		}
		if trashed, err := one.Trash(); err != nil || len(trashed) > 0 {
			continue // what cannot be read may be wanted
		}
		if err := os.RemoveAll(one.dir); err != nil {
			return fmt.Errorf("store: %w", err)
		}
		left--
	}
	if err := os.WriteFile(filepath.Join(s.dir, sweptName), []byte(strconv.Itoa(left)), 0o600); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// TrashLeft returns what the limits leave for a new session. The trash of all
// other sessions counts.
func (s *Store) TrashLeft(limits trash.Limits) (trash.Limits, error) {
	all, err := s.Sessions()
	if err != nil {
		return limits, err
	}
	for _, one := range all {
		trashed, err := one.Trash()
		if err != nil {
			return limits, err
		}
		limits.Entries -= len(trashed)
		for _, e := range trashed {
			limits.Bytes -= e.Room()
		}
	}
	return limits, nil
}

// Trash lists the session's trash, oldest entry first.
func (s *Session) Trash() ([]trash.Entry, error) { return trash.Read(filepath.Join(s.dir, trashName)) }

// TrashDir opens the directory of the session's trash, for [trash.Open].
func (s *Session) TrashDir() (*os.File, error) { return os.Open(filepath.Join(s.dir, trashName)) }

// PreviousDir opens the directory for [OpenPrevious].
func (s *Session) PreviousDir() (*os.File, error) { return os.Open(filepath.Join(s.dir, previousName)) }

// Backing returns where a path of the sandbox lies on this machine: the
// governed directory and the rest of the path.
func (s *Session) Backing(inside string) (dir, rel string, ok bool) {
	for _, g := range s.Workspace {
		if inside == g.Path {
			return g.Backing, "", true
		}
		if n := len(g.Path); len(inside) > n && inside[:n] == g.Path && inside[n] == '/' {
			return g.Backing, inside[n+1:], true
		}
	}
	return "", "", false
}

// Restore restores a file from the trash of an ended session and removes its
// entry; see [trash.Trash.Restore]. It creates missing parent directories.
func (s *Session) Restore(id string, force bool) (path string, err error) {
	t, err := s.openTrash()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	e, err := t.Find(id)
	if err != nil {
		return "", err
	}
	dir, rel, ok := s.Backing(string(e.Path))
	if !ok || rel == "" {
		return "", fmt.Errorf("restore %s: it was in no workspace that is known", e.Path)
	}
	root, err := beneath.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	above, name := beneath.Split(rel)
	fd, err := beneath.OpenDir(root, above, true)
	if err != nil {
		return "", fmt.Errorf("restore %s: %w", e.Path, err)
	}
	defer beneath.CloseFD(fd)
	if err := t.Restore(e, fd, name, force); err != nil {
		return "", fmt.Errorf("restore %s: %w", e.Path, err)
	}
	return filepath.Join(dir, rel), t.Remove(id, "restored")
}

// Purge deletes entries from the trash of an ended session.
func (s *Session) Purge(ids ...string) (err error) {
	t, err := s.openTrash()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for _, id := range ids {
		if err := t.Remove(id, "purged"); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) openTrash() (*trash.Trash, error) {
	dir, err := s.TrashDir()
	if err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	return trash.Open(dir, trash.Limits{}, s.Session)
}
