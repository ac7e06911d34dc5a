package trial

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func probePidfd() (string, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return "", fmt.Errorf("pidfd_open: %w", err)
	}
	defer closeFD(fd)
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		return "", fmt.Errorf("pidfd_send_signal: %w", err)
	}
	return "", nil
}

// probeGetfd duplicates a descriptor of this process as if it were another's.
func probeGetfd() (string, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return "", fmt.Errorf("pidfd_open: %w", err)
	}
	defer closeFD(fd)
	own, err := unix.PidfdGetfd(fd, 0, 0)
	if err != nil {
		return "", fmt.Errorf("pidfd_getfd: %w", err)
	}
	closeFD(own)
	return "", nil
}

func probeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	var set int32
	if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&set)), 0); errno != 0 {
		return errno
	}
	if set != 1 {
		return errors.New("PR_SET_CHILD_SUBREAPER had no effect")
	}
	return nil
}

// probeLimits sets the hard limits that sessions set, and looks at the one they
// mark processes by.
func probeLimits() error {
	var mark unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &mark); err != nil {
		return err
	}
	if mark.Max != unix.RLIM_INFINITY {
		return fmt.Errorf("the hard limit RLIMIT_RTTIME is %d: it must be unlimited", mark.Max)
	}
	for _, l := range []struct{ resource, value int }{{unix.RLIMIT_NPROC, 64}, {unix.RLIMIT_NOFILE, 64}, {unix.RLIMIT_CORE, 0}} {
		want := unix.Rlimit{Cur: uint64(l.value), Max: uint64(l.value)}
		var got unix.Rlimit
		if err := errors.Join(unix.Setrlimit(l.resource, &want), unix.Getrlimit(l.resource, &got)); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("resource limit %d is %d instead of %d", l.resource, got.Max, want.Max)
		}
	}
	return nil
}

// probeOOMScore protects this process as a supervisor protects itself.
func probeOOMScore() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-800"), 0) }

// probeVsock makes a socket and asks for the machine's own number. See vsock(7).
func probeVsock() (string, error) {
	const localCID = 0x7b9 // IOCTL_VM_SOCKETS_GET_LOCAL_CID
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	defer closeFD(fd)
	device, err := os.Open("/dev/vsock")
	if err != nil {
		return "sockets only", nil
	}
	defer device.Close()
	cid, err := unix.IoctlGetUint32(int(device.Fd()), localCID)
	if err != nil {
		return "sockets only", nil
	}
	return fmt.Sprintf("CID %d", cid), nil
}

// Loopback brings up the only interface of a new network.
func Loopback() (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	defer closeFD(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return "", err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return "", fmt.Errorf("flags of lo: %w", err)
	}
	if flags := request.Uint16(); flags&unix.IFF_UP == 0 { // else a kernel need not be able to change it
		request.SetUint16(flags | unix.IFF_UP)
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
			return "", fmt.Errorf("bring up lo: %w", err)
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	if len(interfaces) > 8 { // lo and what the kernel makes in every namespace
		return "", fmt.Errorf("a new network has %d interfaces", len(interfaces))
	}
	return "", nil
}

// becomeUndumpable closes this process to all others without CAP_SYS_PTRACE over it. See
// ptrace(2), "Ptrace access mode checking".
func becomeUndumpable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
