package target

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Trapped is a call that a filter ended by SIGSYS. See SECCOMP_RET_TRAP in seccomp(2).
type Trapped struct {
	Number int
	Arch   uint32
	Data   int // of the filter: SECCOMP_RET_DATA
}

// ReadTrapped reads the signal that a thread is about to get, which the calling thread
// traces. It returns nil for a signal of another kind.
func ReadTrapped(tid int) (*Trapped, error) {
	const seccomp = 1  // SYS_SECCOMP, of si_code
	var info [128]byte // siginfo_t: signal, errno, code, call address, call number, architecture
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return nil, fmt.Errorf("signal of thread %d: %w", tid, errno)
	}
	at := func(offset int) int { return int(int32(binary.NativeEndian.Uint32(info[offset:]))) }
	if unix.Signal(at(0)) != unix.SIGSYS || at(8) != seccomp {
		return nil, nil
	}
	return &Trapped{Number: at(24), Arch: uint32(at(28)), Data: at(4)}, nil
}

// LastArg is the sixth argument of the call.
func (r *Registers) LastArg() uint64 { return r.at(regsArgsAt[5]) }

// SetLastArg sets it. Write writes the registers.
func (r *Registers) SetLastArg(value uint64) { r.set(regsArgsAt[5], value) }

// End has a trapped call return a result.
func (r *Registers) End(tid int, result int64) error {
	r.set(regsResultAt, uint64(result))
	r.forgetCall()
	return r.Write(tid)
}

// Repeat has the thread make a trapped call again, with a last argument. The thread is at
// the instruction behind the call.
func (r *Registers) Repeat(tid, number int, last uint64) error {
	r.SetLastArg(last)
	r.rewind(number)
	r.forgetCall()
	return r.Write(tid)
}

// Result is what a call returned, at its exit.
func (r *Registers) Result() int64 { return int64(r.at(regsResultAt)) }
