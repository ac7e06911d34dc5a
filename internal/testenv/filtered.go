package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filteredName is argv[0] of a test binary that is re-executed to install a
// filter on itself and become the program under test.
const filteredName = "agentsh-test-filtered"

// Filtered is a program that runs under a filter which notifies some calls.
type Filtered struct {
	Listener *os.File // owned by the caller
	Cmd      *exec.Cmd
	Reaped   func() // waits until the tracer has waited for a traced program; nil: nothing traces it
	pidfd    int
	socket   *os.File
}

func init() {
	if os.Args[0] == filteredName {
		if len(os.Args) < 3 {
			os.Exit(0)
		}
		runtime.LockOSThread()
		fmt.Fprintln(os.Stderr, "filtered:", becomeFiltered(os.Args[1], os.Args[2], os.Args[3:]))
		os.Exit(99)
	}
}

// StartFiltered prepares cmd to run with a filter that notifies the system
// calls in numbers. It stops short of the first execve; [Filtered.Begin] lets
// that happen, so the caller can serve the listener first. The caller must
// call [Filtered.Wait]; the program is killed when the test ends.
func StartFiltered(t testing.TB, cmd *exec.Cmd, numbers ...int) *Filtered {
	t.Helper()
	return start(t, cmd, "listener", numbers)
}

// StartTraced is StartFiltered with a filter that stops the calls for a tracer. There is no
// listener. Until the program is traced these calls fail.
func StartTraced(t testing.TB, cmd *exec.Cmd, numbers ...int) *Filtered {
	t.Helper()
	return start(t, cmd, "trace", numbers)
}

func start(t testing.TB, cmd *exec.Cmd, engine string, numbers []int) *Filtered {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	var list []string
	for _, n := range numbers {
		list = append(list, strconv.Itoa(n))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append([]string{filteredName, engine, strings.Join(list, ","), cmd.Path}, cmd.Args...)
	cmd.Path = self
	cmd.ExtraFiles = append([]*os.File{theirs}, cmd.ExtraFiles...)
	f := &Filtered{Cmd: cmd, pidfd: -1, socket: ours}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.PidFD = &f.pidfd
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		_ = unix.PidfdSendSignal(f.pidfd, unix.SIGKILL, nil, 0)
		_ = f.Wait()
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = unix.Close(f.pidfd)
		ours.Close()
	})
	if engine == "trace" {
		if n, err := unix.Read(int(ours.Fd()), make([]byte, 1)); n != 1 {
			t.Fatalf("the traced program did not start: %v", err)
		}
		return f
	}
	f.Listener = receiveFile(t, ours)
	return f
}

// Begin lets the program's execve happen.
func (f *Filtered) Begin() error {
	_, err := f.socket.Write([]byte{1})
	return err
}

// Wait waits for the program. It polls the process descriptor first: a wait in
// this process would take the ptrace stops of a tracee that is also a child. The end of a
// program that stays traced is for its tracer, whose wait hangs the descriptor up, since Linux
// 6.9.
func (f *Filtered) Wait() error {
	events := int16(unix.POLLIN)
	traced := f.Listener == nil && f.Reaped != nil
	if traced && hangsUp() {
		events = 0 // POLLHUP alone
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(f.pidfd), Events: events}}, -1)
		if err != unix.EINTR {
			break
		}
	}
	if traced && !hangsUp() {
		f.Reaped()
	}
	if f.Cmd.ProcessState != nil {
		return nil
	}
	return f.Cmd.Wait()
}

// hangsUp reports whether a process descriptor tells that the process was waited for.
var hangsUp = sync.OnceValue(func() bool {
	fd := -1
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{filteredName, "nothing"}
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
	_ = cmd.Run() // whatever its end
	poll := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(poll, 0)
	_ = unix.Close(fd)
	return err == nil && poll[0].Revents&unix.POLLHUP != 0
})

func receiveFile(t testing.TB, socket *os.File) *os.File {
	t.Helper()
	buf, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(int(socket.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("the filtered program sent no listener: %q %v", buf[:n], err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("the filtered program sent %d descriptors: %v", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "listener")
}

func becomeFiltered(engine, numbers string, args []string) error {
	var calls []uint32
	for _, s := range strings.Split(numbers, ",") {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return err
		}
		calls = append(calls, uint32(n))
	}
	unix.CloseOnExec(3)
	fd, err := installFilter(calls, engine == "trace")
	if err != nil {
		return fmt.Errorf("install the filter: %w", err)
	}
	if engine == "trace" {
		if _, err := unix.Write(3, []byte{0}); err != nil {
			return err
		}
	} else {
		if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
			return fmt.Errorf("send the listener: %w", err)
		}
		_ = unix.Close(fd)
	}
	if n, err := unix.Read(3, make([]byte, 1)); n != 1 {
		return fmt.Errorf("wait to begin: %w", err)
	}
	return unix.Exec(args[0], args[1:], os.Environ())
}

// installFilter notifies the calls on this thread, or stops them for a tracer, and allows
// all others.
func installFilter(calls []uint32, traced bool) (int, error) {
	const (
		load, jumpEqual, ret = 0x20, 0x15, 0x06
		allow, userNotif     = 0x7fff0000, 0x7fc00000
		traceCall            = 0x7ff00000
		newListener          = 1 << 3
		waitKillable         = 1 << 5
		setModeFilter        = 1
	)
	action, flags := uint32(userNotif), uintptr(newListener|waitKillable)
	if traced {
		action, flags = traceCall, 0
	}
	program := []unix.SockFilter{{Code: load, K: 0}}
	if traced { // as seccomp.Traced has it
		const options, jumpSet = 16 + 2*8, 0x45
		program = append(program, unix.SockFilter{Code: jumpEqual, Jf: 4, K: unix.SYS_WAIT4}, unix.SockFilter{Code: load, K: options},
			unix.SockFilter{Code: jumpSet, Jf: 1, K: unix.WNOHANG}, unix.SockFilter{Code: ret, K: action},
			unix.SockFilter{Code: load, K: 0})
	}
	for i, n := range calls {
		program = append(program, unix.SockFilter{Code: jumpEqual, Jt: uint8(len(calls) - i), K: n})
	}
	program = append(program, unix.SockFilter{Code: ret, K: allow}, unix.SockFilter{Code: ret, K: action})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}
