package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"agentsh/controller/record"
	"agentsh/internal/statedir"
)

// storeAudit stores the audit log of an ended sandbox beside the record.
func (r *run) storeAudit(ctx context.Context) error {
	log, err := r.box.AuditLog(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the supervisor did not start
	}
	if err != nil {
		return fmt.Errorf("store audit log: %w", err)
	}
	defer log.Close()
	return r.store(record.AuditFile, log)
}

// storeResult stores the result beside the record. It stores the agent's logs
// too, unless a scan blocked the run.
func (r *run) storeResult() error {
	errs := []error{statedir.WriteJSON(filepath.Join(r.dir.Path, record.ResultFile), r.result)}
	if r.results != nil && !r.blocked {
		for _, name := range []string{record.AgentEventsFile, record.AgentLogFile} {
			errs = append(errs, r.storeFile(name))
		}
	}
	return errors.Join(errs...)
}

func (r *run) storeFile(name string) error {
	f, err := os.Open(filepath.Join(r.results.dir(), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", name, err)
	}
	defer f.Close()
	return r.store(name, f)
}

func (r *run) store(name string, from io.Reader) error {
	s, err := r.dir.Store(name, from)
	if err == nil {
		r.record.Stored = append(r.record.Stored, s)
	}
	return err
}
