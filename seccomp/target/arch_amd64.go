package target

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The general registers of a 64-bit program, struct user_regs_struct.
const (
	regsSize    = 27 * 8
	regsStackAt = 19 * 8

	regsResultAt = 10 * 8 // rax
	regsNumberAt = 15 * 8 // orig_rax

	regsCounterAt = 16 * 8 // rip
	breakAdvance  = 1      // it is behind the breakpoint
)

// regsArgsAt are the places of the arguments of a call: rdi, rsi, rdx, r10, r8, r9.
var regsArgsAt = [6]int{14 * 8, 13 * 8, 12 * 8, 7 * 8, 9 * 8, 8 * 8}

// replaceCall writes the registers with the number of another call.
func (r *Registers) replaceCall(tid, number int) error {
	r.set(regsNumberAt, uint64(int64(number)))
	return r.Write(tid)
}

// Entered reports whether the thread is at the entry of a call, and not at its exit. The
// kernel sets the result of a call that has not run to this errno.
func (r *Registers) Entered() bool { return int64(r.at(regsResultAt)) == -int64(unix.ENOSYS) }

// callSize is the size of the instruction of a call: syscall.
const callSize = 2

// rewind makes the thread repeat the call that it has just ended. The number is in rax.
func (r *Registers) rewind(number int) {
	r.set(regsCounterAt, r.at(regsCounterAt)-callSize)
	r.set(regsResultAt, uint64(number))
}

// forgetCall keeps the kernel from restarting a call.
func (r *Registers) forgetCall() { r.set(regsNumberAt, ^uint64(0)) }

// breakInstruction is int3.
var breakInstruction = []byte{0xcc}

// untag removes the bits of an address that the hardware ignores: none here.
func untag(addr uint64) uint64 { return addr }

// SetNumber changes the number of the call that a thread is stopped in. At the entry the
// kernel carries out the new call; at the exit a restart does.
func SetNumber(tid, number int) error {
	const pokeUser = 6 // PTRACE_POKEUSER
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, pokeUser, uintptr(tid), regsNumberAt, uintptr(number), 0, 0); errno != 0 {
		return fmt.Errorf("change the call of thread %d: %w", tid, errno)
	}
	return nil
}

// restartsAtSignals reports that the kernel looks for a call to restart after the stop for a
// signal. See arch_do_signal_or_restart in arch/x86/kernel/signal.c.
const restartsAtSignals = true

// archWaits are waits that newer architectures do not have.
var archWaits = []int{unix.SYS_EPOLL_WAIT}
