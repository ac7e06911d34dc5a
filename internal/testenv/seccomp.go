package testenv

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func seccompOp(op uintptr, action *uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, op, 0, uintptr(unsafe.Pointer(action)))
	if errno != 0 {
		return errno
	}
	return nil
}
