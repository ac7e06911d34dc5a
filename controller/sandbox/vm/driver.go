package vm

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"agentsh/controller/vmimage"
	"agentsh/internal/layout"
	"agentsh/internal/socket"
)

// driver knows one VMM.
type driver interface {
	// check rejects a kernel that the VMM does not boot, and says what this host lacks.
	check(vmimage.Kernel) error
	// modules are those that the VMM's devices need.
	modules() []string
	// listen is where the machine listens, see [wire.Machine].
	listen() string
	// off is how the machine ends, see [wire.Machine].
	off() string
	// prepare returns the command that starts the VMM in the directory of a machine, and the
	// files that it needs there.
	prepare(hardware) (argv []string, files map[string][]byte, err error)
	// boot does what the VMM needs after its start.
	boot(ctx context.Context, dir string, h hardware) error
	// dial opens a stream to the machine.
	dial(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error)
}

// hardware is one machine for a driver. Relative names are files in its directory.
type hardware struct {
	ID       string
	Arch     string // GOARCH
	Kernel   string // absolute
	Initrd   string
	Command  string   // of the kernel
	Disks    []disk   // /dev/vda, /dev/vdb
	Network  *Network // nil: no card, or one that needs nothing of this host
	Card     bool
	MemoryMB int64
	CPUs     int
}

// disk is a disk of a machine.
type disk struct {
	Name     string // in the VMM
	File     string
	ReadOnly bool
}

// Files in the directory of a machine.
const (
	initrdFile  = "initramfs"
	diskFile    = "disk.ext4"
	consoleFile = "console.log"
	messageFile = "vmm.log"
	machineFile = "machine.json"
	vsockFile   = "vsock.sock"
)

// vsockPort is the port of AF_VSOCK at which machines listen.
const vsockPort = 7000

// Drivers are the values of vm.driver.
var Drivers = []string{"qemu", "firecracker", "cloud-hypervisor"}

// findDriver makes the driver that the operator configured, or the first whose program is there.
func findDriver(m Machine) (driver, error) {
	if m.Driver == "" && m.Program != "" {
		return nil, fmt.Errorf("vm.program needs vm.driver: one of %s", strings.Join(Drivers, ", "))
	}
	if m.Driver != "" && !slices.Contains(Drivers, m.Driver) {
		return nil, fmt.Errorf("unknown vm.driver %q: one of %s", m.Driver, strings.Join(Drivers, ", "))
	}
	name := m.Driver
	if name == "" {
		name = Drivers[0]
		for _, d := range Drivers {
			if _, err := exec.LookPath(programOf(d, thisArch)); err == nil {
				name = d
				break
			}
		}
	}
	switch name {
	case "firecracker":
		return firecracker{m.Program, m.Network}, nil
	case "cloud-hypervisor":
		return cloudHypervisor{m.Program, m.Network}, nil
	}
	return qemu{m.Program, m.Emulate}, nil
}

// programOf is the usual name of a VMM's program, for machines of an architecture.
func programOf(driver, arch string) string {
	if driver == "qemu" {
		return "qemu-system-" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
	}
	return driver
}

// findProgram finds the program of a VMM.
func findProgram(configured, name string) (string, error) {
	if configured == "" {
		configured = name
	}
	path, err := exec.LookPath(configured)
	if err != nil {
		return "", fmt.Errorf("%w: install %s, or write vm: {driver: NAME, program: PATH} in agentctl.yaml", err, name)
	}
	return path, nil
}

// checkOwnArch rejects kernels of another architecture than this host's.
func checkOwnArch(k vmimage.Kernel, driver string) error {
	if k.Arch != thisArch {
		return fmt.Errorf("kernel %s is for %s: %s has machines of this host's architecture alone, %s", k.File, k.Arch, driver, thisArch)
	}
	return nil
}

// dialHybrid opens a stream by the socket of a VMM for AF_VSOCK.
func dialHybrid(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error) {
	a, err := socket.ParseAddress(fmt.Sprintf("vsock+unix://%s/%s:%d", dir, vsockFile, vsockPort))
	if err != nil {
		return nil, err
	}
	return socket.Dial(ctx, a, key, messages)
}

// commandLine is what all kernels get. What follows -- are arguments of process 1. See
// Documentation/admin-guide/kernel-parameters.rst of Linux.
const commandLine = "quiet panic=-1 reboot=t rdinit=" + layout.MachineProgram + " -- serve --init"
