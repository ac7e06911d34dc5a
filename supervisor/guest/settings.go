package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/supervisor/netns"
)

// maxFiles is how many files a process may have open at most; systemd has the same number.
const maxFiles = 524288

// sysctls are what distributions set at their start.
var sysctls = map[string]string{
	"fs/protected_hardlinks": "1",
	"fs/protected_symlinks":  "1",
	"fs/protected_fifos":     "1",
	"fs/protected_regular":   "2",
}

// settings sets what a machine has beside its file systems.
func (m *machine) settings() error {
	if err := unix.Sethostname([]byte(layout.HostName)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	for name, value := range sysctls {
		_ = os.WriteFile("/proc/sys/"+name, []byte(value), 0) // an older kernel does not have it
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files.Cur, Max: maxFiles}); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if time.Now().Before(m.Time) { // a machine without a clock
		now := unix.NsecToTimeval(m.Time.UnixNano())
		if err := unix.Settimeofday(&now); err != nil {
			return fmt.Errorf("set the clock: %w", err)
		}
	}
	if err := addEntropy(m.Seed); err != nil {
		return fmt.Errorf("random numbers of the kernel: %w", err)
	}
	clear(m.Seed)
	return m.network()
}

// addEntropy makes random numbers available at once. See random(4), RNDADDENTROPY.
func addEntropy(seed []byte) error {
	if len(seed) == 0 {
		return nil
	}
	f, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer f.Close()
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed))) // bits
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	info = append(info, seed...)
	defer clear(info)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return errno
	}
	return nil
}

// network brings the interfaces up.
func (m *machine) network() error {
	if err := up("lo"); err != nil {
		return fmt.Errorf("network: lo: %w", err)
	}
	if m.Network == nil {
		return nil
	}
	card, err := firstCard()
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	address, err := netip.ParsePrefix(m.Network.Address)
	if err != nil {
		return fmt.Errorf("network: address: %w", err)
	}
	var gateway netip.Addr
	if m.Network.Gateway != "" {
		if gateway, err = netip.ParseAddr(m.Network.Gateway); err != nil {
			return fmt.Errorf("network: gateway: %w", err)
		}
	}
	if err := up(card.Name); err != nil {
		return fmt.Errorf("network: %s: %w", card.Name, err)
	}
	for _, b := range netns.Address(card.Index, address, gateway) {
		if err := b.Send(); err != nil {
			return fmt.Errorf("network: %s: %w", card.Name, err)
		}
	}
	return m.resolver()
}

// firstCard is the network card of the machine.
func firstCard() (net.Interface, error) {
	all, err := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) > 0 {
			return i, nil
		}
	}
	if err == nil {
		err = errors.New("the machine has no network card: the kernel needs virtio_net")
	}
	return net.Interface{}, err
}

// up brings an interface up. See netdevice(7).
func up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request)
	}
	if err != nil {
		return err
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// resolver names the name servers.
func (m *machine) resolver() error {
	if len(m.Network.DNS) == 0 {
		return nil
	}
	const name = "/etc/resolv.conf"
	var text strings.Builder
	for _, address := range m.Network.DNS {
		if _, err := netip.ParseAddr(address); err != nil {
			return fmt.Errorf("network: name server: %w", err)
		}
		text.WriteString("nameserver " + address + "\n")
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) { // it may be a link
		return err
	}
	return os.WriteFile(name, []byte(text.String()), 0o644)
}
