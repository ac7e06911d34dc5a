package target

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process identifies one process uniquely, even if its number is reused.
type Process struct {
	PID   int    // thread group id, in the pid namespace of this process
	Start uint64 // clock ticks since boot
}

// Identity is the process of a thread.
type Identity struct {
	Process
	Parent int // thread group id of the parent; 0: outside the pid namespace of this process
}

// Identity reads the identity of the thread's process.
func (t *Target) Identity() (Identity, error) {
	s, err := readStat(t.proc, "stat")
	if err != nil {
		return Identity{}, fmt.Errorf("identify thread %d: %w", t.TID, err)
	}
	if s.threads == 1 {
		return Identity{Process{t.TID, s.start}, s.parent}, nil
	}
	text, err := readProc(t.proc, "status")
	if err != nil {
		return Identity{}, fmt.Errorf("identify thread %d: %w", t.TID, err)
	}
	pid, err := strconv.Atoi(statusField(text, "Tgid"))
	if err != nil {
		return Identity{}, fmt.Errorf("identify thread %d: its status names no thread group", t.TID)
	}
	id, err := Identify(pid)
	if err != nil {
		return Identity{}, err
	}
	return id, nil
}

// Identify returns the identity of the process pid.
func Identify(pid int) (Identity, error) {
	s, err := readStat(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/stat")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{Process{pid, s.start}, s.parent}, nil
}

// Mark returns the hard limit that is the tag of a command: see [Tag]. Every process of a command
// inherits it, and none can change it. ok is false for a process without one.
// See proc_pid_limits(5).
func (t *Target) Mark() (mark uint64, ok bool, err error) {
	text, err := readProc(t.proc, "limits")
	if err != nil {
		return 0, false, fmt.Errorf("read the mark of thread %d: %w", t.TID, err)
	}
	mark, ok = Tag(text)
	return mark, ok, nil
}

// stat is the part of /proc/PID/stat that is used. See proc_pid_stat(5).
type stat struct {
	parent, group, threads int
	start                  uint64
}

func readStat(dir int, name string) (stat, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return stat{}, err
	}
	var buf [1024]byte // 52 numbers and a name of 64 bytes
	n, err := unix.Read(fd, buf[:])
	_ = unix.Close(fd)
	if err != nil {
		return stat{}, err
	}
	return parseStat(buf[:n])
}

// parseStat reads the fields after the command name, which may contain spaces and
// parentheses. The error is ESRCH for a process that was reaped while the kernel wrote
// them: it has -1 as its group. See do_task_stat in fs/proc/array.c.
func parseStat(text []byte) (stat, error) {
	var s stat
	var value uint64
	digits, field := 0, 0
	for _, c := range text[bytes.LastIndexByte(text, ')')+1:] {
		switch {
		case c >= '0' && c <= '9':
			if value > math.MaxUint64/10-1 {
				return stat{}, errBadStat
			}
			value = 10*value + uint64(c-'0')
			digits++
			continue
		case c != ' ' && c != '\n':
			digits, value = -len(text), 0 // not a number, or a negative one
			continue
		case digits == 0: // between fields
			continue
		}
		if field == fieldGroup && digits < 0 {
			return stat{}, unix.ESRCH
		}
		if !s.set(field, value, digits > 0) {
			return stat{}, errBadStat
		}
		if field == fieldStart {
			return s, nil
		}
		field, digits, value = field+1, 0, 0
	}
	return stat{}, errBadStat
}

var errBadStat = errors.New("its stat file cannot be read")

// Fields of /proc/PID/stat, counted from the state of the process.
const (
	fieldParent  = 1
	fieldGroup   = 2
	fieldThreads = 17
	fieldStart   = 19
)

// set stores one field. It reports whether the value is valid.
func (s *stat) set(field int, value uint64, number bool) bool {
	switch field {
	case fieldParent:
		s.parent = int(value)
	case fieldGroup:
		s.group = int(value)
	case fieldThreads:
		s.threads = int(value)
	case fieldStart:
		s.start = value
		return number
	default:
		return true
	}
	return number && value <= math.MaxInt32
}

// readProc reads a small file of procfs with one call.
func readProc(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// statusField returns a field of /proc/PID/status. The first field, the name, can contain
// any text, but no line comes before it.
func statusField(text []byte, name string) string {
	_, after, _ := bytes.Cut(text, []byte("\n"+name+":"))
	value, _, _ := bytes.Cut(after, []byte("\n"))
	return string(bytes.TrimSpace(value))
}

// Dying reports whether a signal waits for a thread that ends its process. While a thread is
// stopped for its tracer the kernel delivers none but SIGKILL.
func Dying(tid int) bool {
	signals, err := signalSets(tid)
	if err != nil {
		return false
	}
	waiting := signals("SigPnd") | signals("ShdPnd")
	waiting &^= signals("SigBlk") | signals("SigIgn") | signals("SigCgt")
	for _, harmless := range []unix.Signal{ // without a handler, see signal(7)
		unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU,
	} {
		waiting &^= 1 << (harmless - 1)
	}
	return waiting != 0
}

// signalSets returns a function that returns a set of signals of a thread, by its name in
// proc_pid_status(5). Bit 0 is signal 1.
func signalSets(tid int) (func(field string) uint64, error) {
	text, err := readProc(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return nil, err
	}
	return func(field string) uint64 {
		set, err := strconv.ParseUint(statusField(text, field), 16, 64)
		if err != nil {
			return 0
		}
		return set
	}, nil
}

// Exe returns the path of the program that the process runs, inside its root.
// It is empty if the program has no path there.
func (t *Target) Exe() string { return t.linkInside("exe") }

// Cwd returns the working directory of the process, like [Target.Exe]. After
// [Target.Enter] it is the entered directory.
func (t *Target) Cwd() string {
	if t.cwd != nil {
		return t.cwd.Path
	}
	return t.linkInside("cwd")
}

func (t *Target) linkInside(name string) string {
	path, err := readlinkat(t.proc, name)
	if err != nil {
		return ""
	}
	root, err := t.rootName()
	if err != nil {
		return ""
	}
	inside, ok := insideRoot(path, root)
	if !ok || strings.HasSuffix(inside, deletedSuffix) {
		return ""
	}
	return inside
}

// rootName returns the thread's root directory as procfs names it.
func (t *Target) rootName() (string, error) {
	if t.rootAt == "" {
		at, err := readlinkat(t.proc, "root")
		if err != nil {
			return "", err
		}
		t.rootAt = at
	}
	return t.rootAt, nil
}

const deletedSuffix = " (deleted)"

// insideRoot converts a path that the kernel printed to the path below root.
func insideRoot(path, root string) (string, bool) {
	if !strings.HasPrefix(path, "/") {
		return "", false
	}
	switch root {
	case "/":
		return path, true
	case path:
		return "/", true
	}
	rest, ok := strings.CutPrefix(path, root)
	return rest, ok && strings.HasPrefix(rest, "/")
}

func readlinkat(dir int, name string) (string, error) {
	var small [256]byte
	for buf := small[:]; ; buf = make([]byte, 4*len(buf)) {
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}
