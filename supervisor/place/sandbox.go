package place

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/lazy"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/cgroup"
)

// dirName is the directory of the sandboxes in the state directory.
const dirName = "remote"

// places are the sandboxes of this user for controllers elsewhere.
type places struct {
	Options
	dir string
}

func newPlaces(o Options) *places {
	return &places{Options: o, dir: filepath.Join(filepath.Dir(o.State.Sandboxes()), dirName)}
}

// names matches valid names of sandboxes and owners.
var names = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// sandbox is the directory of one sandbox.
type sandbox struct {
	dir    string
	lease  *os.File // locked while a process is responsible for the directory
	labels wire.PlaceLabels
	locked *os.File // the directory of this machine that the sandbox uses; nil: none
}

const (
	leaseName  = "lease"
	labelsName = "labels.json"
	logName    = "supervisor.log"
)

// make makes the directory of a sandbox, and locks its lease. Then it removes those for which no
// process is responsible.
func (p *places) make(req wire.PlaceRequest) (_ *sandbox, err error) {
	for _, name := range []string{req.ID, req.Owner} {
		if !names().MatchString(name) {
			return nil, fmt.Errorf("sandbox or owner %.100q: letters, digits and dashes only", name)
		}
	}
	if req.Bootstrap == nil || req.Bootstrap.Resume == nil {
		return nil, errors.New("the request has no bootstrap, or no lease")
	}
	if err := statedir.CheckRoom(p.dir, req.NeedBytes); err != nil {
		return nil, err
	}
	b, dead, err := p.reserve(req)
	for _, d := range dead {
		_ = d.remove() // the next one tries again
	}
	return b, err
}

// reserve makes the directory of a sandbox, and locks its lease and those of the dead ones. The
// state directory is locked meanwhile. Removing a large tree takes longer than others wait for it.
func (p *places) reserve(req wire.PlaceRequest) (_ *sandbox, dead []*sandbox, err error) {
	unlock, err := p.State.Lock()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	dead = p.dead()
	b := &sandbox{dir: filepath.Join(p.dir, req.ID)}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, dead, fmt.Errorf("make sandbox: %w", err)
	}
	b.labels = wire.PlaceLabels{
		Version: 1, ID: req.ID, Owner: req.Owner, Created: time.Now().UTC(), LeaseSeconds: req.Bootstrap.Resume.Seconds,
	}
	b.lease, err = statedir.TakeLock(filepath.Join(b.dir, leaseName), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = errors.Join(
			os.Mkdir(filepath.Join(b.dir, "tree"), 0o755), os.Mkdir(filepath.Join(b.dir, "export"), 0o700), b.write())
	}
	if err != nil {
		return nil, dead, errors.Join(fmt.Errorf("make sandbox: %w", err), b.remove())
	}
	return b, dead, nil
}

// dead are the sandboxes for which no process was responsible. Now this one is: their leases are
// locked. So are those that a process removes, which it may not have finished. The state directory
// is locked.
func (p *places) dead() (out []*sandbox) {
	for _, b := range p.all() {
		if b.gone() || b.lock() == nil {
			out = append(out, b)
		}
	}
	return out
}

// all are the sandboxes that there are.
func (p *places) all() []*sandbox {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil
	}
	var out []*sandbox
	for _, e := range entries {
		b := &sandbox{dir: filepath.Join(p.dir, e.Name())}
		data, err := os.ReadFile(filepath.Join(b.dir, labelsName))
		if err == nil {
			err = json.Unmarshal(data, &b.labels)
		}
		if err != nil { // a crash left it incomplete
			b.labels = wire.PlaceLabels{}
		}
		b.labels.ID = e.Name()
		out = append(out, b)
	}
	return out
}

// lock locks the lease if no process has locked it.
func (b *sandbox) lock() (err error) {
	b.lease, err = statedir.TakeLock(filepath.Join(b.dir, leaseName), unix.LOCK_EX|unix.LOCK_NB)
	return err
}

// goneName begins the names of directories that are being removed. No sandbox has it.
const goneName = ".gone-"

// gone reports whether the directory is being removed.
func (b *sandbox) gone() bool { return strings.HasPrefix(filepath.Base(b.dir), goneName) }

// remove removes the directory and releases the lease. Others do not find it meanwhile. It stays
// while another sandbox has the directory of this machine in which this one left files.
func (b *sandbox) remove() error {
	if b.gone() {
		return statedir.RemoveTree(b.dir)
	}
	left := b.leaveReal()
	if errors.Is(left, errInUse) {
		return errors.Join(left, b.release())
	}
	gone := filepath.Join(filepath.Dir(b.dir), goneName+filepath.Base(b.dir))
	err := os.Rename(b.dir, gone)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it is already removed
	}
	return errors.Join(left, err, statedir.RemoveTree(gone), b.release())
}

// release releases the lease.
func (b *sandbox) release() error {
	if b.lease == nil {
		return nil
	}
	err := b.lease.Close()
	b.lease = nil
	return err
}

// audit is the path of the audit log.
func (b *sandbox) audit() string { return filepath.Join(b.dir, "audit.jsonl") }

// process is the supervisor.
func (b *sandbox) process() target.Process {
	return target.Process{PID: b.labels.PID, Start: b.labels.Start}
}

func (b *sandbox) write() error {
	return statedir.WriteJSON(filepath.Join(b.dir, labelsName), b.labels)
}

// follower has the files of a sandbox that are needed after its end.
type follower struct {
	sandbox  *sandbox
	messages *os.File // of the supervisor
	lease    *os.File // can be locked when the supervisor has ended
	oomKills int      // before; see [cgroup.ContainerOOMKills]
}

func (b *sandbox) follow() (*follower, error) {
	messages, err := os.OpenFile(filepath.Join(b.dir, logName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	lease, err := os.Open(filepath.Join(b.dir, leaseName))
	if err != nil {
		return nil, errors.Join(err, messages.Close())
	}
	before, _ := cgroup.ContainerOOMKills() // an unknown number explains nothing
	return &follower{b, messages, lease, before}, nil
}

func (f *follower) close() {
	_ = f.messages.Close()
	_ = f.lease.Close()
}
