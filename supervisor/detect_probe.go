package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
	"agentsh/supervisor/netns"
)

const (
	trialNothing = "nothing" // where the start of the process was the trial
	trialParent  = "parent"  // has a child and reports that
)

// trials are what a probe process can try. Each changes that process only.
var trials = map[string]func() (answer, error){
	trialParent:        probeParent,
	"seccomp_notify":   said(func() (string, error) { return probeSeccomp(0) }),
	"wait_killable":    said(probeKillable),
	"private_proc":     said(probePrivateProc),
	"landlock":         said(probeLandlock),
	"landlock_scopes":  said(probeLandlockScopes),
	"landlock_net":     said(probeLandlockNet),
	trialNothing:       said(func() (string, error) { return "", nil }),
	"net_namespace":    said(probeLoopback),
	"net_redirect":     said(probeRedirect),
	"mount_api":        said(probeMountAPI),
	"overlayfs":        said(probeOverlay),
	"fuse":             said(probeFUSE),
	"fuse_passthrough": said(probePassthrough),
	"pidfd":            said(probePidfd),
	"pidfd_getfd":      said(probeGetfd),
	"subreaper":        said(probeSubreaper),
	"limits":           said(probeLimits),
	"vsock":            said(probeVsock),
}

func said(f func() (string, error)) func() (answer, error) {
	return func() (answer, error) {
		detail, err := f()
		return answer{Detail: detail}, err
	}
}

// serveProbe is the other side of startProbe: it tries what it is asked for,
// reports and stays until it is let go.
func serveProbe() error {
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	f := files[controlName]
	if f == nil {
		return errors.New("no control socket")
	}
	control, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	var name string
	if err := json.NewDecoder(control).Decode(&name); err != nil {
		return err
	}
	trial := trials[name]
	if trial == nil {
		return fmt.Errorf("nothing to try under the name %q", name)
	}
	a, err := trial()
	if err != nil {
		a.Error = err.Error()
	}
	if a.PID == 0 {
		a.PID, a.Addr = os.Getpid(), uint64(uintptr(unsafe.Pointer(&probeMark)))
	}
	if err := json.NewEncoder(control).Encode(a); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, control) // until the other side closes
	return err
}

// probeMark is what a look into another process must find. It is in the data of
// the program, which does not move.
var probeMark = [16]byte([]byte("agentsh was here"))

// probeParent has a child and reports its number and mark.
func probeParent() (answer, error) {
	_, a, err := startProbe(trialNothing, place{}) // ends with this process
	return a, err
}

// restrict locks the goroutine to a thread that ends with it, and has the thread
// give up gaining privileges: the restrictions that follow are the thread's own.
func restrict() error {
	runtime.LockOSThread()
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// probeKillable loads a filter whose waits only the end of the caller breaks.
func probeKillable() (string, error) {
	_, err := probeSeccomp(seccompWaitKillableRecv)
	return "WAIT_KILLABLE_RECV", err
}

// probePrivateProc mounts a procfs, which the kernel refuses in a user namespace
// where the one that is there is covered in parts.
func probePrivateProc() (string, error) {
	mount, err := fileSystem("proc", map[string]string{"hidepid": "2"})
	if err != nil {
		return "", err
	}
	return "", unix.Close(mount)
}

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

func probeSubreaper() (string, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "", err
	}
	var set int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&set)), 0, 0, 0); err != nil {
		return "", err
	}
	if set != 1 {
		return "", errors.New("PR_SET_CHILD_SUBREAPER had no effect")
	}
	return "", nil
}

// probeLimits sets the hard limits that sessions set, and looks at the one they
// mark processes by.
func probeLimits() (string, error) {
	var mark unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &mark); err != nil {
		return "", err
	}
	if mark.Max != unix.RLIM_INFINITY {
		return "", fmt.Errorf("the hard limit RLIMIT_RTTIME is %d: it must be unlimited", mark.Max)
	}
	for _, l := range []struct{ resource, value int }{{unix.RLIMIT_NPROC, 64}, {unix.RLIMIT_NOFILE, 64}, {limitCore, 0}} {
		want := unix.Rlimit{Cur: uint64(l.value), Max: uint64(l.value)}
		var got unix.Rlimit
		if err := errors.Join(unix.Setrlimit(l.resource, &want), unix.Getrlimit(l.resource, &got)); err != nil {
			return "", err
		}
		if got != want {
			return "", fmt.Errorf("resource limit %d is %d instead of %d", l.resource, got.Max, want.Max)
		}
	}
	return "", nil
}

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

// probeLoopback brings up the only interface of a new network.
func probeLoopback() (string, error) {
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
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return "", fmt.Errorf("bring up lo: %w", err)
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

// probeRedirect redirects every connection of a new network to one port.
func probeRedirect() (string, error) {
	if _, err := probeLoopback(); err != nil {
		return "", err
	}
	families := "IPv4"
	rules, route := netns.RedirectIPv4(netns.SessionPorts)
	if err := rules.Send(); err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	if err := route.Send(); err != nil {
		return "", fmt.Errorf("route: %w", err)
	}
	rules, route = netns.RedirectIPv6(netns.SessionPorts)
	if rules.Send() == nil && route.Send() == nil {
		families += ", IPv6"
	}
	return families, nil
}
