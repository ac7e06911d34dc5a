package controller

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/listen"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// Files of a run's directory by which other processes of its user reach the
// sandbox while the run goes on.
const (
	doorSocket = "socket"
	doorKeys   = "keys.json"
	doorActs   = "operator.jsonl" // one [OperatorAct] a line
)

// maxActs is the largest list of what operators did, in bytes. Beyond it nothing
// more is done for them.
const maxActs = 4 << 20

// OperatorAct is something that was done in a sandbox from outside its run.
type OperatorAct struct {
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	What string    `json:"what"` // what does not print as itself is written out
}

// relayer is a sandbox that lets further clients in over its own connection.
type relayer interface {
	Relay(ctx context.Context, conn net.Conn, cfg channel.RelayConfig) error
}

// doorKeyFile are the keys that a caller needs: who can read the file is let in.
type doorKeyFile struct {
	Key     []byte `json:"key"`      // the caller's private half
	HostKey []byte `json:"host_key"` // the door's public half
}

// door is a socket in the directory of a run. What comes in there is passed on
// over the run's own connection, is held to the same policy, and is written
// down before it is done. The supervisor answers nobody else.
type door struct {
	path     string
	dir      *os.File // path, so that the socket's name is short
	to       relayer
	host     []byte // own private key
	public   []byte // of callers
	end      func(by string, force bool)
	listener net.Listener
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu   sync.Mutex
	acts *os.File
	size int64
}

// openDoor opens the door of the run's sandbox.
func (r *run) openDoor(ctx context.Context) error {
	to, ok := r.box.(relayer)
	if !ok {
		return nil // this kind of sandbox lets nobody in
	}
	d := &door{path: r.dir.path, to: to, end: r.endBy}
	if err := d.open(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("let operators in: %w", err)
	}
	r.door = d
	return nil
}

func (d *door) open(ctx context.Context) (err error) {
	var keys doorKeyFile
	if d.host, keys.HostKey, err = channel.NewKeyPair(); err != nil {
		return err
	}
	if keys.Key, d.public, err = channel.NewKeyPair(); err != nil {
		return err
	}
	data, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.path, doorKeys), data, 0o600); err != nil {
		return err
	}
	if d.acts, err = os.OpenFile(filepath.Join(d.path, doorActs), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	var address string
	if d.dir, address, err = doorAddress(d.path); err != nil {
		return errors.Join(err, d.acts.Close())
	}
	if d.listener, err = channel.Listen(ctx, address); err != nil {
		return errors.Join(err, d.acts.Close(), d.dir.Close())
	}
	ctx, d.cancel = context.WithCancel(ctx)
	d.wg.Go(func() { d.serve(ctx) })
	return nil
}

// doorAddress is the address of the socket in a directory, while the returned
// file is open: the path of a state directory may be longer than that of a
// socket can be. See unix(7).
func doorAddress(dir string) (*os.File, string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, "", err
	}
	return f, fmt.Sprintf("unix:///proc/self/fd/%d/%s", f.Fd(), doorSocket), nil
}

// serve lets callers in until the listener is closed, and waits for their ends.
func (d *door) serve(ctx context.Context) {
	var callers sync.WaitGroup
	defer callers.Wait()
	spared := &listen.Sparing{Listener: d.listener}
	for {
		conn, err := spared.Accept()
		if err != nil {
			return // it was closed
		}
		peer, err := channel.OwnCaller(conn)
		if err != nil {
			_ = conn.Close()
			continue
		}
		by := "operator " + userName(peer.Uid)
		callers.Go(func() {
			// How a caller's connection ended is for the caller.
			_ = d.to.Relay(ctx, conn, channel.RelayConfig{
				HostKey: d.host, AuthorizedKey: d.public, By: by,
				Note: func(what string) error { return d.note(by, what) },
				Stop: func(force bool) { d.end(by, force) },
			})
		})
	}
}

// userName names a user.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return text.Short(u.Username, 40)
	}
	return "uid " + id
}

// note writes down what is about to be done.
func (d *door) note(by, what string) error {
	line, err := json.Marshal(OperatorAct{Time: time.Now().UTC(), By: by, What: what})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.size += int64(len(line)) + 1; d.size > maxActs {
		return errors.New("too much was done in this sandbox from outside: its list is full")
	}
	if _, err := d.acts.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write down what is done: %w", err)
	}
	return nil
}

// shut ends every caller's connection and lets nobody in any more. The caller of
// shut calls close when the sandbox has ended.
func (d *door) shut() {
	if d != nil {
		d.cancel()
		_ = d.listener.Close() // closed before, when it is an error
	}
}

// close waits for callers and removes what let them in. Closing twice is no
// error.
func (d *door) close() error {
	if d == nil || d.dir == nil {
		return nil
	}
	d.shut()
	d.wg.Wait()
	err := errors.Join(d.acts.Close(), d.dir.Close())
	d.dir = nil
	return errors.Join(err, removeDoor(d.path))
}

// removeDoor removes what let callers in to a sandbox that is gone.
func removeDoor(dir string) error {
	var errs []error
	entries, err := os.ReadDir(dir)
	errs = append(errs, err)
	for _, e := range entries { // a listener that was killed may have left the directory it makes its socket in
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") {
			errs = append(errs, statedir.RemoveTree(filepath.Join(dir, e.Name())))
		}
	}
	for _, name := range []string{doorSocket, doorKeys} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// endBy ends the run for an operator: a sandbox that is kept is given up, a run
// that goes on is stopped as by a signal. force gives up what would be taken out.
func (r *run) endBy(by string, force bool) {
	r.released.Do(func() { close(r.release) })
	if !r.keeping.Load() {
		r.interrupt(Interrupted{Signal: endSignal, By: by})
	}
	if force {
		r.hurry()
	}
}

// keepSandbox keeps the sandbox of a run that failed until its lease runs out,
// or somebody ends it.
func (r *run) keepSandbox(ctx context.Context) error {
	if ctx.Err() != nil || r.door == nil {
		return nil
	}
	until := time.Now().Add(r.o.Keep).UTC()
	r.record.KeptUntil = &until
	if err := r.dir.write(r.record); err != nil {
		return err
	}
	r.keeping.Store(true)
	r.warn("the sandbox is kept until %s: 'agentctl sandbox shell %s' leads into it, 'agentctl sandbox delete %s' or Ctrl-C ends it",
		until.Local().Format(time.DateTime), r.box.ID(), r.box.ID())
	t := time.NewTimer(r.o.Keep)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-r.release:
	case <-r.box.Gone():
	}
	r.record.KeptUntil = nil
	return nil
}

// ErrNoSandbox means that no sandbox has the name.
var ErrNoSandbox = errors.New("no such sandbox")

// FindSandbox finds a run with its sandbox by the sandbox's id, by a beginning of
// it that no other sandbox has, or by the word [Latest].
func FindSandbox(state statedir.Dir, name string) (RunInfo, error) {
	all, failed := Sandboxes(state) // what cannot be read is no reason to refuse others
	var found []RunInfo
	for _, one := range all {
		switch {
		case one.Sandbox == name, name == Latest:
			return one, nil
		case name != "" && strings.HasPrefix(one.Sandbox, name):
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return RunInfo{}, errors.Join(fmt.Errorf("%w: %.64q", ErrNoSandbox, name), failed)
	case 1:
		return found[0], nil
	}
	return RunInfo{}, fmt.Errorf("%d sandboxes begin with %.64q: %s and %s", len(found), name, found[0].Sandbox, found[1].Sandbox)
}

// Sandboxes lists the runs that go on and have a sandbox, the newest first.
func Sandboxes(state statedir.Dir) ([]RunInfo, error) {
	all, err := Runs(state)
	var out []RunInfo
	for _, one := range all {
		if one.Live && one.Sandbox != "" {
			out = append(out, one)
		}
	}
	return out, err
}

// Attach connects to the sandbox of a run that goes on. The caller closes the
// client.
func (i RunInfo) Attach(ctx context.Context, build string) (*channel.Client, error) {
	dir, address, err := doorAddress(i.Path)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", i.Sandbox, err)
	}
	defer dir.Close()
	var keys doorKeyFile
	err = i.ReadKept(doorKeys, &keys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sandbox %s is not ready yet, or is ending", i.Sandbox)
	}
	if err != nil {
		return nil, err
	}
	conn, err := channel.Dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", i.Sandbox, err)
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{Key: keys.Key, HostKey: keys.HostKey, Build: build})
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", i.Sandbox, err)
	}
	return client, nil
}

// Done lists what was done in the run's sandbox from outside.
func (i RunInfo) Done() ([]OperatorAct, error) {
	file := filepath.Join(i.Path, doorActs)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []OperatorAct
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxActs)
	for lines.Scan() {
		var act OperatorAct
		if err := json.Unmarshal(lines.Bytes(), &act); err != nil {
			return out, fmt.Errorf("read %s: line %d: %w", file, len(out)+1, err)
		}
		out = append(out, act)
	}
	if err := lines.Err(); err != nil {
		return out, fmt.Errorf("read %s: %w", file, err)
	}
	return out, nil
}
