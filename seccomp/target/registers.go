package target

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Registers are the general registers of a thread that is stopped.
type Registers struct{ raw [regsSize]byte }

// ReadRegisters reads the registers of a thread that the calling thread has stopped. It
// refuses a program with another register layout, such as a 32-bit one.
func ReadRegisters(tid int) (*Registers, error) {
	r := &Registers{}
	if err := r.transfer(unix.PTRACE_GETREGSET, tid); err != nil {
		return nil, err
	}
	return r, nil
}

// Write sets the registers of a thread that the calling thread has stopped.
func (r *Registers) Write(tid int) error { return r.transfer(unix.PTRACE_SETREGSET, tid) }

func (r *Registers) transfer(request uintptr, tid int) error {
	const general = 1 // NT_PRSTATUS
	iov := unix.Iovec{Base: &r.raw[0]}
	iov.SetLen(len(r.raw))
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), general, uintptr(unsafe.Pointer(&iov)), 0, 0)
	runtime.KeepAlive(r)
	if errno != 0 {
		return fmt.Errorf("registers: %w", errno)
	}
	// After setting registers, a kernel may return how many bytes are left over instead.
	if request == unix.PTRACE_GETREGSET && iov.Len != regsSize {
		return errors.New("not a 64-bit program")
	}
	return nil
}

func (r *Registers) at(offset int) uint64 { return binary.NativeEndian.Uint64(r.raw[offset:]) }

func (r *Registers) set(offset int, value uint64) {
	binary.NativeEndian.PutUint64(r.raw[offset:], value)
}

// Call returns the number and the arguments of the call that the thread has begun.
func (r *Registers) Call() (number int, args [6]uint64) {
	for i, offset := range regsArgsAt {
		args[i] = r.at(offset)
	}
	return int(int32(r.at(regsNumberAt))), args
}

// Skip has the call, whose entry the thread is stopped at, return a result without
// running.
func (r *Registers) Skip(tid int, result int64) error {
	r.set(regsResultAt, uint64(result))
	return r.replaceCall(tid, -1)
}

// Replace has another call run in place of the one whose entry the thread is stopped
// at. Restore undoes it at the exit of the call.
func (r *Registers) Replace(tid, number int, args ...uint64) error {
	changed := *r
	for i, v := range args {
		changed.set(regsArgsAt[i], v)
	}
	return changed.replaceCall(tid, number)
}

// Restore sets the registers of a thread at the exit of a call that [Registers.Replace]
// replaced: the result, and the arguments that r has.
func (r *Registers) Restore(tid int, result int64) error {
	now, err := ReadRegisters(tid)
	if err != nil {
		return err
	}
	for _, offset := range regsArgsAt {
		now.set(offset, r.at(offset))
	}
	now.set(regsResultAt, uint64(result))
	return now.Write(tid)
}
