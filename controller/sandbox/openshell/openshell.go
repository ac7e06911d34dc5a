// Package openshell makes sandboxes by a gateway of OpenShell 0.1. Each sandbox of a run is one of OpenShell's.
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
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Name is the name of the backend.
const Name = "openshell"

// Config configures a backend.
type Config struct {
	Gateway Gateway
	// Without are the guarantees that OpenShell does not hold and the operator gives up: see
	// [agentsh/controller/openshell.Guarantees].
	Without []string
	State   statedir.Dir
	Agentsh string        // path of the supervisor's program; empty: see [agentfile.Find]
	Lease   time.Duration // see [remote.Config]
	Look    bool          // see [remote.Config]
}

// Backend makes sandboxes in one workspace of a gateway.
type Backend struct {
	cfg     Config
	gateway *gateway
	here    *local.Backend // has the directories on this host
}

// Open makes a backend. It connects to nothing yet.
func Open(cfg Config) (*Backend, error) {
	cfg.Lease = cmp.Or(cfg.Lease, remote.DefaultLease)
	g, err := newGateway(cfg.Gateway)
	if err != nil {
		return nil, err
	}
	return &Backend{cfg: cfg, gateway: g, here: local.New(local.Config{State: cfg.State})}, nil
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return Name }

// at names the workspace in the directories of sandboxes.
func (b *Backend) at() string { return Name + " " + b.cfg.Gateway.Address + " " + b.gateway.workspace }

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
	c := s.Container
	switch {
	case s.Image != "":
		return errors.New("a root file system of this host is for the local backend: leave out --image")
	case s.Keep > 0:
		return errors.New("a sandbox of OpenShell ends with its run: leave out --keep-sandbox, or use the local backend")
	case c.Image.ID == "":
		return errors.New("backend openshell makes a sandbox from an image: write image: NAME in the harness")
	case c.User != "" || c.PIDs > 0 || c.CPUs > 0 || c.MemoryMB > 0 || c.DiskMB > 0 || c.Network != "" || len(c.Mounts) > 0:
		return errors.New("container: OpenShell decides about the container of its sandboxes: leave it out")
	}
	if len(s.Policy) > 0 { // a check before the policy is known has none
		if _, err := rendered(s, b.cfg.Without); err != nil {
			return err
		}
	}
	return b.gateway.check(ctx)
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	p := &place{b: b, spec: s}
	return remote.New(p.remote()).Create(ctx, s)
}

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	p := &place{b: b, spec: sandbox.Spec{RunID: runID}}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	return remote.New(p.remote()).Take(ctx, runID)
}

// Collect implements [sandbox.Backend].
func (b *Backend) Collect(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, false)
	here, hereErr := b.here.Collect(ctx)
	return remote.Merge(there, here), errors.Join(err, hereErr)
}

// Leftovers implements [sandbox.Backend].
func (b *Backend) Leftovers(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, true)
	here, hereErr := b.here.Leftovers(ctx)
	return remote.Merge(there, here), errors.Join(err, hereErr)
}

// collect deletes the sandboxes of this host whose controllers are gone.
func (b *Backend) collect(ctx context.Context, dryRun bool) ([]sandbox.Leftover, error) {
	_, dead, err := b.here.Elsewhere(b.at())
	if err != nil || len(dead) == 0 && !b.cfg.Look {
		return nil, err
	}
	owner, err := remote.Owner(b.cfg.State)
	if err != nil {
		return nil, err
	}
	all, err := b.gateway.list(ctx, labelOwner+"="+owner)
	if err != nil {
		return nil, err
	}
	// Asked after the list: a sandbox that was made since is not in it.
	live, _, err := b.here.Elsewhere(b.at())
	if err != nil {
		return nil, err
	}
	alive := map[string]bool{}
	for _, id := range live {
		alive[id] = true
	}
	var out []sandbox.Leftover
	for _, s := range all {
		run := s.GetMetadata().GetLabels()[labelRun]
		if run == "" || alive[run] {
			continue
		}
		l := sandbox.Leftover{ID: run, RunID: run}
		if !dryRun {
			l.Err = b.gateway.remove(ctx, s.GetMetadata().GetName())
		}
		out = append(out, l)
	}
	return out, nil
}

// Holds implements [sandbox.Holder]: the groups that the rendered policy has.
func (b *Backend) Holds() map[string]string {
	const who = "OpenShell"
	return map[string]string{wire.GroupFiles: who, wire.GroupWorkspace: who, wire.GroupNetwork: who}
}

// UsesImage implements [sandbox.Backend].
func (b *Backend) UsesImage(dir string) (bool, error) { return b.here.UsesImage(dir) }

var (
	_ sandbox.Puller = (*Backend)(nil)
	_ sandbox.Taker  = (*Backend)(nil)
	_ sandbox.Holder = (*Backend)(nil)
)

// names: OpenShell takes at most 19 characters.
const maxName = 19

// nameOf is the name of a run's sandbox: its time and what makes it the only one, without what all names have.
func nameOf(run string) string {
	name := strings.ToLower(strings.NewReplacer("t", "", "-", "").Replace(run))
	if over := len(name) + 2 - maxName; over > 0 {
		name = name[over:] // the end is random
	}
	return "a-" + name
}

// list of what a run may not be called: none. The name is checked all the same.
func checkName(name string) error {
	if len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("sandbox name %q: OpenShell takes 1 to %d of a-z, 0-9 and -", name, maxName)
	}
	return nil
}
