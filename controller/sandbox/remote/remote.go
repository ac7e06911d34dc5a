// Package remote makes sandboxes at another place: a machine or a container that this
// host reaches by a stream of bytes. A [Carrier] opens the stream. At its other end
// agentsh serve --listen answers, or a shell. A script then makes sure that the place has the
// agentsh program of this host, and starts agentsh serve --stdio.
//
// This host copies the audit log while the run goes on, and the trash before the sandbox
// ends. It stores them in a directory like that of a local sandbox.
package remote

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// Names of the backends. Each takes the addresses of its own carrier.
const (
	NameExec   = "exec"
	NameSSH    = "ssh"
	NameSocket = "socket"
)

// Config configures a backend.
type Config struct {
	Name    string // one of the names above
	Carrier Carrier
	State   statedir.Dir
	Agentsh string // path of the supervisor's program; empty: see [agentfile.Find]
	// Lease is how long a sandbox outlives a broken stream; 0: [DefaultLease].
	Lease time.Duration
	// Release removes a place that was made for one sandbox, after the sandbox; nil: places stay.
	Release func(context.Context) error
	// Image returns the digest of the image of such a place, once it is known; nil: there is none.
	Image func() (digest string, ok bool)
	// NetworkBy is who decides about the network of the place; empty: the policy does.
	NetworkBy string
	// Log returns the log that such a place has of its sandbox; nil: there is none.
	Log func(context.Context) (*sandbox.PlaceLog, error)
	// Look has Collect ask the place in any case. Otherwise it asks only if this host has
	// the directory of a sandbox whose controller is gone.
	Look bool
}

// Bounds of Config.Lease.
const (
	DefaultLease  = 2 * time.Minute
	ShortestLease = 10 * time.Second
	LongestLease  = 24 * time.Hour
)

// Backend makes sandboxes at one place.
type Backend struct {
	cfg  Config
	here *local.Backend // has the directories on this host

	mu      sync.Mutex
	reached map[string]*reached // by run
}

// New makes a backend. It changes nothing before [Backend.Create].
func New(cfg Config) *Backend {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	return &Backend{cfg: cfg, here: local.New(local.Config{State: cfg.State})}
}

// Open makes the backend of a name with the place at an address. keyFile has the key of a
// place that listens.
func Open(name, address, keyFile string, cfg Config) (*Backend, error) {
	schemes, known := map[string][]string{NameExec: {schemeExec}, NameSSH: {schemeSSH}, NameSocket: socket.Schemes}[name]
	fits := func(scheme string) bool { return strings.HasPrefix(address, scheme) }
	if !known || !slices.ContainsFunc(schemes, fits) {
		return nil, fmt.Errorf("backend %s takes an address that begins with %s, not %.100q", name, strings.Join(schemes, ", "), address)
	}
	carrier, err := Parse(address, keyFile)
	cfg.Name, cfg.Carrier = name, carrier
	return New(cfg), err
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return b.cfg.Name }

// Check implements [sandbox.Backend]. It does not connect to the place.
func (b *Backend) Check(_ context.Context, s sandbox.Spec) error {
	if b.cfg.Carrier.Shell() {
		if _, err := findSupervisors(b.cfg.Agentsh); err != nil {
			return err
		}
	}
	if err := b.CheckSpec(s); err != nil {
		return err
	}
	return b.cfg.Carrier.Check()
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error {
	if s.Image != "" {
		return errors.New("an image is a directory of this host: make it the root of the place, or use the local backend")
	}
	if s.Keep > 0 {
		return errors.New("a sandbox elsewhere ends with its run: leave out --keep-sandbox, or use the local backend")
	}
	return nil
}

// Owner names a state directory at places.
func Owner(state statedir.Dir) (string, error) {
	unlock, err := state.Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	name := filepath.Join(filepath.Dir(state.Sandboxes()), "owner.json")
	var o struct {
		Owner string `json:"owner"`
	}
	data, err := os.ReadFile(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		o.Owner = rand.Text()
		err = statedir.WriteJSON(name, o)
	case err == nil:
		err = json.Unmarshal(data, &o)
		if err == nil && o.Owner == "" {
			err = errors.New("no owner")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w: remove the file; sandboxes made before end with their lease", name, err)
		}
	}
	return o.Owner, err
}

// enter opens a stream to agentsh serve at the place, and sends a request.
func (b *Backend) enter(ctx context.Context, req wire.PlaceRequest) (_ Stream, err error) {
	if req.Owner, err = Owner(b.cfg.State); err != nil {
		return nil, err
	}
	req.Version = wire.Current
	s, err := b.stream(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := send(ctx, s, req); err != nil {
		return nil, b.failed(ctx, s, err)
	}
	return s, nil
}

// arrive opens a stream to agentsh serve at the place. Programs are read while the carrier connects.
func (b *Backend) arrive(ctx context.Context) (Stream, error) {
	var files map[string]string
	var err error
	if b.cfg.Carrier.Shell() {
		if files, err = findSupervisors(b.cfg.Agentsh); err != nil {
			return nil, err
		}
	}
	s, err := b.cfg.Carrier.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.cfg.Carrier, err)
	}
	if !b.cfg.Carrier.Shell() {
		err = greet(ctx, s)
	} else {
		var programs map[string]supervisor
		if programs, err = readSupervisors(files); err != nil {
			s.Kill()
			return nil, err
		}
		err = enter(ctx, s, programs)
	}
	if err != nil {
		return nil, b.failed(ctx, s, err)
	}
	return s, nil
}

// failed ends a stream and returns why it ended.
func (b *Backend) failed(ctx context.Context, s Stream, err error) error {
	var ended cut
	why := err
	if !errors.Is(ctx.Err(), context.Canceled) { // otherwise nobody waits for the reason
		why = explain(s, err)
	}
	s.Kill()
	if errors.As(err, &ended) && !errors.As(why, new(final)) {
		why = cut{why, ended.silent}
	}
	return fmt.Errorf("%s: %w", b.cfg.Carrier, why)
}

// request opens a stream to a sandbox, which it makes if req says so.
func (b *Backend) request(ctx context.Context, req wire.PlaceRequest) (Stream, error) {
	s, err := b.enter(ctx, req)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var answer wire.PlaceAttached
	if err = limit(ctx, s, answerWait); err == nil {
		err = stdio.Read(s, &answer, maxLeft)
	}
	if err == nil && answer.Error != "" {
		s.Kill()
		return nil, fmt.Errorf("%s: %w", b.cfg.Carrier, refusal(answer.Error))
	}
	if err == nil {
		err = errors.Join(s.SetDeadline(time.Time{}), ctx.Err())
	}
	if err != nil {
		return nil, b.failed(ctx, s, cut{error: err})
	}
	return s, nil
}

// maxRefused is how often the place may refuse to make a sandbox after a cut, or end a stream
// before agentsh has said anything. An earlier request may still be making the same one.
const maxRefused = 3

// first makes a sandbox and returns the first stream to it. After a stream that was cut, it
// is unknown whether the place has the sandbox. first then tries both until the lease ends.
func (b *Backend) first(ctx context.Context, req wire.PlaceRequest) (Stream, error) {
	s, err := b.request(ctx, req)
	var ended cut
	if !errors.As(err, &ended) {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Lease)
	defer cancel()
	refused := 0
	if ended.silent {
		refused = 1
	}
	for wait := firstRetry; err != nil && refused < maxRefused; wait = min(2*wait, lastRetry) {
		if !pause(ctx, wait) {
			return nil, err
		}
		var said refusal
		s, err = b.request(ctx, wire.PlaceRequest{Op: wire.PlaceAttach, ID: req.ID})
		if errors.As(err, &said) {
			s, err = b.request(ctx, req)
		}
		if errors.As(err, &said) || errors.As(err, &ended) && ended.silent {
			refused++
		}
	}
	return s, err
}

// pause waits. It returns false if ctx ended.
func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send sends the request.
func send(ctx context.Context, s deadliner, req wire.PlaceRequest) error {
	if err := s.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := stdio.Write(s, req); err != nil {
		return cut{error: errors.Join(err, ctx.Err())}
	}
	if err := errors.Join(s.SetDeadline(time.Time{}), ctx.Err()); err != nil {
		return cut{error: err}
	}
	return nil
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	dir, err := b.here.Reserve(s.RunID, b.cfg.Carrier.String())
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	x, err := b.start(ctx, dir, s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start supervisor: %w", err), b.release(ctx), dir.Remove())
	}
	return x, nil
}

// release removes the place of the only sandbox in it.
func (b *Backend) release(ctx context.Context) error {
	if b.cfg.Release == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
	defer cancel()
	return b.cfg.Release(ctx)
}

// Collect implements [sandbox.Backend].
func (b *Backend) Collect(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, false)
	here, hereErr := b.here.Collect(ctx)
	return merge(there, here), errors.Join(err, hereErr)
}

// Leftovers implements [sandbox.Backend].
func (b *Backend) Leftovers(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, true)
	here, hereErr := b.here.Leftovers(ctx)
	return merge(there, here), errors.Join(err, hereErr)
}

// Intervals between attempts to reach a place again.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// attach opens a further stream to a sandbox.
func (b *Backend) attach(ctx context.Context, id string) (Stream, error) {
	return b.again(ctx, wire.PlaceRequest{Op: wire.PlaceAttach, ID: id})
}

// again sends a request about a sandbox. It tries until the lease of the sandbox ends, ctx ends
// or the place says that the sandbox is gone.
func (b *Backend) again(ctx context.Context, req wire.PlaceRequest) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Lease)
	defer cancel()
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		s, err := b.request(ctx, req)
		var said refusal
		var ended *sandbox.End
		if err == nil || errors.As(err, &said) || errors.As(err, &ended) && !ended.Passes() || !pause(ctx, wait) {
			return s, err
		}
	}
}

// UsesImage implements [sandbox.Backend].
func (b *Backend) UsesImage(dir string) (bool, error) { return b.here.UsesImage(dir) }

// collectWait is the time for the place to remove what is left there.
const collectWait = 2 * time.Minute

// maxLeft bounds the answer of a place, in bytes.
const maxLeft = 1 << 20

// collect removes the sandboxes of this host at the place whose controllers are gone.
func (b *Backend) collect(ctx context.Context, dryRun bool) ([]sandbox.Leftover, error) {
	live, dead, err := b.here.Elsewhere(b.cfg.Carrier.String())
	if err != nil || len(dead) == 0 && !b.cfg.Look {
		return nil, err
	}
	s, err := b.enter(ctx, wire.PlaceRequest{Op: wire.PlaceCollect, Keep: live, DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	defer s.Kill()
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := limit(ctx, s, collectWait); err != nil {
		return nil, err
	}
	var done wire.PlaceCollected
	if err := stdio.Read(s, &done, maxLeft); err != nil {
		return nil, fmt.Errorf("%s: %w", b.cfg.Carrier, explain(s, errors.Join(err, ctx.Err())))
	}
	var out []sandbox.Leftover
	for _, x := range done.Sandboxes {
		l := sandbox.Leftover{ID: x.ID, RunID: x.ID}
		if x.Error != "" {
			l.Err = errors.New(x.Error)
		}
		out = append(out, l)
	}
	return out, nil
}
