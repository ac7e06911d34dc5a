package supervisor

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/supervisor/launch"
)

// ptrace is ptrace(2) without an address.
func ptrace(request, pid, data int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registers reads the general registers of a stopped thread.
func registers(pid int, into []byte) error {
	const general = 1 // NT_PRSTATUS
	v := unix.Iovec{Base: &into[0]}
	v.SetLen(len(into))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(pid), general, uintptr(unsafe.Pointer(&v)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Of linux/seccomp.h and linux/filter.h.
const (
	seccompSetModeFilter    = 1
	seccompNewListener      = 1 << 3
	seccompWaitKillableRecv = 1 << 5
	seccompReturnAllow      = 0x7fff0000
	seccompReturnNotify     = 0x7fc00000

	bpfLoadWord  = 0x20
	bpfJumpEqual = 0x15
	bpfReturn    = 0x06
)

// probeSeccomp answers a call of one of its own threads. The thread's filter
// notifies getppid, which nothing else here calls. flags are further ones of
// seccomp(2).
func probeSeccomp(flags uintptr) (string, error) {
	const value = 424242
	type call struct {
		value uintptr
		err   error
	}
	listeners, calls := make(chan *os.File, 1), make(chan call, 1)
	go func() { // ends with its call: close below makes that fail at the latest
		f, err := notifyParentID(flags)
		if err != nil {
			close(listeners)
			calls <- call{err: err}
			return
		}
		listeners <- f
		got, _, errno := unix.Syscall(unix.SYS_GETPPID, 0, 0, 0)
		if errno != 0 {
			err = fmt.Errorf("the answered call: %w", errno)
		}
		calls <- call{got, err}
	}()
	f, loaded := <-listeners
	if !loaded {
		return "", (<-calls).err
	}
	l, err := seccomp.NewListener(f)
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }() // the process ends
	var n seccomp.Notification
	if err := l.Receive(&n); err != nil {
		return "", err
	}
	if n.Syscall != unix.SYS_GETPPID || !l.Valid(n.ID) {
		return "", fmt.Errorf("notification of call %d instead of %d", n.Syscall, unix.SYS_GETPPID)
	}
	if err := l.Value(n.ID, value); err != nil {
		return "", fmt.Errorf("answer: %w", err)
	}
	got := <-calls
	if got.err == nil && got.value != value {
		got.err = fmt.Errorf("the call returned %d instead of the answer", got.value)
	}
	return "listener, receive, answer", got.err
}

// notifyParentID loads a filter on this thread that notifies getppid.
func notifyParentID(flags uintptr) (*os.File, error) {
	if err := restrict(); err != nil {
		return nil, fmt.Errorf("no_new_privs: %w", err)
	}
	program := []unix.SockFilter{
		{Code: bpfLoadWord, K: 0}, // seccomp_data.nr
		{Code: bpfJumpEqual, Jf: 1, K: unix.SYS_GETPPID},
		{Code: bpfReturn, K: seccompReturnNotify},
		{Code: bpfReturn, K: seccompReturnAllow},
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompSetModeFilter, seccompNewListener|flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return nil, fmt.Errorf(
			"seccomp with NEW_LISTENER%s: %w",
			map[bool]string{true: " and WAIT_KILLABLE_RECV"}[flags&seccompWaitKillableRecv != 0],
			errno,
		)
	}
	return os.NewFile(fd, "listener"), nil
}

// enter puts this thread into a Landlock domain without any rule.
func enter(a unix.LandlockRulesetAttr) error {
	if err := restrict(); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer closeFD(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// mustFail turns the outcome of something forbidden into that of its trial.
func mustFail(what string, err error, want unix.Errno) error {
	if errors.Is(err, want) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s was not refused", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// probeLandlock opens a file that no rule allows.
func probeLandlock() (string, error) {
	abi := launch.LandlockABI()
	if abi == 0 {
		return "", errors.New("the kernel has none, or it is switched off (lsm= of its command line)")
	}
	if err := enter(unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE}); err != nil {
		return "", err
	}
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		f.Close()
	}
	return fmt.Sprintf("ABI %d", abi), mustFail("opening a file", err, unix.EACCES)
}

// probeLandlockScopes signals a process outside the domain.
func probeLandlockScopes() (string, error) {
	const signals = 2 // LANDLOCK_SCOPE_SIGNAL
	if abi := launch.LandlockABI(); abi < 6 {
		return "", fmt.Errorf("ABI %d: they came with 6 (Linux 6.12)", abi)
	}
	if err := enter(unix.LandlockRulesetAttr{Scoped: signals}); err != nil {
		return "", err
	}
	return "signals, abstract sockets", mustFail("a signal to another process", unix.Kill(unix.Getppid(), 0), unix.EPERM)
}

// probeLandlockNet binds a port that no rule allows.
func probeLandlockNet() (string, error) {
	if abi := launch.LandlockABI(); abi < 4 {
		return "", fmt.Errorf("ABI %d: they came with 4 (Linux 6.7)", abi)
	}
	if err := enter(unix.LandlockRulesetAttr{Handled_access_net: unix.LANDLOCK_ACCESS_NET_BIND_TCP}); err != nil {
		return "", err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer closeFD(fd)
	return "TCP ports", mustFail("bind", unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.EACCES)
}
