// Package docker makes sandboxes in containers of Docker or podman, by the Engine API, which both
// serve. Each sandbox is one container, made from the image of the harness.
//
// Process 1 of the container is agentsh serve --container, which this host puts in. A stream
// is an exec of agentsh serve --stdio in it, over which package remote makes the sandbox.
// When the supervisor ends, process 1 ends, and the engine removes the container. So nothing
// outlives a controller for longer than the lease.
package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/agentfile"
	"agentsh/internal/statedir"
)

// Config configures a backend.
type Config struct {
	Name    string // [Name] or [NamePodman]
	Address string // of the engine; empty: that which the engine's own program uses
	State   statedir.Dir
	Agentsh string // path of the supervisor's program; empty: see [agentfile.Find]
	// Operator is the supervisor's configuration file on this host; empty: that of the image.
	Operator string
	Lease    time.Duration // see [remote.Config]
	Look     bool          // see [remote.Config]
	Getenv   func(string) string
}

// Backend makes sandboxes in containers of one engine.
type Backend struct {
	cfg    Config
	host   string // address of the engine
	engine *client.Client
	remote.Sweep

	mu     sync.Mutex
	info   *system.Info // nil: not asked yet
	images map[string]imageFacts
}

// Open makes a backend. It does not connect to the engine yet.
func Open(cfg Config) (*Backend, error) {
	if cfg.Lease == 0 {
		cfg.Lease = remote.DefaultLease
	}
	of := find
	if cfg.Name == NamePodman {
		of = findPodman
	}
	e, err := of(cfg.Address, cfg.Getenv)
	if err != nil {
		return nil, err
	}
	engine, err := e.connect(cfg.Name)
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, host: e.Host, engine: engine, images: map[string]imageFacts{}}
	b.Sweep = remote.Sweep{State: cfg.State, At: b.at(), Look: cfg.Look, Find: b.found}
	return b, nil
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return b.cfg.Name }

// at names the engine in the directories of sandboxes.
func (b *Backend) at() string { return b.cfg.Name + " " + b.host }

// explain adds what to do to the error of an engine that does not answer.
func (b *Backend) explain(err error) error {
	if err == nil || !client.IsErrConnectionFailed(err) && !strings.Contains(err.Error(), "cannot connect to the Docker daemon") {
		return err
	}
	hint := "start it, or name another with --connect or DOCKER_HOST; 'docker version' shows which one the docker program uses"
	if b.cfg.Name == NamePodman {
		hint = "start it: 'systemctl --user start podman.socket', as root without --user; or name another with --connect or CONTAINER_HOST"
	}
	text := fmt.Sprintf("the engine at %s does not answer", b.host)
	if cause := errors.Unwrap(errors.Unwrap(err)); cause != nil {
		text += ": " + cause.Error()
	}
	return &sandbox.End{Kind: sandbox.EndUnreachable, Text: text, Hint: hint, Err: err}
}

// asked returns what the engine says of itself.
func (b *Backend) asked(ctx context.Context) (*system.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.info != nil {
		return b.info, nil
	}
	got, err := b.engine.Info(ctx, client.InfoOptions{})
	if err == nil {
		err = b.checkKind(ctx)
	}
	rootless := false
	if err == nil && b.cfg.Name == NamePodman {
		rootless, err = b.rootlessPodman(ctx)
	}
	if err != nil {
		return nil, b.explain(err)
	}
	if rootless {
		got.Info.SecurityOptions = append(got.Info.SecurityOptions, ofRootless)
	}
	b.info = &got.Info
	return b.info, nil
}

// Check implements [sandbox.Backend]. It asks the engine.
func (b *Backend) Check(ctx context.Context, s sandbox.Spec) error {
	if err := b.CheckSpec(s); err != nil {
		return err
	}
	info, err := b.asked(ctx)
	if err != nil {
		return err
	}
	if info.OSType != "" && info.OSType != "linux" {
		return fmt.Errorf("the engine at %s has containers of %s: switch it to Linux containers", b.host, info.OSType)
	}
	c := s.Container
	if _, err := agentfile.Find(b.facts(c.Image.ID).arch); err != nil && b.cfg.Agentsh == "" {
		return fmt.Errorf("find supervisor: %w", err)
	}
	err = errors.Join(checkLimits(info, c), checkMounts(c.Mounts, b.host), checkNetwork(c.Network))
	if b.cfg.Name == NamePodman && strings.HasPrefix(b.host, schemeUnix) {
		err = errors.Join(err, checkSources(c.Mounts))
	}
	return err
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error {
	switch {
	case s.Image != "":
		return errors.New("a root file system of this host is for the local backend: leave out --image")
	case s.Keep > 0:
		return errors.New("a sandbox in a container ends with its run: leave out --keep-sandbox, or use the local backend")
	case s.Container.Image.ID == "":
		return errors.New("no image: write image: NAME in the harness")
	}
	return nil
}

func (b *Backend) facts(id string) imageFacts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.images[id]
}

// ofRootless begins the security option of an engine that has not the rights of root.
const ofRootless = "name=rootless"

// checkLimits rejects limits that the engine would not keep.
func checkLimits(info *system.Info, c sandbox.Container) error {
	rootless := slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.HasPrefix(o, ofRootless) })
	old := rootless && info.CgroupVersion == "1"
	var errs []error
	for _, l := range []struct {
		set, has bool
		key      string
	}{
		{c.MemoryMB > 0, info.MemoryLimit && !old, "memory_mb"},
		{c.CPUs > 0, info.CPUCfsQuota && !old, "cpus"},
		{c.PIDs > 0, info.PidsLimit && !old, "pids"},
	} {
		if l.set && !l.has {
			errs = append(errs, fmt.Errorf("container.%s: this engine cannot limit that (cgroup version %s, rootless: %t): "+
				"leave it out, or use a machine with cgroup version 2 and its controllers delegated", l.key, info.CgroupVersion, rootless))
		}
	}
	return errors.Join(errs...)
}

// checkMounts rejects mounts that would give the sandbox away.
func checkMounts(mounts []sandbox.Mount, host string) error {
	var errs []error
	for _, m := range mounts {
		if s := strings.TrimRight(m.Source, "/"); strings.HasSuffix(s, "/docker.sock") || strings.HasSuffix(s, "/podman.sock") ||
			schemeUnix+s == host {
			errs = append(errs, fmt.Errorf("container.mounts: %s is the socket of an engine: whoever has it controls that machine", m.Source))
		}
		target := path.Clean(m.Target)
		for _, own := range []string{"/proc", "/sys", "/dev", "/sandbox", dirInside, "/etc/agentsh", "/var/tmp"} {
			if target == "/" || target == own || strings.HasPrefix(target, own+"/") {
				errs = append(errs, fmt.Errorf("container.mounts: target %s: it has files of the sandbox itself: take another", m.Target))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// checkNetwork rejects networks that are not the container's own.
func checkNetwork(name string) error {
	if name == "host" || strings.HasPrefix(name, "container:") || strings.HasPrefix(name, "ns:") {
		return fmt.Errorf("container.network: %s is the network of somebody else: write none, or the name of a network of the engine", name)
	}
	return nil
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	c := &container{b: b, spec: s}
	in := remote.New(remote.Config{Name: b.cfg.Name, Carrier: c, State: b.cfg.State, Lease: b.cfg.Lease, Release: c.remove})
	return in.Create(ctx, s)
}

// Labels of containers.
const (
	labelOwner = "agentsh.owner" // the state directory of the controller
	labelRun   = "agentsh.run"
)

// found lists the containers of an owner.
func (b *Backend) found(ctx context.Context, owner string) ([]remote.Found, error) {
	list, err := b.engine.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelOwner+"="+owner),
	})
	if err != nil {
		return nil, b.explain(err)
	}
	var out []remote.Found
	for _, c := range list.Items {
		out = append(out, remote.Found{
			Run: c.Labels[labelRun], Remove: func(ctx context.Context) error { return b.removeContainer(ctx, c.ID) },
		})
	}
	return out, nil
}

// removeContainer removes a container. One that is gone is no error.
func (b *Backend) removeContainer(ctx context.Context, id string) error {
	_, err := b.engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove container %.12s: %w", id, b.explain(err))
	}
	return nil
}

var _ sandbox.Puller = (*Backend)(nil)
