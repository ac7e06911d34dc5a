// Package local makes sandboxes on this machine: a directory for the governed
// tree, and a supervisor (agentsh serve) that is connected by a socketpair.
// There is no daemon. The sandbox has access to the programs of this machine, or
// of the root file system of an image, that the policy allows. With an image the
// supervisor starts in a mount namespace of its own, where it enters the image.
//
// The supervisor ends when the controller's end of the socketpair closes, for
// whatever reason. With [sandbox.Spec.Keep] it goes on for that time and holds
// the lease meanwhile, see keep.go. A lease marks the directory of a live controller: it is a
// file lock, which the kernel releases when the controller ends. Collect
// removes the directories without a lease.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/agentfile"
	"agentsh/internal/lazy"
	"agentsh/internal/statedir"
)

// Root is the governed directory inside every sandbox.
const Root = "/sandbox"

// Name selects this backend.
const Name = "local"

// Config configures a backend.
type Config struct {
	State   statedir.Dir
	Agentsh string // path of the supervisor's program; empty: see [agentfile.Find]
	// Operator is the absolute path of the supervisor's configuration file. Empty:
	// its default file.
	Operator string
}

// Backend makes local sandboxes.
type Backend struct{ cfg Config }

// New makes a backend. It changes nothing before [Backend.Create].
func New(cfg Config) *Backend { return &Backend{cfg: cfg} }

// Name implements [sandbox.Backend].
func (*Backend) Name() string { return Name }

// agentsh is the path of the supervisor's program for this machine.
func (b *Backend) agentsh() (string, error) {
	if b.cfg.Agentsh != "" {
		return b.cfg.Agentsh, agentfile.Check(b.cfg.Agentsh, runtime.GOARCH)
	}
	return agentfile.Find(runtime.GOARCH)
}

// Check implements [sandbox.Backend]. It checks the supervisor's program and
// the free disk space.
func (b *Backend) Check(_ context.Context, s sandbox.Spec) error {
	if _, err := b.agentsh(); err != nil {
		return fmt.Errorf("find supervisor: %w", err)
	}
	if err := b.checkImage(s.Image); err != nil {
		return err
	}
	return statedir.CheckRoom(b.cfg.State.Sandboxes(), s.NeedBytes)
}

// info is the file in the directory of a sandbox that Collect reads.
type info struct {
	Version int       `json:"version"` // 1
	ID      string    `json:"id"`
	RunID   string    `json:"run_id"`
	Created time.Time `json:"created"`
	Image   string    `json:"image,omitempty"` // directory of its root file system
	At      string    `json:"at,omitempty"`    // where the sandbox is, if not on this machine: see [Reserved]
	Process           // the supervisor
}

// directory is the directory of one sandbox.
type directory struct {
	state statedir.Dir
	path  string
	lease *os.File
	info  info
}

func (d *directory) tree() string     { return filepath.Join(d.path, "tree") }
func (d *directory) auditLog() string { return filepath.Join(d.path, "audit.jsonl") }
func (d *directory) storeDir() string { return filepath.Join(d.path, "kept") }
func (d *directory) messages() string { return filepath.Join(d.path, "supervisor.log") }

// idPattern matches valid run ids.
var idPattern = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// makeDirectory makes the directory of a sandbox and locks its lease.
func (b *Backend) makeDirectory(runID string, info info) (_ *directory, err error) {
	if !idPattern().MatchString(runID) {
		return nil, fmt.Errorf("run id %q: letters, digits and dashes only", runID)
	}
	unlock, err := b.cfg.State.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	spread(b.cfg.State.Sandboxes())
	p := &directory{state: b.cfg.State, path: filepath.Join(b.cfg.State.Sandboxes(), runID)}
	if err := os.Mkdir(p.path, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // the state directory is locked here
			err = errors.Join(err, statedir.RemoveTree(p.path))
			if p.lease != nil {
				p.lease.Close()
			}
		}
	}()
	if p.lease, err = statedir.TakeLock(leaseOf(p.path), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	p.info = info
	p.info.Version, p.info.ID, p.info.RunID, p.info.Created = 1, runID, runID, time.Now().UTC()
	return p, p.writeInfo()
}

// topDir is FS_TOPDIR_FL of linux/fs.h: subdirectories are unrelated to each
// other.
const topDir = 0x00020000

// spread makes ext4 put each sandbox into another area of the disk. ext4 does
// not reuse the inodes of recently deleted files, and checks each of them when
// a file is created nearby. Without spread, the files of a sandbox would be
// created where those of the previous one were. The flag is advice; other file
// systems do not support it. See ioctl_iflags(2), FS_TOPDIR_FL.
func spread(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&topDir != 0 {
		return
	}
	_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|topDir)
}

// readInfo reads what is known of the sandbox in a directory.
func readInfo(dir string) (i info, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "info.json"))
	if err == nil {
		err = json.Unmarshal(data, &i)
	}
	return i, err
}

// leaseName is the file that is locked while the controller is alive.
const leaseName = "lease"

func leaseOf(dir string) string { return filepath.Join(dir, leaseName) }

func (d *directory) writeInfo() error {
	return statedir.WriteJSON(filepath.Join(d.path, "info.json"), d.info)
}

// remove deletes the directory and releases the lease last. It locks the state
// directory meanwhile. So a collector never finds a directory without its lease
// file, which it would create again.
func (d *directory) remove() error {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it is already removed
	}
	for _, e := range entries {
		if e.Name() != leaseName {
			err = errors.Join(err, statedir.RemoveTree(filepath.Join(d.path, e.Name())))
		}
	}
	unlock, lockErr := d.state.Lock()
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer unlock()
	err = errors.Join(err, statedir.RemoveTree(d.path))
	if d.lease != nil {
		err = errors.Join(err, d.lease.Close())
		d.lease = nil
	}
	return err
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	program, err := b.agentsh()
	if err != nil {
		return nil, fmt.Errorf("find supervisor: %w", err)
	}
	p, err := b.makeDirectory(s.RunID, info{Image: s.Image})
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	if err := os.Mkdir(p.tree(), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox: %w", err), p.remove())
	}
	box, err := start(ctx, p, b.cfg.Operator, program, s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start supervisor: %w", err), p.remove())
	}
	return box, nil
}

// Collect implements [sandbox.Backend].
func (b *Backend) Collect(ctx context.Context) ([]sandbox.Leftover, error) {
	dead, err := b.orphans()
	if err != nil {
		return nil, err
	}
	var found []sandbox.Leftover
	for _, p := range dead {
		removed, err := p.collect(ctx)
		if l := p.leftover(); removed || err != nil {
			l.Err = err
			found = append(found, l)
		}
	}
	return found, ctx.Err()
}

// Leftovers implements [sandbox.Backend].
func (b *Backend) Leftovers(ctx context.Context) ([]sandbox.Leftover, error) {
	dead, err := b.orphans()
	if err != nil {
		return nil, err
	}
	var found []sandbox.Leftover
	for _, p := range dead {
		found = append(found, p.leftover())
		if p.lease != nil {
			err = errors.Join(err, p.lease.Close())
		}
	}
	return found, errors.Join(err, ctx.Err())
}

// collect ends the supervisor of a sandbox and removes the sandbox. Its audit log is
// moved to the record of the run. It returns false if another process removes it.
func (d *directory) collect(ctx context.Context) (removed bool, err error) {
	err = d.info.End(ctx)
	if d.lease == nil && err != nil {
		return false, err
	}
	if d.lease == nil { // the supervisor had locked it
		d.lease, err = statedir.TakeLock(leaseOf(d.path), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			return false, nil // a collector is removing it, or has removed it
		}
		if err != nil {
			return false, err
		}
	}
	return true, errors.Join(err, d.storeAudit(), d.remove())
}

// orphans locks the leases of the sandboxes whose controller is gone. A locked
// lease excludes other collectors. A supervisor that has outlived its lease still
// holds it, see [overdue].
func (b *Backend) orphans() ([]*directory, error) {
	unlock, err := b.cfg.State.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(b.cfg.State.Sandboxes())
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var dead []*directory
	for _, e := range entries {
		if p := b.orphan(filepath.Join(b.cfg.State.Sandboxes(), e.Name())); p != nil {
			dead = append(dead, p)
		}
	}
	return dead, nil
}

func (d *directory) leftover() sandbox.Leftover {
	return sandbox.Leftover{ID: filepath.Base(d.path), RunID: d.info.RunID}
}

// storeAudit moves the audit log to the record of the run, which has the name
// of the sandbox. Without a record the log is not stored.
func (d *directory) storeAudit() error {
	to := filepath.Join(d.state.Runs(), filepath.Base(d.path), filepath.Base(d.auditLog()))
	err := os.Rename(d.auditLog(), to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// orphan locks the lease of a sandbox whose controller is gone; nil if the
// controller is alive. It ends no process.
func (b *Backend) orphan(dir string) *directory {
	p := &directory{state: b.cfg.State, path: dir}
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return nil
	}
	lease, err := statedir.TakeLock(leaseOf(dir), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !overdue(dir) {
		return nil
	}
	p.lease = lease
	// A file that is incomplete after a crash names no process. Its supervisor ended
	// with the controller's socket.
	p.info, _ = readInfo(dir)
	return p
}
