package vm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == "firecracker" || name == "cloud-hypervisor" {
		fmt.Fprintln(os.Stderr, double(name))
		os.Exit(1)
	}
	testenv.Main(m)
}

// doubleOf makes the program of a driver's double, with the supervisor of its guests beside it.
func doubleOf(t *testing.T, vmm, agentsh string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, target := range map[string]string{vmm: self, "agentsh": agentsh} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, vmm)
}

// elfKernel writes a file that looks like an uncompressed kernel.
func elfKernel(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(name, append(self, "\x00Linux version 6.12.0-test (x)"...), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// withoutKVM has machines that need no KVM, as doubles of VMMs do not.
func withoutKVM(t *testing.T) {
	old := kvmDevice
	kvmDevice = "/dev/null"
	t.Cleanup(func() { kvmDevice = old })
}

// rootFile writes a file that looks like a root disk.
func rootFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "root.ext4")
	data := make([]byte, 4096)
	data[0x438], data[0x439] = 0x53, 0xef // the magic number of ext4, see ext4(5)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// openDouble makes a backend whose machines are those of a double.
func openDouble(t *testing.T, vmm string, lease time.Duration) *Backend {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("go"))
	withoutKVM(t)
	agentsh := testenv.Agentsh(t)
	dir, err := os.MkdirTemp("", "vm") // names of sockets are short, and the one of the test may be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statedir.RemoveTree(dir) })
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{
		Machine: Machine{Driver: vmm, Program: doubleOf(t, vmm, agentsh), Kernel: elfKernel(t)},
		Images:  map[string]string{"app": rootFile(t)}, State: state, Agentsh: agentsh, Lease: lease,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMachinesOfADouble runs the suite of backends with doubles of Firecracker and Cloud Hypervisor.
func TestMachinesOfADouble(t *testing.T) {
	for _, vmm := range Drivers[1:] {
		t.Run(vmm, func(t *testing.T) {
			b := openDouble(t, vmm, 0)
			sandboxtest.Run(t, b, sandbox.Container{Image: sandbox.Image{Name: "app"}})
			if left, _ := filepath.Glob(b.cfg.State.Machines() + "/*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestAMachine runs the suite with qemu and a real kernel. The first variable has the directory of an image, the
// second a configuration of the supervisor, or nothing.
func TestAMachine(t *testing.T) {
	image := testenv.Asked(t, "AGENTSH_VM_IMAGE", "vm")
	agentsh := testenv.Agentsh(t)
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{
		Machine: Machine{Driver: "qemu", Emulate: os.Getenv("AGENTSH_VM_KVM") == ""}, Images: map[string]string{"app": image},
		State: state, Agentsh: agentsh, Operator: os.Getenv("AGENTSH_VM_CONFIG"), Lease: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Run(t, b, sandbox.Container{Image: sandbox.Image{Name: "app"}, DiskMB: 512})
}

// create makes a sandbox of a double.
func create(t *testing.T, b *Backend, id string) (sandbox.Sandbox, sandbox.Spec) {
	t.Helper()
	image, err := b.Pull(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox.Spec{
		RunID: id, Policy: []wire.PolicySource{{Name: "p.yaml", Data: []byte("version: 1\nname: p\n")}}, Home: "/sandbox/home",
		Vars:      map[string]string{"WORKSPACE": "/sandbox", "PROJECT_ROOT": "/sandbox", "HOME": "/sandbox/home", "TMPDIR": "/tmp"},
		Container: sandbox.Container{Image: image},
	}
	box, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return box, s
}

// TestAKilledMachineIsNamed kills the VMM of a sandbox.
func TestAKilledMachineIsNamed(t *testing.T) {
	b := openDouble(t, "firecracker", 10*time.Second)
	box, _ := create(t, b, "killed-1")
	defer func() { _ = box.Delete(context.WithoutCancel(t.Context())) }()
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := readRecord(filepath.Join(b.cfg.State.Machines(), "killed-1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(r.Process.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-box.Gone()
	var end *sandbox.End
	if err := box.Cause(); !errors.As(err, &end) || end.Kind != sandbox.EndKilled || !strings.Contains(end.Text, "signal 9") {
		t.Errorf("%v", err)
	}
}

// TestAMachineThatDoesNotStartIsExplained has machines that end, and VMMs that fail.
func TestAMachineThatDoesNotStartIsExplained(t *testing.T) {
	b := openDouble(t, "firecracker", 0)
	b.cfg.Operator = filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(b.cfg.Operator, []byte("panic: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := b.Pull(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox.Spec{RunID: "panics-1", Container: sandbox.Container{Image: image}}
	_, err = b.Create(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "the machine stopped") {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(b.cfg.State.Machines() + "/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	s.Container.Ways.Names = true
	if _, err = b.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "write vm: {network:") {
		t.Errorf("without an interface: %v", err)
	}
}

// TestMachinesOfAKilledControllerAreCollected gives up a sandbox as a killed controller does.
func TestMachinesOfAKilledControllerAreCollected(t *testing.T) {
	b := openDouble(t, "cloud-hypervisor", 10*time.Second)
	dir := filepath.Join(b.cfg.State.Machines(), "left-1")
	m := &machine{b: b, dir: dir, spec: sandbox.Spec{RunID: "left-1"}}
	image, err := b.Pull(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	m.spec.Container.Image = image
	s, err := m.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	left, err := b.Leftovers(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != "left-1" {
		t.Errorf("%v, %v", left, err)
	}
	if left, err = b.Collect(t.Context()); err != nil || len(left) != 1 || left[0].Err != nil {
		t.Errorf("%v, %v", left, err)
	}
	<-m.made.ended
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the machine: %v", err)
	}
}

// example is a machine with everything.
var example = hardware{
	ID: "20260122t101500-1a2b3c4d", Arch: "amd64", Kernel: "/images/app/kernel", Initrd: initrdFile, Command: commandLine,
	Disks:    []disk{{"root", "/images/a,b/root.ext4", true}, {"changes", diskFile, false}},
	Network:  &Network{TAP: "tap0", Address: "172.16.0.2/30", Gateway: "172.16.0.1"},
	Card:     true,
	MemoryMB: 2048, CPUs: 2,
}

// TestConfigurationsAreThoseOfThePublishedSchemas compares what the drivers write with golden files, and with
// the names, types and bounds of the VMMs' own descriptions.
func TestConfigurationsAreThoseOfThePublishedSchemas(t *testing.T) {
	_, files, err := firecracker{program: "/bin/true"}.prepare(example)
	if err != nil {
		t.Fatal(err)
	}
	cloud, err := json.MarshalIndent(cloudHypervisor{}.config(example), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"firecracker": files[configFile], "cloud-hypervisor": append(cloud, '\n')} {
		golden(t, name+".json", data)
		text, err := os.ReadFile(filepath.Join("testdata", name+".schema.json"))
		if err != nil {
			t.Fatal(err)
		}
		var s jsonschema.Schema
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		resolved, err := s.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	argv, _, err := qemu{program: "/bin/true", emulate: true}.prepare(example)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "qemu.txt", []byte(strings.Join(argv, "\n")+"\n"))
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != string(got) {
		t.Errorf("%s: %v\n%s", file, err, got)
	}
}

// TestAMachineWhoseKVMDoesNotWorkIsNotWaitedFor has a program that does as qemu does where KVM fails: it says
// so, and its machine stands still.
func TestAMachineWhoseKVMDoesNotWorkIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	kernel := make([]byte, 0x400)
	copy(kernel[0x202:], "HdrS")                               // Documentation/arch/x86/boot.rst
	binary.LittleEndian.PutUint16(kernel[0x20e:], 0x300-0x200) // where the version is
	copy(kernel[0x300:], "6.12.0-test (x)")
	program := filepath.Join(dir, "qemu")
	script := "#!/bin/sh\necho 'KVM internal error. Suberror: 1' >&2\necho 'Code=00 <c4> 42' >&2\nexec sleep 1000\n"
	for name, data := range map[string]string{program: script, filepath.Join(dir, "bzImage"): string(kernel)} {
		if err := os.WriteFile(name, []byte(data), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{
		Machine: Machine{Driver: "qemu", Program: program, Kernel: filepath.Join(dir, "bzImage")}, State: state,
		Images: map[string]string{"app": rootFile(t)}, Agentsh: testenv.Agentsh(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	image, err := b.Pull(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = b.Create(ctx, sandbox.Spec{RunID: "m", Container: sandbox.Container{Image: image}})
	var end *sandbox.End
	if !errors.As(err, &end) || end.Kind != sandbox.EndDied || !strings.Contains(end.Text, "KVM internal error. Suberror: 1") ||
		!strings.Contains(end.Hint, "emulate: true") {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(state.Machines() + "/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestWhatAMachineLacksIsFoundBeforeItStarts checks specifications.
func TestWhatAMachineLacksIsFoundBeforeItStarts(t *testing.T) {
	withoutKVM(t)
	kernel, root := elfKernel(t), rootFile(t)
	open := func(m Machine) *Backend {
		t.Helper()
		state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Open(Config{Machine: m, State: state, Images: map[string]string{"app": root}, Agentsh: "/bin/true"})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	with := func(c sandbox.Container) sandbox.Spec {
		if c.Image.ID == "" {
			c.Image.ID = root
		}
		return sandbox.Spec{Container: c}
	}
	for name, tt := range map[string]struct {
		machine Machine
		spec    sandbox.Spec
		want    string
	}{
		"no kernel":             {Machine{Driver: "qemu"}, with(sandbox.Container{}), "write vm: {kernel: FILE} in agentctl.yaml"},
		"a kernel that is none": {Machine{Driver: "qemu", Kernel: root}, with(sandbox.Container{}), "is no kernel"},
		"a vmlinux for qemu":    {Machine{Driver: "qemu", Kernel: kernel}, with(sandbox.Container{}), "qemu boots a bzImage"},
		"no program":            {Machine{Driver: "firecracker", Program: "/none", Kernel: kernel}, with(sandbox.Container{}), "/none"},
		"an image that is none": {Machine{Driver: "qemu"}, with(sandbox.Container{Image: sandbox.Image{ID: t.TempDir()}}),
			"agentctl image build"},
		"a user":                   {Machine{Driver: "qemu"}, with(sandbox.Container{User: "1000"}), "no user, pids and mounts"},
		"a network of an engine":   {Machine{Driver: "qemu"}, with(sandbox.Container{Network: "bridge"}), "write none"},
		"a root of the local kind": {Machine{Driver: "qemu"}, sandbox.Spec{Image: "/x"}, "for the local backend"},
		"a sandbox that is kept":   {Machine{Driver: "qemu"}, sandbox.Spec{Keep: time.Hour}, "leave out --keep-sandbox"},
		"a kernel without a disk": {Machine{Driver: "cloud-hypervisor", Kernel: kernel, Modules: modules(t, "fuse")},
			with(sandbox.Container{}), "lacks virtio_pci"},
		"a kernel without a network": {
			Machine{Driver: "qemu", Kernel: kernel, Modules: modules(t, "fuse", "overlay", "virtio_pci", "virtio_console", "virtio_blk", "ext4")},
			with(sandbox.Container{Ways: sandbox.Ways{To: []policy.Way{{}}}}), "lacks virtio_net",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := open(tt.machine).Check(t.Context(), tt.spec); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	if _, err := open(Machine{}).Pull(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "(known: app)") {
		t.Errorf("an unknown image: %v", err)
	}
	if _, err := Open(Config{Machine: Machine{Driver: "xen"}}); err == nil || !strings.Contains(err.Error(), "qemu, firecracker") {
		t.Errorf("an unknown driver: %v", err)
	}
}

// modules makes a directory of modules in which the kernel has the named ones itself.
func modules(t *testing.T, builtin ...string) string {
	t.Helper()
	dir := t.TempDir()
	var list strings.Builder
	for _, name := range builtin {
		fmt.Fprintf(&list, "kernel/%s.ko\n", name)
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
