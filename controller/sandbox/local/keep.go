package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Kept is a sandbox whose supervisor goes on without its controller.
type Kept struct {
	ID    string
	Until time.Time // the end of its lease
	dir   string
	state statedir.Dir
}

// clientKeys are the keys of a client of a kept sandbox. Every user who can read
// the file can connect.
type clientKeys struct {
	Key     []byte `json:"key"`      // private key of the client
	HostKey []byte `json:"host_key"` // public key of the supervisor
}

// writeKeys stores the keys for other controllers.
func (b *box) writeKeys() error {
	return statedir.WriteJSON(filepath.Join(b.dir.path, layout.KeptKeys), clientKeys{b.keys.client, b.keys.hostPublic})
}

// Keep implements [sandbox.Sandbox].
func (b *box) Keep(ctx context.Context) (time.Time, error) {
	if b.keep == 0 {
		return time.Time{}, errors.New("the sandbox was not made to outlive its controller")
	}
	b.mu.Lock()
	client := b.client
	b.conn, b.client, b.stopped = nil, nil, true
	b.mu.Unlock()
	if client != nil {
		_ = client.Close() // its error is that of the connection
	}
	k := Kept{ID: b.ID(), dir: b.dir.path, state: b.dir.state}
	next, err := k.Dial(ctx, "agentctl") // answered once the lease has begun
	if err != nil {
		return time.Time{}, b.orCause(err)
	}
	err = next.Close()
	found, ok := FindKept(b.dir.state, b.ID())
	if !ok {
		err = errors.Join(err, fmt.Errorf("sandbox %s was not kept", b.ID()))
	}
	if err == nil {
		b.mu.Lock()
		b.left = true
		b.mu.Unlock()
	}
	return found.Until, err
}

// FindKept finds a kept sandbox by its id.
func FindKept(state statedir.Dir, id string) (Kept, bool) {
	k := Kept{ID: id, dir: filepath.Join(state.Sandboxes(), id), state: state}
	if !idPattern().MatchString(id) {
		return k, false
	}
	var ok bool
	if k.Until, ok = keptUntil(k.dir); !ok || !isLeased(k.dir) {
		return k, false
	}
	return k, true
}

// keptUntil is the end of the lease of a kept sandbox.
func keptUntil(dir string) (time.Time, bool) {
	var kept wire.Kept
	data, err := os.ReadFile(filepath.Join(dir, layout.KeptFile))
	if err != nil || json.Unmarshal(data, &kept) != nil {
		return time.Time{}, false
	}
	return kept.Until, true
}

// isLeased reports whether a process has locked the lease.
func isLeased(dir string) bool {
	f, err := os.Open(leaseOf(dir))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Dial connects to the supervisor. The caller closes the client.
func (k Kept) Dial(ctx context.Context, build string) (*channel.Client, error) {
	dir, err := os.Open(k.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	data, err := os.ReadFile(filepath.Join(k.dir, layout.KeptKeys))
	if err != nil {
		return nil, err
	}
	var keys clientKeys
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, fmt.Errorf("read %s: %w", layout.KeptKeys, err)
	}
	conn, err := channel.Dial(ctx, fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), layout.KeptSocket))
	if err != nil {
		return nil, err
	}
	return channel.NewClient(ctx, conn, channel.ClientConfig{Key: keys.Key, HostKey: keys.HostKey, Build: build})
}

// Delete ends the supervisor and removes the sandbox. Its audit log is moved to
// the record of the run.
func (k Kept) Delete(ctx context.Context) error {
	d := &directory{state: k.state, path: k.dir}
	var err error
	if d.info, err = readInfo(k.dir); err == nil {
		_, err = d.collect(ctx)
	}
	if err != nil {
		return fmt.Errorf("delete sandbox %s: %w", k.ID, err)
	}
	return nil
}

// lateEnd is how long a supervisor may take to end after its lease.
const lateEnd = time.Minute

// overdue reports whether a supervisor has not ended after its lease.
func overdue(dir string) bool {
	until, ok := keptUntil(dir)
	return ok && time.Since(until) >= lateEnd
}

var _ sandbox.Sandbox = (*box)(nil)
