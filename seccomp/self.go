package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SelfPlan returns the plan of the supervisor while its session runs. It no
// longer mounts, enters namespaces or executes programs. With programs it may
// still execute those of the operator.
func SelfPlan(programs bool) Plan {
	var p Plan
	p.Refused = slices.Concat(kernelRefusals(), clockRefusals())
	for _, e := range exceptions() {
		if e.Syscalls[0] == "personality" {
			p.Refused = append(p.Refused, e.Refusal)
		}
	}
	for _, r := range kernelAnswered() {
		if r.Syscalls[0] != "clone3" { // threads
			p.Refused = append(p.Refused, r)
		}
	}
	for _, r := range mountRefusals() {
		if r.Syscalls[0] != "clone" { // threads
			p.Refused = append(p.Refused, r)
		}
	}
	if !programs {
		p.Refused = append(
			p.Refused,
			Refusal{[]string{"execve", "execveat"}, always, unix.EPERM, "every process of a session is forked by its init"},
		)
	}
	return p
}

// RestrictSelf loads a program of [Plan.Compile] for every thread of this process and all
// later ones. It cannot be removed. It sets no_new_privs. See seccomp(2),
// SECCOMP_FILTER_FLAG_TSYNC.
func RestrictSelf(program []byte) error {
	if len(program) == 0 || len(program)%sizeofInsn != 0 {
		return fmt.Errorf("filter of %d bytes", len(program))
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program) / sizeofInsn), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	thread, _, errno := unix.Syscall(
		unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)),
	)
	runtime.KeepAlive(program)
	switch {
	case errno != 0:
		return fmt.Errorf("load the filter: %w", errno)
	case thread != 0:
		return fmt.Errorf("load the filter: thread %d has another one: %w", thread, syscall.EBUSY)
	}
	return nil
}
