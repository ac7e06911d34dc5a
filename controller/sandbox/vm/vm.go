// Package vm makes sandboxes in virtual machines of this host, by a VMM that the operator has:
// qemu, Firecracker or Cloud Hypervisor. Each sandbox is one machine.
//
// machine.go makes the directory of a machine, boots it and opens streams to it. Process 1 of the
// machine is agentsh serve --init, from an initramfs that has its keys. Package remote makes
// the sandbox over a stream. When the supervisor ends, the machine switches itself off. So
// nothing outlives a controller for longer than the lease. driver.go and the files of the VMMs
// say how each of them is started.
package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/vmimage"
	"agentsh/internal/agentfile"
	"agentsh/internal/statedir"
)

// Name of the backend.
const Name = "vm"

// Config configures a backend.
type Config struct {
	Machine Machine
	Images  map[string]string // path of an image, by the name in harnesses
	State   statedir.Dir
	Agentsh string // path of the supervisor's program; empty: see [agentfile.Find]
	// Operator is the supervisor's configuration file on this host; empty: that of the image.
	Operator string
	Lease    time.Duration // see [remote.Config]
	Look     bool          // see [remote.Config]
}

// Machine is what the operator configures about all machines. Zero values are defaults.
type Machine struct {
	Driver   string // one of [Drivers]; empty: the first whose program is there
	Program  string // path of the VMM; empty: on the PATH
	Kernel   string // of images that have none
	Modules  string // directory of the modules of Kernel; empty: see [vmimage.FindModules]
	MemoryMB int64
	CPUs     int
	Emulate  bool     // qemu does without KVM
	Network  *Network // for drivers that need an interface of this host
}

// Network is an interface of this host for one machine.
type Network struct {
	TAP     string   // name
	Address string   // of the machine, with the length of the prefix
	Gateway string   // address of this host there
	DNS     []string // addresses of name servers
}

// Defaults of a machine.
const (
	DefaultMemoryMB = 2048
	DefaultCPUs     = 2
)

// Backend makes sandboxes in virtual machines.
type Backend struct {
	cfg    Config
	driver driver
	remote.Sweep
}

// Open makes a backend. It starts nothing.
func Open(cfg Config) (*Backend, error) {
	if cfg.Lease == 0 {
		cfg.Lease = remote.DefaultLease
	}
	cfg.Machine.MemoryMB = cmp.Or(cfg.Machine.MemoryMB, DefaultMemoryMB)
	cfg.Machine.CPUs = cmp.Or(cfg.Machine.CPUs, DefaultCPUs)
	d, err := findDriver(cfg.Machine)
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, driver: d}
	b.Sweep = remote.Sweep{State: cfg.State, At: b.at(), Look: true, Find: b.found}
	return b, nil
}

// Name implements [sandbox.Backend].
func (b *Backend) Name() string { return Name }

// at names the machines of this host in the directories of sandboxes.
func (b *Backend) at() string { return Name }

// Pull implements [sandbox.Puller]. It finds the image of a name on this host.
func (b *Backend) Pull(_ context.Context, name string) (sandbox.Image, error) {
	const make = "make one with 'agentctl image build SOURCE --kernel FILE --to DIR'"
	if name == "" {
		return sandbox.Image{}, errors.New("a virtual machine boots from an image: write image: NAME in the harness; " + make)
	}
	path, known := b.cfg.Images[name]
	if !known && filepath.IsAbs(name) {
		path = name
	}
	if path == "" {
		names := strings.Join(slices.Sorted(maps.Keys(b.cfg.Images)), ", ")
		return sandbox.Image{}, fmt.Errorf("no image %s on this host (known: %s): name its directory with --image %s=DIR, "+
			"or in images of agentctl.yaml; %s",
			name, cmp.Or(names, "none"), name, make)
	}
	i, err := b.image(path)
	return sandbox.Image{Name: name, ID: path, Digest: i.Digest}, err
}

// OfHost implements [sandbox.HostPuller].
func (b *Backend) OfHost() {}

// image opens an image, with the operator's kernel if it has none.
func (b *Backend) image(path string) (vmimage.Image, error) {
	i, err := vmimage.Open(path)
	if err != nil || i.Kernel.File != "" {
		return i, err
	}
	m := b.cfg.Machine
	if m.Kernel == "" {
		return i, fmt.Errorf("image %s has no kernel: write vm: {kernel: FILE} in agentctl.yaml, "+
			"or make an image with a kernel by 'agentctl image build'", path)
	}
	if i.Kernel, err = vmimage.OpenKernel(m.Kernel); err != nil {
		return i, err
	}
	i.Modules, err = vmimage.OpenModules(cmp.Or(m.Modules, vmimage.FindModules(i.Kernel)))
	return i, err
}

// Check implements [sandbox.Backend].
func (b *Backend) Check(_ context.Context, s sandbox.Spec) error {
	if err := b.CheckSpec(s); err != nil {
		return err
	}
	i, err := b.image(s.Container.Image.ID)
	if err != nil {
		return err
	}
	if _, err := b.agentsh(i.Kernel.Arch); err != nil {
		return err
	}
	_, err = b.modules(i, s)
	return errors.Join(err, b.driver.check(i.Kernel), checkDisk(s))
}

// CheckSpec implements [sandbox.SpecChecker].
func (b *Backend) CheckSpec(s sandbox.Spec) error {
	c := s.Container
	switch {
	case s.Image != "":
		return errors.New("a root file system of this host is for the local backend: name a directory of 'agentctl image build' with --image")
	case s.Keep > 0:
		return errors.New("a sandbox in a virtual machine ends with its run: leave out --keep-sandbox, or use the local backend")
	case c.Image.ID == "":
		return errors.New("no image: write image: NAME in the harness")
	case c.User != "" || c.PIDs > 0 || len(c.Mounts) > 0:
		return errors.New("container: a virtual machine has no user, pids and mounts: leave them out, the policy limits processes by pids_max")
	case c.Network != "" && c.Network != "none":
		return errors.New("container.network: write none, or leave it out: a virtual machine is in no network of an engine")
	}
	return nil
}

// agentsh is the supervisor's program for machines of an architecture.
func (b *Backend) agentsh(arch string) (string, error) {
	if b.cfg.Agentsh != "" {
		return b.cfg.Agentsh, agentfile.Check(b.cfg.Agentsh, arch)
	}
	program, err := agentfile.Find(arch)
	if err != nil {
		return "", fmt.Errorf("find supervisor: %w", err)
	}
	return program, nil
}

// wanted are the modules that every machine needs. A kernel may lack the others.
var (
	needed = []string{"fuse", "overlay"}
	useful = []string{"nf_tables", "nft_chain_nat", "nft_redir", "nft_nat", "inet_diag", "tcp_diag", "udp_diag", "unix_diag"}
)

// modules are the modules that a machine loads.
func (b *Backend) modules(i vmimage.Image, s sandbox.Spec) ([]vmimage.Module, error) {
	names := slices.Concat(b.driver.modules(), needed)
	if i.Root != "" {
		kind, err := vmimage.FileSystem(i.Root)
		if err != nil {
			return nil, err
		}
		names = append(names, kind)
	}
	if s.Container.DiskMB > 0 {
		names = append(names, "ext4")
	}
	if i.Root != "" || s.Container.DiskMB > 0 {
		names = append(names, "virtio_blk")
	}
	if b.hasCard(s) {
		names = append(names, "virtio_net")
	}
	if _, missing := i.Modules.Select(names...); len(missing) > 0 {
		return nil, fmt.Errorf("kernel %s (%s) lacks %s: take a kernel of a distribution with its modules",
			i.Kernel.Release, i.Kernel.File, strings.Join(missing, ", "))
	}
	load, _ := i.Modules.Select(slices.Concat(names, useful)...)
	return load, nil
}

// hasCard reports whether a machine has a network card: its policy allows some way out.
func (b *Backend) hasCard(s sandbox.Spec) bool {
	return s.Container.Network != "none" && (len(s.Container.Ways.To) > 0 || s.Container.Ways.Names)
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	m := &machine{b: b, spec: s, dir: filepath.Join(b.cfg.State.Machines(), s.RunID)}
	return remote.New(b.remote(m)).Create(ctx, s)
}

func (b *Backend) remote(m *machine) remote.Config {
	return remote.Config{Name: Name, Carrier: m, State: b.cfg.State, Lease: b.cfg.Lease, Release: m.remove}
}

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	m, err := b.find(runID)
	if err != nil {
		return nil, err
	}
	return remote.New(b.remote(m)).Take(ctx, runID)
}

// found lists the machines of this state directory.
func (b *Backend) found(context.Context, string) ([]remote.Found, error) {
	entries, err := os.ReadDir(b.cfg.State.Machines())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var out []remote.Found
	for _, e := range entries {
		dir := filepath.Join(b.cfg.State.Machines(), e.Name())
		out = append(out, remote.Found{Run: e.Name(), Remove: func(ctx context.Context) error { return removeMachine(ctx, dir) }})
	}
	return out, nil
}

var (
	_ sandbox.Puller = (*Backend)(nil)
	_ sandbox.Taker  = (*Backend)(nil)
)

// thisArch is the architecture of this host.
const thisArch = runtime.GOARCH
