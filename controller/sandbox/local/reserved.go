package local

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
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

// Retake locks the lease of the directory of a sandbox elsewhere whose controller is gone. at
// names the place. The error has [fs.ErrNotExist] in its chain if there is no such directory,
// and [unix.EWOULDBLOCK] if a process uses it.
func (b *Backend) Retake(runID, at string) (*Reserved, error) {
	if !idPattern().MatchString(runID) {
		return nil, fmt.Errorf("run id %q: letters, digits and dashes only", runID)
	}
	unlock, err := b.cfg.State.Lock() // a collector locks it, too
	if err != nil {
		return nil, err
	}
	defer unlock()
	d := &directory{state: b.cfg.State, path: filepath.Join(b.cfg.State.Sandboxes(), runID)}
	if d.info, err = readInfo(d.path); err != nil {
		return nil, err
	}
	if d.info.At != at {
		return nil, fmt.Errorf("its sandbox is at %s, not at %s", d.info.At, at)
	}
	if d.lease, err = statedir.TakeLock(leaseOf(d.path), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	return &Reserved{d}, nil
}

// Leave releases the lease and leaves the directory to [Backend.Collect].
func (r *Reserved) Leave() error { return r.d.lease.Close() }

// Path is the directory.
func (r *Reserved) Path() string { return r.d.path }

// AuditLog is the file of the audit log.
func (r *Reserved) AuditLog() string { return r.d.auditLog() }

// Remove removes the directory and releases its lease.
func (r *Reserved) Remove() error { return r.d.remove() }

// Elsewhere returns the ids of sandboxes elsewhere that have a directory here: all those with a
// controller, because a place may have several names, and those at a place without one.
func (b *Backend) Elsewhere(at string) (live, dead []string, err error) {
	entries, err := os.ReadDir(b.cfg.State.Sandboxes())
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(b.cfg.State.Sandboxes(), e.Name())
		i, err := readInfo(dir)
		switch {
		case err != nil || i.At == "":
		case isLeased(dir):
			live = append(live, i.ID)
		case i.At == at:
			dead = append(dead, i.ID)
		}
	}
	return live, dead, nil
}
