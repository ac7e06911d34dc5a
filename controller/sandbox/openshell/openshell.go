// Package openshell makes sandboxes by a gateway of OpenShell. Each sandbox of a run is one of OpenShell's.
//
// A gateway of 0.1 takes messages. One of 0.0.x is reached by OpenShell's own program: see older.go.
//
// gateway.go speaks to the gateway. policy.go renders the policy of the run as one of OpenShell's, which judges
// there: a second supervisor that judges cannot run beneath it. place.go makes the sandbox. A stream is an interactive exec of
// agentsh serve --stdio, over which package remote makes the session: see doc/platforms/openshell.md.
package openshell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/openshell/gateways"
	"agentsh/controller/sandbox/openshell/program"
	"agentsh/controller/sandbox/remote"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Name is the name of the backend.
const Name = "openshell"

// Config configures a backend.
type Config struct {
	Gateway Gateway
	Start   []string // the command that starts the gateway of this machine if none answers; empty: none
	// Without are the guarantees that OpenShell does not hold and the operator gives up: see
	// [agentsh/controller/openshell.Guarantees].
	Without []string
	// Providers are providers of the gateway that stay, by the name of a provider of harnesses. Others are made for each run.
	Providers map[string]Provider
	State     statedir.Dir
	Agentsh   string              // path of the supervisor's program; empty: see [agentfile.Find]
	Lease     time.Duration       // see [remote.Config]
	Look      bool                // see [remote.Config]
	Getenv    func(string) string // finds a registered gateway
}

// Backend makes sandboxes in one workspace of a gateway.
type Backend struct {
	cfg     Config
	gateway *gateway
	given   []string // settings that are written down, see [given]
	remote.Sweep

	mu      sync.Mutex
	version string // of the gateway; empty: it was not asked
}

// Open makes a backend. It connects to nothing yet.
func Open(cfg Config) (*Backend, error) {
	cfg.Lease = cmp.Or(cfg.Lease, remote.DefaultLease)
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	set := given(cfg.Gateway)
	for _, of := range slices.Sorted(maps.Keys(cfg.Providers)) {
		if err := cfg.Providers[of].Check(of); err != nil {
			return nil, err
		}
	}
	if err := cfg.Gateway.find(cfg.Getenv); err != nil {
		return nil, err
	}
	if len(cfg.Start) > 0 {
		if err := gateways.Local(cfg.Gateway.Address); err != nil {
			return nil, err
		}
	}
	g, err := newGateway(cfg.Gateway)
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, gateway: g, given: set}
	b.Sweep = remote.Sweep{State: cfg.State, At: b.at(), Look: cfg.Look, Find: b.found}
	return b, nil
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return Name }

// at names the workspace in the directories of sandboxes.
func (b *Backend) at() string { return Name + " " + b.cfg.Gateway.Address + " " + b.gateway.workspace }

// Has implements [sandbox.Swapper].
func (b *Backend) Has(provider string) bool { return b.cfg.Providers[provider].Reconcile == Attach }

// Pull implements [sandbox.Puller]. The gateway gets images, so only a name with a digest has one here.
func (b *Backend) Pull(_ context.Context, name string) (sandbox.Image, error) {
	out := sandbox.Image{Name: name, ID: name}
	if _, digest, ok := strings.Cut(name, "@"); ok {
		out.Digest = digest
	}
	return out, nil
}

// Check implements [sandbox.Backend]. It renders the policy, and asks the gateway for its version.
func (b *Backend) Check(ctx context.Context, s sandbox.Spec) error {
	err := b.CheckSpec(s)
	if err != nil {
		return err
	}
	if len(b.cfg.Start) == 0 {
		_, err = b.health(ctx)
	} else {
		err = gateways.Starter{Command: b.cfg.Start, Dir: b.cfg.State.OpenShell(), Environ: os.Environ()}.Ensure(ctx, b.health)
	}
	if err == nil && b.isOlder() {
		err = checkOlderSpec(s)
	}
	return err
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error {
	held, err := check(s, b.cfg.Without)
	if err != nil || held == nil {
		return err
	}
	return b.bindable(held, s)
}

// CheckSpec returns what no gateway takes, if a run may lose the guarantees of without.
func CheckSpec(s sandbox.Spec, without []string) error {
	_, err := check(s, without)
	return err
}

// check returns the rendered policy of a specification; nil: it has none yet.
func check(s sandbox.Spec, without []string) (*pb.SandboxPolicy, error) {
	c := s.Container
	switch {
	case s.Image != "":
		return nil, errors.New("a root file system of this host is for the local backend: leave out --image")
	case s.Keep > 0:
		return nil, errors.New("a sandbox of OpenShell ends with its run: leave out --keep-sandbox, or use the local backend")
	case c.Image.ID == "":
		return nil, errors.New("backend openshell makes a sandbox from an image: write image: NAME in the harness")
	case c.User != "" || c.PIDs > 0 || c.CPUs > 0 || c.MemoryMB > 0 || c.DiskMB > 0 || c.Network != "" || len(c.Mounts) > 0:
		return nil, errors.New("container: OpenShell decides about the container of its sandboxes: leave it out")
	}
	if len(s.Policy) == 0 {
		return nil, nil
	}
	return rendered(s, without)
}

// health implements [gateways.Health]. It decides how the gateway is reached.
func (b *Backend) health(ctx context.Context) (answers bool, err error) {
	b.mu.Lock()
	b.version = "" // it may have been replaced
	b.mu.Unlock()
	b.gateway.conn.ResetConnectBackoff() // it may have started since the last question
	old, err := b.older(ctx)
	switch {
	case err == nil && old != nil:
		return true, checkOlder(ctx, old)
	case err == nil:
		err = b.gateway.check(ctx)
	}
	return !silent(err), err
}

// isOlder reports whether the gateway, whose version is known, is one of 0.0.x.
func (b *Backend) isOlder() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return program.Known(b.version)
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	old, err := b.older(ctx)
	switch {
	case err != nil:
		return nil, err
	case old != nil:
		p := &olderPlace{b: b, program: *old, spec: s}
		return remote.New(p.remote()).Create(ctx, s)
	}
	p := &place{b: b, spec: s}
	s.Credentials = nil // the gateway has them
	return remote.New(p.remote()).Create(ctx, s)
}

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	old, err := b.older(ctx)
	switch {
	case err != nil:
		return nil, err
	case old != nil:
		p := &olderPlace{b: b, program: *old, spec: sandbox.Spec{RunID: runID}}
		if err := p.find(ctx); err != nil {
			return nil, err
		}
		return remote.New(p.remote()).Take(ctx, runID)
	}
	p := &place{b: b, spec: sandbox.Spec{RunID: runID}}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	return remote.New(p.remote()).Take(ctx, runID)
}

// found lists the sandboxes of an owner at the gateway. Names are compared too: a label that somebody else set deletes nothing.
func (b *Backend) found(ctx context.Context, owner string) ([]remote.Found, error) {
	old, err := b.older(ctx)
	switch {
	case err != nil:
		return nil, err
	case old != nil:
		return b.foundOlder(ctx, old, owner)
	}
	all, err := b.gateway.list(ctx, labelOwner+"="+owner)
	var out []remote.Found
	for _, s := range all {
		name := s.GetMetadata().GetName()
		if run := s.GetMetadata().GetLabels()[labelRun]; plain(run) && name == nameOf(run) {
			out = append(out, remote.Found{Run: run, Remove: func(ctx context.Context) error { return b.gateway.remove(ctx, name) }})
		}
	}
	if err != nil {
		return out, err
	}
	more, err := b.gateway.foundProviders(ctx, owner)
	return append(out, more...), err
}

// who holds rules beside agentsh and writes the log of a sandbox, in results.
const who = "OpenShell"

// Holds implements [sandbox.Holder]: the groups that the rendered policy has. All of the workspace is open to agentsh, which OpenShell
// does not tell from commands.
func (b *Backend) Holds() map[string]string {
	return map[string]string{wire.GroupFiles: who, wire.GroupNetwork: who, wire.GroupCredentials: who}
}

var (
	_ sandbox.Puller      = (*Backend)(nil)
	_ sandbox.Taker       = (*Backend)(nil)
	_ sandbox.Holder      = (*Backend)(nil)
	_ sandbox.Swapper     = (*Backend)(nil)
	_ sandbox.SpecChecker = (*Backend)(nil)
)

// maxName bounds the name of a sandbox, in characters, as OpenShell does.
const maxName = 19

// nameOf is the name of a run's sandbox: the end of the run's id, which is random.
func nameOf(run string) string {
	name := strings.ToLower(strings.NewReplacer("t", "", "-", "").Replace(run))
	if over := len(name) + 2 - maxName; over > 0 {
		name = name[over:] // the end is random
	}
	return "a-" + name
}

// plain reports whether a name or the id of a run that the gateway lists could be ours: others would be shown as they are.
func plain(name string) bool {
	return name != "" && len(name) <= 100 &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// checkName refuses the name of a sandbox that OpenShell does not take.
func checkName(name string) error {
	if len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("sandbox name %q: OpenShell takes 1 to %d of a-z, 0-9 and -", name, maxName)
	}
	return nil
}
