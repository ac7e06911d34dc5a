package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutName is argv[0] of a test binary that is re-executed to take something
// away from itself and become the program under test.
const withoutName = "agentsh-test-without"

func init() {
	if os.Args[0] == withoutName {
		runtime.LockOSThread()
		fmt.Fprintln(os.Stderr, "without:", becomeWithout(strings.Split(os.Args[1], ","), os.Args[2:]))
		os.Exit(99)
	}
}

// The mechanisms that [Without] removes. An old kernel or a container's profile
// removes the same.
const (
	WithoutNamespaces = "namespaces"    // Docker's profile: clone and unshare with their flags, mounts
	WithoutKillable   = "wait_killable" // Linux before 5.19
	WithoutLandlock   = "landlock"
	WithoutPtrace     = "ptrace"
	WithoutListener   = "listener"      // gVisor
	WithoutSetAttr    = "mount_setattr" // Linux before 5.12
	WithoutFanotify   = "fanotify"      // Docker's profile, and users before Linux 5.13
	WithoutInotify    = "inotify"
	WithoutGroupFDs   = "group_pidfds" // Linux before 6.9: signals to groups by process descriptors
	WithoutPivotRoot  = "pivot_root"   // Docker's profile, whatever the capabilities
)

// Without returns a command that runs without the mechanisms named, for itself
// and all that it starts.
func Without(t testing.TB, names []string, argv ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &exec.Cmd{Path: self, Args: append([]string{withoutName, strings.Join(names, ",")}, argv...)}
}

func becomeWithout(names, argv []string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	var program []unix.SockFilter
	for _, name := range names {
		program = append(program, seccompFilter(name)...)
	}
	program = append(program, unix.SockFilter{Code: 0x06, K: 0x7fff0000}) // SECCOMP_RET_ALLOW
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return fmt.Errorf("filter: %w", errno)
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// seccompFilter returns the part of a filter that removes one mechanism.
func seccompFilter(name string) []unix.SockFilter {
	const (
		flags = unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		killable  = 1 << 5
		listening = 1 << 3
	)
	switch name {
	case WithoutNamespaces:
		out := append(refuseBits(unix.SYS_CLONE, 0, flags, unix.EPERM), refuseBits(unix.SYS_UNSHARE, 0, flags, unix.EPERM)...)
		for _, n := range []uint32{unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_OPEN_TREE, unix.SYS_SETNS} {
			out = append(out, refuseCall(n, unix.EPERM)...)
		}
		return append(out, refuseCall(unix.SYS_CLONE3, unix.ENOSYS)...)
	case WithoutFanotify:
		return refuseCall(unix.SYS_FANOTIFY_INIT, unix.EPERM)
	case WithoutInotify:
		return append(refuseCall(unix.SYS_INOTIFY_INIT1, unix.EMFILE), refuseCall(unix.SYS_INOTIFY_ADD_WATCH, unix.ENOSPC)...)
	case WithoutKillable:
		return refuseBits(unix.SYS_SECCOMP, 1, killable, unix.EINVAL)
	case WithoutListener:
		return refuseBits(unix.SYS_SECCOMP, 1, listening, unix.EINVAL)
	case WithoutLandlock:
		return refuseCall(unix.SYS_LANDLOCK_CREATE_RULESET, unix.ENOSYS)
	case WithoutSetAttr:
		return refuseCall(unix.SYS_MOUNT_SETATTR, unix.ENOSYS)
	case WithoutPivotRoot:
		return refuseCall(unix.SYS_PIVOT_ROOT, unix.EPERM)
	case WithoutGroupFDs:
		return refuseBits(unix.SYS_PIDFD_SEND_SIGNAL, 3, 1<<2, unix.EINVAL)
	case WithoutPtrace:
		return refuseCall(unix.SYS_PTRACE, unix.EPERM)
	}
	return refuseCall(unix.SYS_EXECVE, unix.ENOTRECOVERABLE) // an unknown name fails the test
}

// Of linux/filter.h and linux/seccomp.h.
const (
	loadWord, jumpEqual, jumpBits, ret = 0x20, 0x15, 0x45, 0x06
	retErrno                           = 0x00050000
)

func refuseCall(number uint32, errno unix.Errno) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadWord, K: 0}, {Code: jumpEqual, Jf: 1, K: number}, {Code: ret, K: retErrno | uint32(errno)},
	}
}

// refuseBits refuses a call with any of the bits in the low half of an argument.
func refuseBits(number, argument, bits uint32, errno unix.Errno) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: loadWord, K: 0}, {Code: jumpEqual, Jf: 3, K: number},
		{Code: loadWord, K: 16 + 8*argument}, {Code: jumpBits, Jf: 1, K: bits}, {Code: ret, K: retErrno | uint32(errno)},
	}
}
