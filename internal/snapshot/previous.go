package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/wire"
)

// Bounds on what is kept of changed files, in bytes: larger files have no lines
// to compare.
const (
	maxPrevious    = 1 << 20
	maxAllPrevious = 64 << 20
)

// ErrNoPrevious means that the previous content of a file was not saved.
var ErrNoPrevious = errors.New("its old content was not kept")

// Previous saves the content that files had before a session first changed
// them, as far as there is room. It serves to show differences. It is not safe
// for concurrent use.
type Previous struct {
	dir  int
	left int64
}

// OpenPrevious opens the directory for saved content and closes dir.
func OpenPrevious(dir *os.File) (*Previous, error) {
	defer dir.Close()
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return &Previous{fd, maxAllPrevious}, nil
}

// previousFile returns the name under which the content of a path is stored.
func previousFile(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:])
}

// Save copies the regular file called name in dir, or dir itself if name is
// empty, as the previous content of path. Only the first call for a path has an
// effect. A file without room is left out.
func (b *Previous) Save(path string, dir int, name string) error {
	key := previousFile(path)
	if unix.Faccessat(b.dir, key, unix.F_OK, 0) == nil {
		return nil
	}
	from, err := beneath.OpenFile(dir, name)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > min(maxPrevious, b.left) {
		return err
	}
	temp := beneath.TempName()
	fd, err := unix.Openat(b.dir, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), temp)
	_, err = io.Copy(to, io.LimitReader(from, maxPrevious+1))
	if err = errors.Join(err, to.Close()); err == nil {
		err = unix.Renameat(b.dir, temp, b.dir, key)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(b.dir, temp, 0))
	}
	b.left -= info.Size()
	return nil
}

// Previous opens the content that a path had when the session began.
// [ErrNoPrevious] is in the chain of the error if it was not saved.
func (s *Session) Previous(path string) (*os.File, error) {
	f, err := os.Open(filepath.Join(s.dir, previousName, previousFile(path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoPrevious
	}
	return f, err
}

// SaveChanges stores the change record of the workspace for later.
func (s *Session) SaveChanges(list []wire.Change) error {
	return s.writeJSON(changesName, append([]wire.Change{}, list...))
}

// Changes returns the change record of an ended session. fs.ErrNotExist is in
// the chain of the error if the session was killed before it stored one.
func (s *Session) Changes() ([]wire.Change, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, changesName))
	if err != nil {
		return nil, fmt.Errorf("session %s left no change record: %w", s.Session, err)
	}
	var list []wire.Change
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("session %s: %w", s.Session, err)
	}
	return list, nil
}
