package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Stopped is a process at the ptrace stop of its own execve: the new program is loaded and
// has run no instruction. As long as no other process can write to its memory, the program
// sees exactly what is read here. The methods are for the thread that traces it.
//
// See PTRACE_EVENT_EXEC in ptrace(2), and create_elf_tables in fs/binfmt_elf.c for the
// stack.
type Stopped struct {
	PID     int
	Dev     uint64 // of the program's file
	Ino     uint64
	Args    []string
	Secure  bool   // AT_SECURE: the program does not trust its environment
	Entry   uint64 // AT_ENTRY: the start address, after the dynamic loader
	mem     int    // -1: not open
	poke    bool   // mem is not for writing
	sp      uint64
	stack   []byte // memory from sp on that was read
	buffer  *[]byte
	environ []uint64 // addresses of the environment's strings
	vectors []byte   // the auxiliary vector, its end included
	regs    *Registers
	remote  bool // another thread reads and writes the registers
}

// stackReach is the distance above the stack pointer in which strings are accepted. The
// kernel allows 6 MiB of strings; the vectors are added.
const stackReach = 8 << 20

// firstRead covers the stack of most programs in one call.
const firstRead = 16 << 10

var stackPool = sync.Pool{New: func() any { b := make([]byte, 0, firstRead); return &b }}

// OpenStopped reads the process pid, which the calling thread has stopped at its exec
// stop. The caller closes the result.
func OpenStopped(pid int) (*Stopped, error) { return OpenStoppedBy(pid, nil) }

// OpenStoppedBy is OpenStopped for a thread that does not trace the process. The registers
// are those that the tracing thread has read. SetEnv changes them, and the tracing thread
// writes them back. Nil registers are read here.
func OpenStoppedBy(pid int, r *Registers) (*Stopped, error) {
	s := &Stopped{PID: pid, mem: -1, regs: r, remote: r != nil, buffer: stackPool.Get().(*[]byte)}
	s.stack = (*s.buffer)[:0]
	if err := s.open(); err != nil {
		s.Close()
		return nil, fmt.Errorf("read process %d after its exec: %w", pid, err)
	}
	return s, nil
}

// Held reports whether a tracer holds the process pid in a stop. A process that is killed
// leaves its stop at once, before its memory is released. It may be held again at its end: see
// PTRACE_EVENT_EXIT in ptrace(2). Then it was killed all the same.
func Held(pid int) bool {
	const signaled = 0x400 // PF_SIGNALED of include/linux/sched.h
	text, err := readProc(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/stat")
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) // those mean that it is gone
	}
	rest := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the state on: see proc_pid_stat(5)
	const state, flags = 0, 6
	if len(rest) <= flags || string(rest[state]) != "t" {
		return false
	}
	bits, err := strconv.ParseUint(string(rest[flags]), 10, 64)
	return err != nil || bits&signaled == 0
}

func (s *Stopped) open() error {
	var exe unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(s.PID)+"/exe", &exe); err != nil {
		return err
	}
	s.Dev, s.Ino = exe.Dev, exe.Ino
	if !s.remote {
		r, err := ReadRegisters(s.PID)
		if err != nil {
			return err
		}
		s.regs = r
	}
	s.sp = s.regs.at(regsStackAt)
	return s.parse()
}

// openMemory opens the memory for reading and writing, unless it is open. If
// Landlock makes /proc read-only for this process, only ptrace can write.
func (s *Stopped) openMemory() (err error) {
	if s.mem >= 0 {
		return nil
	}
	name := "/proc/" + strconv.Itoa(s.PID) + "/mem"
	s.mem, err = unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		s.poke = true
		s.mem, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	return err
}

// Close closes the descriptors. It does not change the process.
func (s *Stopped) Close() {
	if s.mem >= 0 {
		_ = unix.Close(s.mem)
		s.mem = -1
	}
	if s.buffer != nil && cap(s.stack) <= 4*firstRead {
		*s.buffer = s.stack[:0]
		stackPool.Put(s.buffer)
	}
	s.stack, s.buffer = nil, nil
}

// parse reads the initial stack: argc, argv, envp, auxv.
func (s *Stopped) parse() error {
	argc, err := s.word(s.sp)
	if err != nil {
		return err
	}
	if argc > uint64(ExecCaps.Count) {
		return ErrTooBig
	}
	at := s.sp + 8
	s.Args = make([]string, 0, argc)
	for range argc {
		text, err := s.pointed(at)
		if err != nil {
			return err
		}
		s.Args = append(s.Args, string(text))
		at += 8
	}
	if end, err := s.word(at); err != nil || end != 0 {
		return errors.Join(errors.New("its argument vector has no end"), err)
	}
	for at += 8; ; at += 8 {
		pointer, err := s.word(at)
		if err != nil {
			return err
		}
		if pointer == 0 {
			break
		}
		if len(s.environ) >= ExecCaps.Count {
			return ErrTooBig
		}
		s.environ = append(s.environ, pointer)
	}
	return s.parseAuxiliary(at + 8)
}

func (s *Stopped) parseAuxiliary(start uint64) error {
	const atNull, atEntry, atSecure, most = 0, 9, 23, 128
	for i := range uint64(most) {
		key, err := s.word(start + 16*i)
		if err != nil {
			return err
		}
		value, err := s.word(start + 16*i + 8)
		if err != nil {
			return err
		}
		switch key {
		case atEntry:
			s.Entry = value
		case atSecure:
			s.Secure = value != 0
		case atNull:
			s.vectors = s.stack[start-s.sp : start+16*(i+1)-s.sp]
			return nil
		}
	}
	return errors.New("its auxiliary vector has no end")
}

// upto makes the stack readable up to addr, exclusively.
func (s *Stopped) upto(addr uint64) error {
	if addr < s.sp || addr-s.sp > stackReach {
		return ErrFault
	}
	for want := int(addr - s.sp); len(s.stack) < want; {
		have := len(s.stack)
		grown := max(firstRead, 2*have)
		if cap(s.stack) < grown {
			s.stack = append(make([]byte, 0, grown), s.stack...)
		}
		n, err := s.read(s.stack[have:grown], s.sp+uint64(have))
		if err != nil {
			return err
		}
		s.stack = s.stack[:have+n]
	}
	return nil
}

// read reads at least one byte at addr. The process is stopped, so its number cannot
// mean another one.
func (s *Stopped) read(p []byte, addr uint64) (int, error) {
	if s.mem < 0 {
		if n, err := readByNumber(s.PID, p, addr); err == nil {
			return n, nil
		}
		if err := s.openMemory(); err != nil {
			return 0, err
		}
	}
	return readMem(s.mem, p, addr)
}

func (s *Stopped) word(addr uint64) (uint64, error) {
	if err := s.upto(addr + 8); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(s.stack[addr-s.sp:]), nil
}

// pointed returns the string that the pointer at addr points to, valid until
// the next call.
func (s *Stopped) pointed(addr uint64) ([]byte, error) {
	pointer, err := s.word(addr)
	if err != nil {
		return nil, err
	}
	return s.text(pointer)
}

func (s *Stopped) text(addr uint64) ([]byte, error) {
	if err := s.upto(addr + 1); err != nil {
		return nil, err
	}
	for from := int(addr - s.sp); ; {
		if end := bytes.IndexByte(s.stack[from:], 0); end >= 0 {
			return s.stack[addr-s.sp : from+end], nil
		}
		if len(s.stack)-int(addr-s.sp) > ExecCaps.String {
			return nil, ErrTooBig
		}
		from = len(s.stack)
		if err := s.upto(s.sp + uint64(from) + 1); err != nil {
			return nil, err
		}
	}
}

// Env returns the environment.
func (s *Stopped) Env() ([]string, error) {
	env := make([]string, 0, len(s.environ))
	for _, addr := range s.environ {
		text, err := s.text(addr)
		if err != nil {
			return nil, err
		}
		env = append(env, string(text))
	}
	return env, nil
}

// Missing returns the entries of want, each NAME=value, that the environment does not
// contain exactly once and with that value.
func (s *Stopped) Missing(want []string) ([]string, error) {
	found := make([]int, len(want))
	for _, addr := range s.environ {
		text, err := s.text(addr)
		if err != nil {
			return nil, err
		}
		for i, w := range want {
			switch {
			case string(text) == w:
				found[i]++
			case sameName(text, w):
				found[i] += 2
			}
		}
	}
	var missing []string
	for i, w := range want {
		if found[i] != 1 {
			missing = append(missing, w)
		}
	}
	return missing, nil
}

// sameName reports whether text sets the variable that entry sets.
func sameName(text []byte, entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return len(text) >= len(name) && string(text[:len(name)]) == name && (len(text) == len(name) || text[len(name)] == '=')
}

// SetEnv replaces the variables of entries, each NAME=value, and adds those that are
// missing. It writes the new strings and vectors below the old ones and moves the stack
// pointer there. It clears the strings that were replaced, so that /proc/PID/environ does
// not show them.
func (s *Stopped) SetEnv(entries []string) error {
	if s.Secure {
		return errors.New("the program runs with AT_SECURE and would ignore parts of its environment")
	}
	sp, err := s.rebuild(entries)
	if err != nil {
		return err
	}
	s.regs.set(regsStackAt, sp)
	if s.remote {
		return nil
	}
	return s.regs.Write(s.PID)
}

// rebuild writes the stack for [Stopped.SetEnv] and returns its start, a multiple of 16 as
// the ABIs of amd64 and arm64 require.
func (s *Stopped) rebuild(entries []string) (sp uint64, err error) {
	keep := make([]uint64, 0, len(s.environ)+len(entries))
	for _, addr := range s.environ {
		text, err := s.text(addr)
		if err != nil {
			return 0, err
		}
		if !names(entries, text) {
			keep = append(keep, addr)
			continue
		}
		if err := s.write(addr, make([]byte, len(text))); err != nil {
			return 0, fmt.Errorf("wipe a variable: %w", err)
		}
	}
	size := 0
	for _, e := range entries {
		size += len(e) + 1
	}
	base := (s.sp - uint64(size)) &^ 15
	next := base
	for _, e := range entries {
		keep = append(keep, next)
		next += uint64(len(e)) + 1
	}
	block := s.layOut(keep)
	sp = (base - uint64(len(block))) &^ 15
	block = append(block, make([]byte, base-sp-uint64(len(block)))...)
	for _, e := range entries {
		block = append(append(block, e...), 0)
	}
	if err := s.write(sp, block); err != nil {
		return 0, fmt.Errorf("write the environment: %w", err)
	}
	return sp, nil
}

func names(entries []string, text []byte) bool {
	for _, e := range entries {
		if sameName(text, e) {
			return true
		}
	}
	return false
}

// layOut makes the vectors that start at the stack pointer.
func (s *Stopped) layOut(environ []uint64) []byte {
	arguments := s.stack[:8*(len(s.Args)+2)] // argc, the pointers and their end
	out := make([]byte, 0, len(arguments)+8*(len(environ)+1)+len(s.vectors))
	out = append(out, arguments...)
	for _, addr := range environ {
		out = binary.NativeEndian.AppendUint64(out, addr)
	}
	out = binary.NativeEndian.AppendUint64(out, 0)
	return append(out, s.vectors...)
}

// write writes to the memory. The stack grows if that is needed.
func (s *Stopped) write(addr uint64, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if s.mem < 0 {
		local := unix.Iovec{Base: &data[0]}
		local.SetLen(len(data))
		// This grows no stack, and may be forbidden: see process_vm_writev(2).
		if n, err := unix.ProcessVMWritev(s.PID, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(data)}}, 0); err == nil &&
			n == len(data) {
			return nil
		}
	}
	if err := s.openMemory(); err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := s.writeSome(addr, data)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrFault
		}
		data, addr = data[n:], addr+uint64(n)
	}
	return nil
}

func (s *Stopped) writeSome(addr uint64, data []byte) (int, error) {
	if s.poke {
		return unix.PtracePokeData(s.PID, uintptr(addr), data)
	}
	return unix.Pwrite(s.mem, data, int64(addr))
}
