// Package local makes sandboxes on this machine: a directory for the governed
// tree and a supervisor (agentsh serve) that is connected by a socketpair.
// There is no daemon and no image: the sandbox sees this machine's programs as
// far as the policy shows them.
//
// The supervisor ends when the controller's end of the socketpair closes, for
// whatever reason. The directory of a controller that was killed is found by
// its lease, a lock that ended with the controller, and removed by Collect.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/agentfile"
	"agentsh/internal/statedir"
)

// Root is the governed directory inside every sandbox.
const Root = "/sandbox"

// Name selects this backend.
const Name = "local"

// Config is what a backend is made of.
type Config struct {
	State   statedir.Dir
	Agentsh string // path of the supervisor's program; empty: see [agentfile.Find]
	// Operator is the supervisor's configuration file, absolute; empty: the one
	// it finds by itself.
	Operator string
}

// Backend makes local sandboxes.
type Backend struct{ cfg Config }

// New makes a backend; nothing is touched before [Backend.Create].
func New(cfg Config) *Backend { return &Backend{cfg: cfg} }

// Name implements [sandbox.Backend].
func (*Backend) Name() string { return Name }

// agentsh is the supervisor's program for this machine.
func (b *Backend) agentsh() (string, error) {
	if b.cfg.Agentsh != "" {
		return b.cfg.Agentsh, agentfile.Check(b.cfg.Agentsh, runtime.GOARCH)
	}
	return agentfile.Find(runtime.GOARCH)
}

// Check implements [sandbox.Backend]: the supervisor's program, and room on the
// disk.
func (b *Backend) Check(_ context.Context, s sandbox.Spec) error {
	if _, err := b.agentsh(); err != nil {
		return fmt.Errorf("find supervisor: %w", err)
	}
	return statedir.CheckRoom(b.cfg.State.Sandboxes(), s.NeedBytes)
}

// info is what the directory of a sandbox says about it, for Collect.
type info struct {
	Version int       `json:"version"` // 1
	ID      string    `json:"id"`
	RunID   string    `json:"run_id"`
	Created time.Time `json:"created"`
	PID     int       `json:"pid,omitempty"`        // the supervisor
	Start   uint64    `json:"start_time,omitempty"` // its start, proc(5) field 22
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

// idPattern is what a run may be called.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// makeDirectory makes the directory of a sandbox and takes its lease.
func (b *Backend) makeDirectory(runID string) (_ *directory, err error) {
	if !idPattern.MatchString(runID) {
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
		if err != nil { // the state is locked here
			err = errors.Join(err, statedir.RemoveTree(p.path))
			if p.lease != nil {
				p.lease.Close()
			}
		}
	}()
	if p.lease, err = statedir.TakeLock(leaseOf(p.path), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	if err := os.Mkdir(p.tree(), 0o755); err != nil {
		return nil, err
	}
	p.info = info{Version: 1, ID: runID, RunID: runID, Created: time.Now().UTC()}
	return p, p.writeInfo()
}

// topDir is FS_TOPDIR_FL of linux/fs.h: what is below the directory is unrelated.
const topDir = 0x00020000

// spread has ext4 put each sandbox in another place of the disk. It does not use
// the inodes again of files that were deleted in the last minutes, and looks at
// each of them whenever a file is made near them: the files of a sandbox would
// come where those of the last one were. It is advice; other file systems
// do not know it. See ioctl_iflags(2), FS_TOPDIR_FL.
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

// leaseName is the file whose lock says that the controller lives.
const leaseName = "lease"

func leaseOf(dir string) string { return filepath.Join(dir, leaseName) }

func (d *directory) writeInfo() error {
	return statedir.WriteJSON(filepath.Join(d.path, "info.json"), d.info)
}

// remove deletes the directory and gives up the lease last. The lease and the
// directory go under the state's lock: a collector never meets a directory
// without its lease, for which it would make a new one.
func (d *directory) remove() error {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it was removed before
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
	p, err := b.makeDirectory(s.RunID)
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
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
		l := p.leftover()
		l.Err = errors.Join(endProcess(ctx, p.info), p.keepAudit(), p.remove())
		found = append(found, l)
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
		err = errors.Join(err, p.lease.Close())
	}
	return found, errors.Join(err, ctx.Err())
}

// orphans takes the leases of the sandboxes whose controller is gone: one that
// is held keeps other collectors off.
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

// keepAudit puts the audit log beside the record of the run, which is named as
// the sandbox is. A run without a record keeps nothing.
func (d *directory) keepAudit() error {
	to := filepath.Join(d.state.Runs(), filepath.Base(d.path), filepath.Base(d.auditLog()))
	err := os.Rename(d.auditLog(), to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// orphan takes the lease of a sandbox whose controller is gone; nil when it
// lives.
func (b *Backend) orphan(dir string) *directory {
	p := &directory{state: b.cfg.State, path: dir}
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return nil
	}
	lease, err := statedir.TakeLock(leaseOf(dir), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil
	}
	p.lease = lease
	if data, err := os.ReadFile(filepath.Join(dir, "info.json")); err == nil {
		// A record that a crash cut short names no process; its supervisor ended
		// with the controller's socket.
		_ = json.Unmarshal(data, &p.info)
	}
	return p
}
