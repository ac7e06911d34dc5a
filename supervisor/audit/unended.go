package audit

import (
	"errors"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// Unended finds the sessions of a log that have a begin and no end.
type Unended struct{ sessions []string }

// Add takes the next event of the log.
func (u *Unended) Add(e wire.Event) {
	switch {
	case e.Type != wire.EventSession || e.Session == "":
	case e.Phase == "begin":
		u.sessions = append(u.sessions, e.Session)
	case e.Phase == "end":
		u.sessions = slices.DeleteFunc(u.sessions, func(s string) bool { return s == e.Session })
	}
}

// Killed returns the sessions whose supervisor ended without writing so: it was killed
// or it crashed. While another process writes the log, its last session runs.
func (u *Unended) Killed(r *Reader) []string {
	if len(u.sessions) == 0 || !r.written() {
		return u.sessions
	}
	return u.sessions[:len(u.sessions)-1]
}

// Killed returns the sessions of the log at path whose supervisor was killed or
// crashed.
func Killed(path string) ([]string, error) {
	r, err := OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // opened for reading
	var u Unended
	for {
		e, err := r.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return u.Killed(r), nil
		case err != nil:
			return nil, err
		}
		u.Add(e)
	}
}

// written reports whether a process has the log open for writing. The lock of a reader
// lasts for two calls.
func (r *Reader) written() bool {
	fd := int(r.src.file.Fd())
	if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {
		return true
	}
	_ = unix.Flock(fd, unix.LOCK_UN)
	return false
}
