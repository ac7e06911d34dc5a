// Package siginfo reads what waitid(2) tells of a child.
package siginfo

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// PID reads si_pid: the first field after si_signo, si_errno and si_code, aligned to a
// pointer. See waitid(2) and the kernel's siginfo.h; the offset is 16 on 64-bit and 12 on
// 32-bit machines.
func PID(info *unix.Siginfo) int {
	const pointer = unsafe.Sizeof(uintptr(0))
	offset := (12 + pointer - 1) / pointer * pointer
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
