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
	breakAdvance  = 1      // it stands behind the breakpoint
)

// breakInstruction is int3.
var breakInstruction = []byte{0xcc}

// untag removes what the hardware ignores in an address: nothing here.
func untag(addr uint64) uint64 { return addr }

// SetNumber makes another call of the one that a thread is copied in: at its entry
// the kernel carries that out, at its exit a restart does.
func SetNumber(tid, number int) error {
	const pokeUser = 6 // PTRACE_POKEUSER
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, pokeUser, uintptr(tid), regsNumberAt, uintptr(number), 0, 0); errno != 0 {
		return fmt.Errorf("change the call of thread %d: %w", tid, errno)
	}
	return nil
}
