package local

import (
	"fmt"
	"os"
	"path/filepath"
)

// Reserved is the directory on this host of a sandbox that another backend made
// elsewhere. It has the audit log of the sandbox. Collect removes it as it removes a
// local sandbox: when its controller is gone.
type Reserved struct{ d *directory }

// Reserve makes the directory of a sandbox elsewhere, and locks its lease. at names the
// place.
func (b *Backend) Reserve(runID, at string) (*Reserved, error) {
	d, err := b.makeDirectory(runID, info{At: at})
	if err != nil {
		return nil, err
	}
	return &Reserved{d}, nil
}

// Path is the directory.
func (r *Reserved) Path() string { return r.d.path }

// AuditLog is the file of the audit log.
func (r *Reserved) AuditLog() string { return r.d.auditLog() }

// Remove removes the directory and releases its lease.
func (r *Reserved) Remove() error { return r.d.remove() }

// Elsewhere returns the ids of the sandboxes at a place that have a directory here: those
// with a controller, and those without.
func (b *Backend) Elsewhere(at string) (live, dead []string, err error) {
	entries, err := os.ReadDir(b.cfg.State.Sandboxes())
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(b.cfg.State.Sandboxes(), e.Name())
		i, err := readInfo(dir)
		switch {
		case err != nil || i.At != at:
		case isLeased(dir):
			live = append(live, i.ID)
		default:
			dead = append(dead, i.ID)
		}
	}
	return live, dead, nil
}
