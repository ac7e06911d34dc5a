package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"agentsh/internal/statedir"
)

// What the directory of a run keeps besides its record, so that it can be told
// of without the results: they are the operator's to move and remove.
const (
	KeptResult  = resultName     // the [Result]
	KeptAudit   = auditName      // the audit log of the sandbox
	KeptAgent   = "agent.jsonl"  // what the agent said and did, see [AgentEvent]
	KeptLog     = agentLogName   // the lines it printed
	KeptChanges = "changes.json" // [Changes]
)

// Most that is kept of a file, in bytes. The rest is in the results only.
var keptLimits = map[string]int64{KeptAudit: 16 << 20, KeptAgent: 8 << 20, KeptLog: 1 << 20}

// Kept tells how much of a file is in the directory of a run.
type Kept struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Of    int64  `json:"of"` // what the file had; more than Bytes: the beginning is kept
}

// keepAudit keeps the audit log of a sandbox that has ended.
func (r *run) keepAudit(ctx context.Context) error {
	log, err := r.box.AuditLog(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the supervisor did not come so far
	}
	if err != nil {
		return fmt.Errorf("keep audit log: %w", err)
	}
	defer log.Close()
	return r.keep(KeptAudit, log)
}

// keepResult keeps the result, and unless a scan holds them back what the agent
// said.
func (r *run) keepResult() error {
	errs := []error{statedir.WriteJSON(filepath.Join(r.dir.path, KeptResult), r.result)}
	if r.results != nil && !r.blocked {
		for _, name := range []string{KeptAgent, KeptLog} {
			errs = append(errs, r.keepFile(name))
		}
	}
	return errors.Join(errs...)
}

func (r *run) keepFile(name string) error {
	f, err := os.Open(filepath.Join(r.results.dir(), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	defer f.Close()
	return r.keep(name, f)
}

// keep copies the whole lines of a file that its limit lets in.
func (r *run) keep(name string, from io.Reader) error {
	to, err := os.OpenFile(filepath.Join(r.dir.path, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	k := Kept{Name: name}
	if k.Bytes, err = io.Copy(to, io.LimitReader(from, keptLimits[name])); err == nil {
		k.Of, err = io.Copy(io.Discard, from)
		k.Of += k.Bytes
	}
	if err == nil && k.Of > k.Bytes {
		k.Bytes, err = cutToLines(to, k.Bytes)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	r.record.Kept = append(r.record.Kept, k)
	return nil
}

// cutToLines cuts a file of a size behind its last line end.
func cutToLines(f *os.File, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size > 0 {
		n := min(size, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], size-n); err != nil {
			return size, err
		}
		for i := n; i > 0; i-- {
			if buf[i-1] == '\n' {
				size -= n - i
				return size, f.Truncate(size)
			}
		}
		size -= n
	}
	return 0, f.Truncate(0)
}
