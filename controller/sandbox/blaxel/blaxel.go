// Package blaxel makes sandboxes at Blaxel, by its REST interface. Each sandbox of a run is one of
// Blaxel's: a micro virtual machine made from the image of the harness.
//
// api.go speaks the REST interface. place.go makes the virtual machine: it sends agentsh and a key, and
// has Blaxel's sandbox API start agentsh serve --listen there. Streams are WebSockets to that port, and
// package remote makes the sandbox over them. agentsh ends itself when its sandbox has ended. Blaxel then
// has nothing that keeps the virtual machine awake, and deletes it after a time.
//
// The shapes of requests and answers are those of the vendor's library, @blaxel/core 0.3.21, which drives
// the double of the tests too.
package blaxel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/agentfile"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Name is the name of the backend.
const Name = "blaxel"

// scheme begins the addresses of workspaces.
const scheme = "workspace:"

// Forms says what an address may be.
const Forms = scheme + "NAME, " + scheme + "NAME/REGION"

// Config configures a backend.
type Config struct {
	Address string // of the workspace, see [Forms]; empty: BL_WORKSPACE and BL_REGION
	KeyFile string // has Blaxel's API key; empty: BL_API_KEY
	State   statedir.Dir
	Agentsh string        // path of the supervisor's program; empty: see [agentfile.Find]
	Lease   time.Duration // see [remote.Config]
	Look    bool          // see [remote.Config]
	Getenv  func(string) string
}

// Backend makes sandboxes in one workspace.
type Backend struct {
	cfg    Config
	region string
	api    *api
	late   time.Duration // see lateTime
	look   time.Duration // see buildLook
	remote.Sweep
}

// Open makes a backend. It connects to nothing yet.
func Open(cfg Config) (*Backend, error) {
	cfg.Lease = cmp.Or(cfg.Lease, remote.DefaultLease)
	workspace, region := cfg.Getenv("BL_WORKSPACE"), cfg.Getenv("BL_REGION")
	if cfg.Address != "" {
		rest, ok := strings.CutPrefix(cfg.Address, scheme)
		name, in, _ := strings.Cut(rest, "/")
		if !ok || name == "" {
			return nil, fmt.Errorf("%.200q is no address of a workspace: it is one of %s", cfg.Address, Forms)
		}
		workspace, region = name, cmp.Or(in, region)
	}
	if workspace == "" {
		return nil, errors.New("no workspace: write --connect " + scheme + "NAME, or set BL_WORKSPACE")
	}
	key := cfg.Getenv("BL_API_KEY")
	if cfg.KeyFile != "" {
		var err error
		if key, err = readKey(cfg.KeyFile); err != nil {
			return nil, err
		}
	}
	if key == "" {
		return nil, errors.New("no key: write --connect-key FILE, or set BL_API_KEY")
	}
	a, err := newAPI(cmp.Or(cfg.Getenv("BL_API_URL"), defaultURL), workspace, key, cfg.Getenv(hostsVariable))
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, region: region, api: a, late: lateTime, look: buildLook}
	b.Sweep = remote.Sweep{State: cfg.State, At: b.at(), Look: cfg.Look, Find: b.found}
	return b, nil
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return Name }

// Key is the API key, which nothing that is sent may have.
func (b *Backend) Key() string { return b.api.key }

// at names the workspace in the directories of sandboxes.
func (b *Backend) at() string { return Name + " " + b.api.base + " " + b.api.workspace }

// Pull implements [sandbox.Puller]. Blaxel gets images, so only a name with a digest has one here.
func (b *Backend) Pull(_ context.Context, name string) (sandbox.Image, error) {
	out := sandbox.Image{Name: name, ID: name}
	if _, digest, ok := strings.Cut(name, "@"); ok {
		out.Digest = digest
	}
	return out, nil
}

// Bounds of the memory of a virtual machine, in MiB. Blaxel's documents name sizes of up to 16384. What a workspace may have is a matter
// of its tier.
const (
	minMemory = 512
	maxMemory = 65536
)

// CheckMemory checks the memory of a virtual machine, in MiB.
func CheckMemory(mib int64) error {
	if mib < minMemory || mib > maxMemory {
		return fmt.Errorf("%d: a sandbox at Blaxel has %d to %d MiB of memory", mib, minMemory, maxMemory)
	}
	return nil
}

// Check implements [sandbox.Backend]. It asks Blaxel whether the key is good for the workspace.
func (b *Backend) Check(ctx context.Context, s sandbox.Spec) error {
	if err := CheckSpec(s); err != nil {
		return err
	}
	if _, err := b.program(); err != nil {
		return err
	}
	return b.api.check(ctx)
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error { return CheckSpec(s) }

// CheckSpec returns what no workspace at Blaxel takes.
func CheckSpec(s sandbox.Spec) error {
	c := s.Container
	switch {
	case s.Image != "":
		return errors.New("a root file system of this host is for the local backend: leave out --image")
	case s.Keep > 0:
		return errors.New("a sandbox at Blaxel ends with its run: leave out --keep-sandbox, or use the local backend")
	case c.Image.ID == "":
		return errors.New(
			"backend blaxel makes a virtual machine: write image: NAME in the harness, as in image: blaxel/base-image:latest",
		)
	case c.User != "" || c.PIDs > 0 || c.CPUs > 0 || c.DiskMB > 0 || len(c.Mounts) > 0:
		return errors.New("container: Blaxel takes memory_mb alone, which decides about processors and disk too: leave out the rest")
	case c.Network != "":
		return errors.New("container.network: the policy decides about the network of a sandbox at Blaxel: leave it out")
	}
	if c.MemoryMB != 0 {
		if err := CheckMemory(c.MemoryMB); err != nil {
			return &sandbox.KeyError{Key: "container.memory_mb", Err: fmt.Errorf("%w: write container: {memory_mb: %d}", err, defaultMemory)}
		}
	}
	return checkDegraded(s)
}

// checkDegraded refuses fallbacks under which nothing keeps commands from the sandbox API: see [apiPolicy].
func checkDegraded(s sandbox.Spec) error {
	names := func(list []wire.Setting, name string) bool {
		return slices.ContainsFunc(list, func(d wire.Setting) bool { return d.Name == name })
	}
	for _, d := range s.Degraded {
		if d.Name == "nested_commands" || d.Name == "any" && !names(s.Require, "exec_verify") {
			return fmt.Errorf("%s: degraded: %s: Blaxel's sandbox API in the machine asks for no key, and a session without an engine cannot "+
				"keep commands from it: leave it out, or write require: [exec_verify] beside any", d.At, d.Name)
		}
	}
	return nil
}

// arch is the architecture of Blaxel's machines.
const arch = "amd64"

// program is the supervisor's program for the virtual machines.
func (b *Backend) program() (string, error) {
	if b.cfg.Agentsh != "" {
		return b.cfg.Agentsh, agentfile.Check(b.cfg.Agentsh, arch)
	}
	program, err := agentfile.Find(arch)
	if err != nil {
		return "", fmt.Errorf("find supervisor: %w", err)
	}
	return program, nil
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	s.Policy = guarded(s.Policy)
	p := &place{b: b, spec: s}
	return remote.New(p.remote()).Create(ctx, s)
}

// apiPolicy is the policy that a session at Blaxel has before its own. Blaxel's sandbox API listens at port 8080 of the
// virtual machine and asks for no key there: whoever reaches it starts processes and writes files past every policy. The rule
// has no addresses: nobody here knows which ones the machine has.
const apiPolicy = `{"version": 1, "name": "blaxel", "extends": [%q], "network_rules": [{
  "name": "blaxel-sandbox-api", "ports": [8080], "decision": "deny", "message": "the sandbox API of Blaxel is not for commands"}]}
`

// guarded puts the rule against the sandbox API before a policy.
func guarded(policy []wire.PolicySource) []wire.PolicySource {
	if len(policy) == 0 {
		return nil
	}
	main := policy[0].Name
	own := wire.PolicySource{Name: path.Join(path.Dir(main), "blaxel.yaml"), Data: fmt.Appendf(nil, apiPolicy, main)}
	return append([]wire.PolicySource{own}, policy...)
}

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	p := &place{b: b, spec: sandbox.Spec{RunID: runID}}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	return remote.New(p.remote()).Take(ctx, runID)
}

// found lists the sandboxes of an owner at Blaxel.
func (b *Backend) found(ctx context.Context, owner string) ([]remote.Found, error) {
	all, err := b.api.list(ctx)
	var out []remote.Found
	for _, r := range all {
		// Names are compared too: a label that somebody else set deletes nothing.
		run := r.Metadata.Labels[labelRun]
		if run != "" && r.Metadata.Labels[labelOwner] == owner && r.Metadata.Name == nameOf(run) && !r.gone() {
			out = append(out, remote.Found{Run: run, Remove: func(ctx context.Context) error { return b.api.remove(ctx, r.Metadata.Name) }})
		}
	}
	return out, err
}

var (
	_ sandbox.Puller = (*Backend)(nil)
	_ sandbox.Taker  = (*Backend)(nil)
)
