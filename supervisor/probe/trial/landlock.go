package trial

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Versions of Landlock, and what they are the first to have. See landlock(7).
const (
	LandlockTruncate = 3 // truncation is a right of its own
	LandlockNet      = 4 // TCP rights
	LandlockScopes   = 6 // signals and abstract sockets can be kept inside
)

// LandlockABI is the kernel's version of Landlock; 0: the kernel has none, or it
// is switched off. See landlock_create_ruleset(2).
func LandlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
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

// probeLandlock opens a file that no rule allows.
func probeLandlock() (string, error) {
	abi := LandlockABI()
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
	return fmt.Sprintf("ABI %d", abi), MustFail("opening a file", err, unix.EACCES)
}

// probeLandlockScopes signals a process outside the domain.
func probeLandlockScopes() (string, error) {
	const signals = 2 // LANDLOCK_SCOPE_SIGNAL
	if abi := LandlockABI(); abi < LandlockScopes {
		return "", fmt.Errorf("ABI %d: they came with %d (Linux 6.12)", abi, LandlockScopes)
	}
	if err := enter(unix.LandlockRulesetAttr{Scoped: signals}); err != nil {
		return "", err
	}
	return "signals, abstract sockets", MustFail("a signal to another process", unix.Kill(unix.Getppid(), 0), unix.EPERM)
}

// probeLandlockNet binds a port that no rule allows.
func probeLandlockNet() (string, error) {
	if abi := LandlockABI(); abi < LandlockNet {
		return "", fmt.Errorf("ABI %d: they came with %d (Linux 6.7)", abi, LandlockNet)
	}
	if err := enter(unix.LandlockRulesetAttr{Handled_access_net: unix.LANDLOCK_ACCESS_NET_BIND_TCP}); err != nil {
		return "", err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer closeFD(fd)
	return "TCP ports", MustFail("bind", unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.EACCES)
}
