package target

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Syscall is a system call of a traced thread that is stopped at its entry or exit.
// See PTRACE_GET_SYSCALL_INFO in ptrace(2).
type Syscall struct {
	Entry  bool
	Number int       // at the entry
	Args   [6]uint64 // at the entry
	Result int64     // at the exit
}

// SyscallOf reads the call of a thread that the calling thread has stopped at a stop for it.
func SyscallOf(tid int) (Syscall, error) {
	const (
		getInfo     = 0x420e // PTRACE_GET_SYSCALL_INFO
		entry, exit = 1, 2
	)
	var info struct {
		op   uint8
		_    [3]uint8
		arch uint32
		_    [2]uint64 // instruction and stack pointer
		data [8]uint64
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, getInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno == unix.EIO { // the kernel does not have this request
		return syscallByRegisters(tid)
	}
	if errno != 0 {
		return Syscall{}, fmt.Errorf("look at the call of thread %d: %w", tid, errno)
	}
	switch info.op {
	case entry:
		s := Syscall{Entry: true, Number: int(info.data[0])}
		copy(s.Args[:], info.data[1:7])
		return s, nil
	case exit:
		return Syscall{Result: int64(info.data[0])}, nil
	}
	return Syscall{}, fmt.Errorf("thread %d is not at a call", tid)
}

// syscallByRegisters tells the exit of a call by its result, which is set when it has run.
// An exit with ENOSYS looks like an entry: the entry of the next call follows it then.
func syscallByRegisters(tid int) (Syscall, error) {
	r, err := ReadRegisters(tid)
	if err != nil {
		return Syscall{}, err
	}
	if !r.Entered() {
		return Syscall{Result: int64(r.at(regsResultAt))}, nil
	}
	s := Syscall{Entry: true}
	s.Number, s.Args = r.Call()
	return s, nil
}

// SetResult changes what a call returns. The thread is stopped at its exit.
func SetResult(tid int, result int64) error {
	r, err := ReadRegisters(tid)
	if err != nil {
		return err
	}
	r.set(regsResultAt, uint64(result))
	return r.Write(tid)
}

// waits are the calls that end with EINTR when their thread is interrupted, even by a stop
// that is no signal, and that have done nothing then. Other waits are restarted. See
// signal(7).
var waits = append([]int{
	unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_SEMTIMEDOP, unix.SYS_SEMOP,
	unix.SYS_IO_GETEVENTS, unix.SYS_IO_PGETEVENTS, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT,
	unix.SYS_READ, unix.SYS_READV, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
	unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG,
}, archWaits...)

// restartUnlessHandled is the result -ERESTARTNOHAND. See include/linux/errno.h.
const restartUnlessHandled = ^uint64(514) + 1

// RestartWait has a wait begin again that ended with EINTR because of PTRACE_INTERRUPT. If
// there is a signal with a handler, it ends with EINTR all the same. The thread is stopped at
// the exit of the call. See ERESTARTNOHAND in include/linux/errno.h.
func RestartWait(tid int) error {
	r, err := ReadRegisters(tid)
	if err != nil {
		return err
	}
	if number, _ := r.Call(); int64(r.at(regsResultAt)) != -int64(unix.EINTR) || !slices.Contains(waits, number) {
		return nil
	}
	r.set(regsResultAt, restartUnlessHandled)
	return r.Write(tid)
}

// Write writes to the memory of a thread that the calling thread has stopped.
func Write(tid int, addr uint64, data []byte) error {
	s := &Stopped{PID: tid, mem: -1}
	defer s.Close()
	return s.write(addr, data)
}

// Text reads the string at addr of a thread that the calling thread has stopped, of at
// most limit bytes.
func Text(tid int, addr uint64, limit int) (string, error) {
	var buf [256]byte
	var whole []byte
	s := &Stopped{PID: tid, mem: -1}
	defer s.Close()
	for addr = untag(addr); len(whole) < limit; {
		n, err := s.read(buf[:min(uint64(len(buf)), pageSize-addr%pageSize)], addr)
		if err != nil {
			return "", err
		}
		if end := bytes.IndexByte(buf[:n], 0); end >= 0 {
			return string(append(whole, buf[:end]...)), nil
		}
		whole = append(whole, buf[:n]...)
		addr += uint64(n)
	}
	return "", ErrTooLong
}

// Bytes reads n bytes at addr of a thread that the calling thread has stopped.
func Bytes(tid int, addr uint64, n int) ([]byte, error) {
	s := &Stopped{PID: tid, mem: -1}
	defer s.Close()
	out := make([]byte, n)
	for have := 0; have < n; {
		more, err := s.read(out[have:], untag(addr)+uint64(have))
		if err != nil {
			return nil, err
		}
		have += more
	}
	return out, nil
}

// Directory is the path inside the thread's root of its working directory
// (unix.AT_FDCWD) or of one of its descriptors; empty: it has none.
func (t *Target) Directory(dir int) string {
	if dir == unix.AT_FDCWD {
		return t.Cwd()
	}
	return t.linkInside("fd/" + strconv.Itoa(dir))
}
