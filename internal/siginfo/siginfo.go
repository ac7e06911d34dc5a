// Package siginfo reads what waitid(2) tells of a child.
package siginfo

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// PID reads si_pid: the first field after si_signo, si_errno and si_code, aligned to a
// pointer. See waitid(2) and the kernel's siginfo.h; the offset is 16 on 64-bit and 12 on
// 32-bit machines.
func PID(info *unix.Siginfo) int { return field(info, 0) }

// Status reads si_status: the exit status of a child that exited, else the signal that ended it.
func Status(info *unix.Siginfo) int { return field(info, 2) } // after si_pid and si_uid

// Exited reports whether a child that ended did so by itself. See CLD_EXITED in sigaction(2).
func Exited(info *unix.Siginfo) bool { return info.Code == 1 }

// Stopped reports whether a child is stopped. See CLD_STOPPED in sigaction(2).
func Stopped(info *unix.Siginfo) bool { return info.Code == 5 }

// field reads a number of 4 bytes of the part that depends on the signal.
func field(info *unix.Siginfo, n uintptr) int {
	const pointer = unsafe.Sizeof(uintptr(0))
	offset := (12 + pointer - 1) / pointer * pointer
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset+4*n)))
}
