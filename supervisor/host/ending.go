package host

import (
	"errors"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"

	"agentsh/internal/layout"
	"agentsh/internal/snapshot"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
)

var errEnded = &wire.Error{Code: wire.CodeRefused, Message: "the session has ended"}

// ending closes a session and its audit log once. A controller on another machine asks
// for it before it closes its connection: it then reads the last events, and the trash.
type ending struct {
	session *supervisor.Session
	log     *audit.Log
	boot    wire.Bootstrap

	over   atomic.Bool
	mu     sync.Mutex
	closed bool
	err    error
	ended  *wire.Ended
	logged bool
}

// close closes the session.
func (e *ending) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closeSession()
}

func (e *ending) closeSession() error {
	e.over.Store(true)
	if !e.closed {
		e.closed, e.err = true, e.session.Close()
	}
	return e.err
}

// closeLog closes the audit log, after the session.
func (e *ending) closeLog() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.endLog()
}

func (e *ending) endLog() error {
	if e.logged {
		return nil
	}
	e.logged = true
	return e.log.Close()
}

// export closes the session and its log, and copies the trash to ExportDir.
func (e *ending) export() (wire.Ended, error) {
	if e.boot.ExportDir == "" {
		return wire.Ended{}, &wire.Error{Code: wire.CodeUnsupported, Message: "this session ends with its connection"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return *e.ended, nil
	}
	if err := errors.Join(e.closeSession(), e.endLog()); err != nil {
		return wire.Ended{}, err
	}
	store, err := snapshot.OpenStore(e.boot.StoreDir)
	if err != nil {
		return wire.Ended{}, err
	}
	files, err := store.ExportTrash(filepath.Join(e.boot.ExportDir, path.Base(layout.ExportedTrash)))
	if err != nil {
		return wire.Ended{}, err
	}
	e.ended = &wire.Ended{Trashed: files}
	return *e.ended, nil
}
