package target

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Breakpoint replaces an instruction of a traced program by one that stops it with
// SIGTRAP. It changes the program's own copy of the page, which a forked process has too.
type Breakpoint struct {
	at  uint64
	was uint64
}

// SetBreakpoint replaces the instruction at an address of a thread that the
// calling thread holds.
func SetBreakpoint(tid int, at uint64) (*Breakpoint, error) {
	b := &Breakpoint{at: at}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_PEEKTEXT, uintptr(tid), uintptr(at), uintptr(unsafe.Pointer(&b.was)), 0, 0)
	if errno != 0 {
		return nil, fmt.Errorf("read the entry of thread %d: %w", tid, errno)
	}
	with := b.was
	copy((*[8]byte)(unsafe.Pointer(&with))[:], breakInstruction)
	return b, b.poke(tid, with)
}

func (b *Breakpoint) poke(tid int, word uint64) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_POKETEXT, uintptr(tid), uintptr(b.at), uintptr(word), 0, 0)
	if errno != 0 {
		return fmt.Errorf("write the entry of thread %d: %w", tid, errno)
	}
	return nil
}

// Remove restores the instruction.
func (b *Breakpoint) Remove(tid int) error { return b.poke(tid, b.was) }

// Reached reports whether a thread that stopped with SIGTRAP did so at the breakpoint. Its
// program counter is then set back to the instruction.
func (b *Breakpoint) Reached(tid int) (bool, error) {
	r, err := ReadRegisters(tid)
	if err != nil {
		return false, err
	}
	if r.at(regsCounterAt) != b.at+breakAdvance {
		return false, nil
	}
	r.set(regsCounterAt, b.at)
	return true, r.Write(tid)
}

// EntryOf returns the address at which a program starts after its dynamic loader. The
// calling thread has stopped the program at its exec.
func EntryOf(pid int) (uint64, error) {
	s, err := OpenStopped(pid)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if s.Entry == 0 {
		return 0, errors.New("the program has no entry")
	}
	return s.Entry, nil
}
