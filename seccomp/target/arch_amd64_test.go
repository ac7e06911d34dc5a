package target

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// stackInRegs is where the stack pointer is among the general registers.
const stackInRegs = unsafe.Offsetof(unix.PtraceRegs{}.Rsp)
