package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"agentsh/controller/vmimage"
	"agentsh/internal/socket"
	"agentsh/internal/wire"
)

// firecracker is a machine of Firecracker, whose configuration is a file.
type firecracker struct {
	program string
	network *Network
}

// The configuration of a machine, by the names of Firecracker's API: its definitions
// FullVmConfiguration, BootSource, Drive, MachineConfiguration, NetworkInterface and Vsock.
type (
	firecrackerConfig struct {
		Boot     firecrackerBoot    `json:"boot-source"`
		Drives   []firecrackerDrive `json:"drives"`
		Machine  firecrackerSize    `json:"machine-config"`
		Networks []firecrackerCard  `json:"network-interfaces,omitempty"`
		Vsock    firecrackerVsock   `json:"vsock"`
	}
	firecrackerBoot struct {
		Kernel string `json:"kernel_image_path"`
		Initrd string `json:"initrd_path"`
		Args   string `json:"boot_args"`
	}
	firecrackerDrive struct {
		ID       string `json:"drive_id"`
		File     string `json:"path_on_host"`
		Root     bool   `json:"is_root_device"`
		ReadOnly bool   `json:"is_read_only"`
	}
	firecrackerSize struct {
		CPUs     int   `json:"vcpu_count"`
		MemoryMB int64 `json:"mem_size_mib"`
	}
	firecrackerCard struct {
		ID  string `json:"iface_id"`
		TAP string `json:"host_dev_name"`
	}
	firecrackerVsock struct {
		CID  int    `json:"guest_cid"`
		Path string `json:"uds_path"`
	}
)

const configFile = "config.json"

// guestCID is the address of the machine for itself. No other machine has its socket.
const guestCID = 3

func (f firecracker) check(k vmimage.Kernel) error {
	if k.Format == vmimage.BzImage {
		return fmt.Errorf("kernel %s is a bzImage: Firecracker boots an uncompressed kernel: name a vmlinux", k.File)
	}
	if err := checkOwnArch(k, "Firecracker"); err != nil {
		return err
	}
	if err := needKVM("Firecracker"); err != nil {
		return err
	}
	_, err := findProgram(f.program, "firecracker")
	return err
}

// kvmDevice is the device of KVM.
var kvmDevice = "/dev/kvm"

// needKVM is the error of a host without hardware support.
func needKVM(who string) error {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%s needs KVM: %w: add this user to the group kvm, or write vm: {driver: qemu}, which does without", who, err)
	}
	return f.Close()
}

func (firecracker) modules() []string { return []string{"virtio_mmio", "vmw_vsock_virtio_transport"} }
func (firecracker) listen() string    { return fmt.Sprintf("vsock:%d", vsockPort) }
func (firecracker) off() string       { return wire.OffReset }

func (f firecracker) prepare(h hardware) ([]string, map[string][]byte, error) {
	program, err := findProgram(f.program, "firecracker")
	if err != nil {
		return nil, nil, err
	}
	c := firecrackerConfig{
		Boot:    firecrackerBoot{h.Kernel, h.Initrd, "console=ttyS0 pci=off " + h.Command},
		Drives:  []firecrackerDrive{},
		Machine: firecrackerSize{h.CPUs, h.MemoryMB},
		Vsock:   firecrackerVsock{guestCID, vsockFile},
	}
	for _, d := range h.Disks {
		c.Drives = append(c.Drives, firecrackerDrive{ID: d.Name, File: d.File, ReadOnly: d.ReadOnly})
	}
	if h.Card {
		c.Networks = []firecrackerCard{{"net0", h.Network.TAP}}
	}
	data, err := json.MarshalIndent(c, "", "  ")
	return []string{program, "--id", h.ID, "--no-api", "--config-file", configFile}, map[string][]byte{configFile: append(data, '\n')}, err
}

func (firecracker) boot(context.Context, string, hardware) error { return nil }

func (firecracker) dial(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error) {
	return dialHybrid(ctx, dir, key, messages)
}
