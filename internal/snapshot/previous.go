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
	maxBefore    = 1 << 20
	maxAllBefore = 64 << 20
)

// ErrNotKept says that the previous content of a file was not saved.
var ErrNotKept = errors.New("its old content was not kept")

// Before keeps what the files of a session held before they were first changed,
// as far as there is room: it serves to show differences, nothing else. It is
// not safe for concurrent use.
type Before struct {
	dir  int
	left int64
}

// OpenBefore takes a directory over.
func OpenBefore(dir *os.File) (*Before, error) {
	defer dir.Close()
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return &Before{fd, maxAllBefore}, nil
}

// beforeFile is the name under which the content of a path is kept.
func beforeFile(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:])
}

// Keep copies the regular file called name in dir, or dir itself when name is
// empty, as what path held. Only the first time counts; what does not fit is left
// out.
func (b *Before) Keep(path string, dir int, name string) error {
	key := beforeFile(path)
	if unix.Faccessat(b.dir, key, unix.F_OK, 0) == nil {
		return nil
	}
	from, err := beneath.OpenFile(dir, name)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > min(maxBefore, b.left) {
		return err
	}
	temp := beneath.TempName()
	fd, err := unix.Openat(b.dir, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), temp)
	_, err = io.Copy(to, io.LimitReader(from, maxBefore+1))
	if err = errors.Join(err, to.Close()); err == nil {
		err = unix.Renameat(b.dir, temp, b.dir, key)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(b.dir, temp, 0))
	}
	b.left -= info.Size()
	return nil
}

// Before opens what a path of the workspace held when the session began;
// [ErrNotKept] is in the chain of the error when that is not known.
func (s *Session) Before(path string) (*os.File, error) {
	f, err := os.Open(filepath.Join(s.dir, beforeName, beforeFile(path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotKept
	}
	return f, err
}

// SaveChanges remembers the change record of the workspace for the time after
// the session.
func (s *Session) SaveChanges(list []wire.Change) error {
	raw := make([]savedChange, 0, len(list))
	for _, c := range list {
		raw = append(raw, savedChange{[]byte(c.Path), c.Kind, []byte(c.From)})
	}
	return s.writeJSON(changesName, raw)
}

// savedChange is a [wire.Change] whose names may be any bytes.
type savedChange struct {
	Path []byte `json:"path"`
	Kind string `json:"kind"`
	From []byte `json:"from,omitempty"`
}

// Changes is the change record that an ended session left; fs.ErrNotExist is in
// the chain of the error when it was killed before it could leave one.
func (s *Session) Changes() ([]wire.Change, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, changesName))
	if err != nil {
		return nil, fmt.Errorf("session %s left no change record: %w", s.Session, err)
	}
	var raw []savedChange
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("session %s: %w", s.Session, err)
	}
	list := make([]wire.Change, 0, len(raw))
	for _, c := range raw {
		list = append(list, wire.Change{Path: string(c.Path), Kind: c.Kind, From: string(c.From)})
	}
	return list, nil
}
