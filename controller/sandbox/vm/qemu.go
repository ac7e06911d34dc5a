package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"agentsh/controller/vmimage"
	"agentsh/internal/socket"
	"agentsh/internal/wire"
)

// qemu is a machine of qemu. It is emulated where this host has no /dev/kvm. Streams are ports of
// virtio-serial: AF_VSOCK of qemu needs vhost, which is root's.
type qemu struct {
	program string
	emulate bool
}

const serialName = "agentsh"

func (q qemu) check(k vmimage.Kernel) error {
	if k.Format == vmimage.ELF {
		return fmt.Errorf("kernel %s is a vmlinux: qemu boots a bzImage, as in /boot, or an Image for arm64", k.File)
	}
	_, err := findProgram(q.program, programOf("qemu", k.Arch))
	return err
}

func (qemu) modules() []string { return []string{"virtio_pci", "virtio_console"} }
func (qemu) listen() string    { return "serial:" + serialName }
func (qemu) off() string       { return wire.OffPower }

func (q qemu) prepare(h hardware) ([]string, map[string][]byte, error) {
	program, err := findProgram(q.program, programOf("qemu", h.Arch))
	if err != nil {
		return nil, nil, err
	}
	board, console := "q35", "ttyS0"
	if h.Arch == "arm64" {
		board, console = "virt", "ttyAMA0"
	}
	argv := []string{
		program, "-name", h.ID, "-machine", board + ",usb=off,graphics=off", "-cpu", "max",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:" + consoleFile,
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-m", strconv.FormatInt(h.MemoryMB, 10), "-smp", strconv.Itoa(h.CPUs),
		"-kernel", h.Kernel, "-initrd", h.Initrd, "-append", "console=" + console + " " + h.Command,
		"-device", "virtio-serial-pci",
	}
	if h.Arch == thisArch && !q.emulate && hasKVM() {
		argv = append(argv, "-accel", "kvm")
	}
	argv = append(argv, "-accel", "tcg")
	for n := range socket.SerialPorts {
		name := socket.SerialPort(serialName, n)
		argv = append(argv, "-chardev", fmt.Sprintf("socket,id=port%d,path=%s,server=on,wait=off", n, name),
			"-device", fmt.Sprintf("virtserialport,chardev=port%d,name=%s", n, name))
	}
	for _, d := range h.Disks {
		argv = append(argv, "-drive", fmt.Sprintf("if=none,id=%s,file=%s,format=raw,readonly=%s", d.Name, escape(d.File), onOff(d.ReadOnly)),
			"-device", "virtio-blk-pci,drive="+d.Name)
	}
	if h.Card { // a network of qemu's own, with the addresses of qemuNetwork
		argv = append(argv, "-netdev", "user,id=net0,ipv6=off", "-device", "virtio-net-pci,netdev=net0,romfile=")
	}
	return argv, nil, nil
}

// escape writes a name as a value in a list of options.
func escape(name string) string { return strings.ReplaceAll(name, ",", ",,") }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func hasKVM() bool {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close() // it was only opened
	return true
}

// qemuNetwork is the network that qemu makes for its user. See qemu(1), -netdev user.
var qemuNetwork = wire.Network{Address: "10.0.2.15/24", Gateway: "10.0.2.2", DNS: []string{"10.0.2.3"}}

func (qemu) boot(context.Context, string, hardware) error { return nil }

func (qemu) dial(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error) {
	return socket.DialSerial(ctx, dir, serialName, key, messages)
}
