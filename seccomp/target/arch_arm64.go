package target

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The general registers of a 64-bit program, struct user_pt_regs.
const (
	regsSize    = 34 * 8
	regsStackAt = 31 * 8

	regsResultAt = 0     // x0
	regsNumberAt = 8 * 8 // x8
	regsPhaseAt  = 7 * 8 // x7: 0 at the entry of a call, 1 at its exit

	regsCounterAt = 32 * 8 // pc
	breakAdvance  = 0      // it is at the breakpoint
)

// regsArgsAt are the places of the arguments of a call: x0 to x5.
var regsArgsAt = [6]int{0, 8, 16, 24, 32, 40}

// replaceCall writes the registers, and the number of another call, which has a register
// set of its own.
func (r *Registers) replaceCall(tid, number int) error {
	if err := r.Write(tid); err != nil {
		return err
	}
	return SetNumber(tid, number)
}

// Entered reports whether the thread is at the entry of a call, and not at its exit.
func (r *Registers) Entered() bool { return r.at(regsPhaseAt) == 0 }

// callSize is the size of the instruction of a call: svc.
const callSize = 4

// rewind makes the thread repeat the call that it has just ended. The number is in x8.
func (r *Registers) rewind(number int) {
	r.set(regsCounterAt, r.at(regsCounterAt)-callSize)
	r.set(regsNumberAt, uint64(number))
}

// forgetCall keeps the kernel from restarting a call: at a signal it does not, once the
// counter or the result have changed.
func (r *Registers) forgetCall() {}

// breakInstruction is brk #0.
var breakInstruction = []byte{0x00, 0x00, 0x20, 0xd4}

// untag removes the bits of an address that the hardware ignores: the top byte. See
// Documentation/arch/arm64/tagged-address-abi.rst.
func untag(addr uint64) uint64 { return addr & (1<<56 - 1) }

// SetNumber changes the number of the call that a thread is stopped in. At the entry the
// kernel carries out the new call. A restart reads the number from x8, which does not change.
func SetNumber(tid, number int) error {
	const systemCall = 0x404 // NT_ARM_SYSTEM_CALL
	value := int32(number)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&value))}
	iov.SetLen(int(unsafe.Sizeof(value)))
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), systemCall, uintptr(unsafe.Pointer(&iov)), 0, 0)
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("change the call of thread %d: %w", tid, errno)
	}
	return nil
}

// restartsAtSignals reports that the kernel has looked for a call to restart before the stop for
// a signal. See do_signal in arch/arm64/kernel/signal.c.
const restartsAtSignals = false

// archWaits are waits that only this architecture has: none.
var archWaits []int
