// Package kubernetes makes sandboxes in pods of a cluster. Each sandbox is one pod, made from
// the image of the harness: by itself, or by a Sandbox or a SandboxClaim of agent-sandbox.
//
// Process 1 of the pod is agentsh serve --container. An init container brings the program, or
// this host sends it to a shell of the image. A stream is an exec of agentsh serve --stdio in
// the pod, over which package remote makes the sandbox. When the supervisor ends, process 1
// ends, and with it the pod. So nothing runs longer than the lease after its controller.
package kubernetes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/agentfile"
	"agentsh/internal/statedir"
)

// Config configures a backend.
type Config struct {
	Address string // of the cluster, see [Forms]; empty: that which kubectl uses
	State   statedir.Dir
	Agentsh string        // path of the supervisor's program; empty: see [agentfile.Find]
	Lease   time.Duration // see [remote.Config]
	Look    bool          // see [remote.Config]
	Getenv  func(string) string
}

// Backend makes sandboxes in one namespace of a cluster.
type Backend struct {
	cfg     Config
	cluster cluster
	dynamic dynamic.Interface
	remote.Sweep
}

// quiet keeps messages of the client library from the terminal: its errors are returned.
var quiet = sync.OnceFunc(func() {
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			panic("kubernetes: " + err.Error()) // the library has no such flag any more
		}
	}
	klog.SetOutput(io.Discard)
})

// Open makes a backend. It does not connect to the cluster yet.
func Open(cfg Config) (*Backend, error) {
	quiet()
	if cfg.Lease == 0 {
		cfg.Lease = remote.DefaultLease
	}
	c, err := find(cfg.Address, cfg.Getenv)
	if err != nil {
		return nil, err
	}
	c.rest.WarningHandler = rest.NoWarnings{}
	c.rest.UserAgent = "agentctl"
	c.rest.QPS, c.rest.Burst = requestRate, requestBurst
	b := &Backend{cfg: cfg, cluster: c}
	b.Sweep = remote.Sweep{State: cfg.State, At: b.at(), Look: cfg.Look, Find: b.found}
	b.dynamic, err = dynamic.NewForConfig(c.calls())
	return b, err
}

// Bounds of requests to the API server.
const (
	requestRate  = 50 // a second
	requestBurst = 100
	requestTime  = 30 * time.Second
)

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return Name }

// at names the cluster and the namespace in the directories of sandboxes.
func (b *Backend) at() string { return Name + " " + b.cluster.rest.Host + " " + b.cluster.namespace }

// Pull implements [sandbox.Puller]. Nodes get images, so only a name with a digest has one here.
func (b *Backend) Pull(_ context.Context, name string) (sandbox.Image, error) {
	return sandbox.Image{Name: name, ID: name, Digest: digestOf(name)}, nil
}

// Check implements [sandbox.Backend]. It asks the API server for the rights of this user.
func (b *Backend) Check(ctx context.Context, s sandbox.Spec) error {
	if err := b.CheckSpec(s); err != nil {
		return err
	}
	c := s.Container
	if c.Cluster.Program.Image == "" {
		if _, err := agentfile.Find(thisArch); err != nil && b.cfg.Agentsh == "" {
			return fmt.Errorf("find supervisor: %w", err)
		}
	}
	if err := b.checkRights(ctx, c.Cluster); err != nil {
		return err
	}
	return b.checkPool(ctx, c.Cluster.Managed)
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error {
	c := s.Container
	switch {
	case s.Image != "":
		return errors.New("a root file system of this host is for the local backend: leave out --image")
	case s.Keep > 0:
		return errors.New("a sandbox in a pod ends with its run: leave out --keep-sandbox, or use the local backend")
	case c.Image.ID == "" && c.Cluster.Managed.WarmPool == "":
		return errors.New("backend kubernetes makes a pod: write image: NAME in the harness")
	case c.PIDs > 0:
		return errors.New("container.pids: a cluster limits the processes of a pod for whole nodes: leave it out")
	case c.Network != "" && c.Network != "none":
		return errors.New("container.network: a pod has the network of its cluster: leave it out, or write none")
	case c.Network == "none" && c.Cluster.Open:
		return errors.New("container.network: none is a NetworkPolicy: leave out kubernetes.network_policy: false")
	}
	if err := checkMounts(c.Mounts); err != nil {
		return err
	}
	_, err := describe(c, nil, b.cfg.Lease)
	return err
}

// right is something that a user may do in a namespace.
type right struct{ verb, group, resource, part string }

// rights are what a run needs.
func rights(c sandbox.Cluster) []right {
	// A stream is a GET where it is a WebSocket, and a POST with SPDY.
	out := []right{{"get", "", "pods", ""}, {"list", "", "pods", ""}, {"watch", "", "pods", ""},
		{"create", "", "pods", "exec"}, {"get", "", "pods", "exec"}}
	switch m := c.Managed; {
	case m.WarmPool != "":
		for _, verb := range managedVerbs {
			out = append(out, right{verb, claims.Group, claims.Resource, ""})
		}
	case m.Sandbox:
		for _, verb := range managedVerbs {
			out = append(out, right{verb, sandboxes.Group, sandboxes.Resource, ""})
		}
	default:
		out = append(out, right{"create", "", "pods", ""}, right{"delete", "", "pods", ""})
	}
	if !c.Open {
		for _, verb := range []string{"create", "patch", "delete"} {
			out = append(out, right{verb, "networking.k8s.io", "networkpolicies", ""})
		}
	}
	return out
}

// managedVerbs are the verbs for objects of agent-sandbox.
var managedVerbs = []string{"create", "get", "patch", "delete"}

// checkRights reports the rights that this user lacks.
func (b *Backend) checkRights(ctx context.Context, c sandbox.Cluster) error {
	var missing []string
	for _, r := range rights(c) {
		ok, err := b.allowed(ctx, r)
		if err != nil {
			return err
		}
		if !ok {
			name := r.verb + " " + r.resource
			if r.part != "" {
				name += "/" + r.part
			}
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &sandbox.End{
		Kind: sandbox.EndRefused, Text: fmt.Sprintf("this user may not do in namespace %s: %s", b.cluster.namespace, list(missing)),
		Hint: "have an administrator apply packaging/kubernetes, whose Role has these rights, and bind it to this user",
	}
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	p := &place{b: b, spec: s}
	return remote.New(p.remote()).Create(ctx, s)
}

var _ sandbox.Puller = (*Backend)(nil)
