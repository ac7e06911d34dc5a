// Package target reads a thread that is stopped in a notified system call: its memory, its
// identity, and the files that its paths mean.
//
// [Target] reads a thread whose memory other threads may change: the kernel may use other
// values later. [Stopped] reads a process that cannot change. [Handle] is a file, and
// [Target.Resolve] finds it as the kernel would (resolve.go, walk.go, copy.go).
package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Errors that callers distinguish. Each wraps the corresponding errno.
var (
	ErrFault   = fmt.Errorf("address is not readable: %w", unix.EFAULT)
	ErrTooLong = fmt.Errorf("string is too long: %w", unix.ENAMETOOLONG)
	ErrTooBig  = fmt.Errorf("argument list is too big: %w", unix.E2BIG)
	ErrGone    = fmt.Errorf("thread is gone: %w", unix.ESRCH)
)

// Caps limit a vector of strings.
type Caps struct {
	Count  int // strings
	String int // bytes of one string, its NUL included
	Total  int // bytes of all strings and pointers
}

// ExecCaps are the limits of execve(2): 128 KiB for a string and 6 MiB in all. See
// MAX_ARG_STRLEN and bprm_stack_limits in fs/exec.c.
var ExecCaps = Caps{Count: 6 << 20 / 9, String: 128 << 10, Total: 6 << 20}

// MaxPath is PATH_MAX, the NUL included.
const MaxPath = 4096

// Target is a thread of another process. It is for one goroutine. The thread
// can end at any time; every method then returns an error.
type Target struct {
	TID     int
	proc    int     // O_PATH descriptor of /proc/TID: stays with this thread
	mem     int     // -1: not open
	root    int     // -1: not open
	shared  bool    // root is the caller's
	rootAt  string  // its root as procfs names it; empty: not read yet
	cwd     *Handle // nil: the thread's own
	byCalls bool    // memory is read by the number of the thread, and opened if that fails
	*pages
}

// pages are the parts of the memory read last.
type pages struct {
	next    int
	address [cachedPages]uint64
	length  [cachedPages]int
	data    [cachedPages][pageSize]byte
}

const (
	cachedPages = 4
	pageSize    = 4096 // divides every page size of amd64 and arm64
)

var pagePool = sync.Pool{New: func() any { return new(pages) }}

// Open opens a thread and its memory for reading. The caller closes it. The memory belongs
// to the thread of a notification only if the notification is still valid after Open.
func Open(tid int) (*Target, error) {
	if tid <= 0 {
		return nil, errors.New("the thread is in a process namespace that is not visible here")
	}
	t, err := OpenCall(tid)
	if err != nil {
		return nil, err
	}
	if err := t.openMemory(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// OpenCall opens a thread as [Open] does, but reads its memory by the number of the thread,
// which is faster. The memory belongs to the thread of a notification only if the
// notification is still valid after the last read.
func OpenCall(tid int) (*Target, error) {
	if tid <= 0 {
		return nil, errors.New("the thread is in a process namespace that is not visible here")
	}
	t, err := OpenView(tid)
	if err != nil {
		return nil, err
	}
	t.byCalls = true
	return t, nil
}

func (t *Target) openMemory() (err error) {
	t.mem, err = unix.Openat(t.proc, "mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone // it ends, and has no memory any more
	}
	if err != nil {
		return fmt.Errorf("open /proc/%d/mem: %w", t.TID, err)
	}
	return nil
}

// Close closes the descriptors.
func (t *Target) Close() {
	if t.shared {
		t.root = -1
	}
	for _, fd := range [...]int{t.proc, t.mem, t.root} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	t.proc, t.mem, t.root = -1, -1, -1
	if t.cwd != nil {
		t.cwd.Close()
		t.cwd = nil
	}
	pagePool.Put(t.pages)
	t.pages = nil
}

// bytesAt returns the bytes from addr to the end of its page, at least one. The
// result is valid until the next call.
func (t *Target) bytesAt(addr uint64) ([]byte, error) {
	addr = untag(addr)
	start := addr &^ (pageSize - 1)
	for i := range t.address {
		if t.length[i] > 0 && t.address[i] == start {
			return after(t.data[i][:t.length[i]], addr-start)
		}
	}
	i := t.next
	t.next = (i + 1) % cachedPages
	n, err := t.read(t.data[i][:], start)
	t.address[i], t.length[i] = start, n
	if err != nil {
		t.length[i] = 0
		return nil, err
	}
	return after(t.data[i][:n], addr-start)
}

// read reads at least one byte at addr.
func (t *Target) read(p []byte, addr uint64) (int, error) {
	if t.byCalls && t.mem < 0 {
		if n, err := readByNumber(t.TID, p, addr); err == nil {
			return n, nil
		}
		// It is forbidden, or this memory can be read through its file only.
		if err := t.openMemory(); err != nil {
			return 0, err
		}
	}
	return readMem(t.mem, p, addr)
}

// readByNumber reads at least one byte at addr of a thread's memory. It may be forbidden
// where reading through the memory's file is allowed. See process_vm_readv(2).
func readByNumber(tid int, p []byte, addr uint64) (int, error) {
	local := unix.Iovec{Base: &p[0]}
	local.SetLen(len(p))
	n, err := unix.ProcessVMReadv(tid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}, 0)
	if err == nil && n == 0 {
		err = ErrFault
	}
	return n, err
}

func after(data []byte, offset uint64) ([]byte, error) {
	if offset >= uint64(len(data)) {
		return nil, ErrFault
	}
	return data[offset:], nil
}

// readMem reads at least one byte at addr.
func readMem(mem int, p []byte, addr uint64) (int, error) {
	if int64(addr) < 0 {
		return 0, ErrFault
	}
	for {
		n, err := unix.Pread(mem, p, int64(addr))
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT):
			return 0, ErrFault
		case err != nil:
			return 0, fmt.Errorf("read memory: %w", err)
		case n == 0:
			return 0, ErrGone // its address space is gone
		default:
			return n, nil
		}
	}
}

// String reads the string at addr of at most limit bytes, its NUL included.
func (t *Target) String(addr uint64, limit int) (string, error) {
	var whole []byte
	for {
		part, err := t.bytesAt(addr)
		if err != nil {
			return "", err
		}
		end := bytes.IndexByte(part, 0)
		if end >= 0 {
			part = part[:end]
		}
		if len(whole)+len(part) >= limit {
			return "", ErrTooLong
		}
		if end >= 0 {
			return string(append(whole, part...)), nil
		}
		whole = append(whole, part...)
		addr += uint64(len(part))
	}
}

// Strings reads the vector of string pointers at addr as execve(2) does. Address 0 is an
// empty one.
func (t *Target) Strings(addr uint64, caps Caps) ([]string, error) {
	var list []string
	total := 0
	for at := addr; addr != 0; at += 8 {
		pointer, err := t.word(at)
		if err != nil {
			return nil, err
		}
		if pointer == 0 {
			break
		}
		if len(list) >= caps.Count {
			return nil, ErrTooBig
		}
		s, err := t.String(pointer, min(caps.String, caps.Total-total))
		if errors.Is(err, ErrTooLong) {
			return nil, ErrTooBig
		}
		if err != nil {
			return nil, err
		}
		total += len(s) + 1 + 8
		list = append(list, s)
	}
	return list, nil
}

func (t *Target) word(addr uint64) (uint64, error) {
	var word [8]byte
	for have := 0; have < len(word); {
		part, err := t.bytesAt(addr + uint64(have))
		if err != nil {
			return 0, err
		}
		have += copy(word[have:], part)
	}
	return binary.NativeEndian.Uint64(word[:]), nil
}
