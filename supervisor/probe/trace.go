package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/probe/trial"
)

// ptrace is ptrace(2) without an address.
func ptrace(request, pid, data int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registers reads the general registers of a stopped thread.
func registers(pid int, into []byte) error {
	const general = 1 // NT_PRSTATUS
	v := unix.Iovec{Base: &into[0]}
	v.SetLen(len(into))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(pid), general, uintptr(unsafe.Pointer(&v)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ptraceOptions are those of the verification of an execve.
const ptraceOptions = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// tryTrace seizes a descendant as the supervisor does for an execve: not a
// child, because a wait for a child would take its stops.
func tryTrace() (string, error) {
	p, a, err := startProcess(trialParent, environment{})
	if err != nil {
		return "", err
	}
	defer p.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ptrace(unix.PTRACE_SEIZE, a.PID, ptraceOptions); err != nil {
		return "", fmt.Errorf("PTRACE_SEIZE: %w", err)
	}
	if err := ptrace(unix.PTRACE_INTERRUPT, a.PID, 0); err != nil {
		return "", fmt.Errorf("PTRACE_INTERRUPT: %w", err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(a.PID, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
		return "", fmt.Errorf("wait for the stop: %w", err)
	}
	if !status.Stopped() {
		return "", fmt.Errorf("the traced process did not stop: status %#x", uint32(status))
	}
	var general [512]byte // larger than the registers of any architecture
	if err := registers(a.PID, general[:]); err != nil {
		return "", fmt.Errorf("PTRACE_GETREGSET: %w", err)
	}
	if err := ptrace(unix.PTRACE_DETACH, a.PID, 0); err != nil {
		return "", fmt.Errorf("PTRACE_DETACH: %w", err)
	}
	return "seize, interrupt, registers, detach", nil
}

// primitiveEngine is what stops the calls of commands: a listener, or a tracer.
const primitiveEngine = "engine"

// tryEngine tries the engines in the order in which sessions do.
func tryEngine() (string, error) {
	_, notify := try("seccomp_notify", environment{})
	if notify == nil {
		if _, err := try(WaitKillable, environment{}); err != nil {
			if _, none := tryTraced(); none == nil {
				return fmt.Sprintf("trace (signals would interrupt the waits of a listener: %v)", err), nil
			}
		}
		return "listener", nil
	}
	if _, err := tryTraced(); err != nil {
		return "", fmt.Errorf("no listener (%w), and no tracer: %w", notify, err)
	}
	return fmt.Sprintf("trace (no listener: %v)", notify), nil
}

// tryTraced stops a thread of a descendant in a call that its filter names, and has the
// call return a value.
func tryTraced() (string, error) {
	p, a, err := startProcess(trialTracee, environment{})
	if err != nil {
		return "", err
	}
	defer p.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ptrace(unix.PTRACE_SEIZE, a.PID, unix.PTRACE_O_TRACESECCOMP|unix.PTRACE_O_EXITKILL); err != nil {
		return "", fmt.Errorf("PTRACE_SEIZE: %w", err)
	}
	status, err := waitForEvent(a.PID)
	if err != nil {
		return "", err
	}
	if !status.Stopped() || int(status)>>16 != unix.PTRACE_EVENT_SECCOMP {
		return "", fmt.Errorf("the traced thread did not stop in its call: status %#x", uint32(status))
	}
	r, err := target.ReadRegisters(a.PID)
	if err != nil {
		return "", err
	}
	if number, _ := r.Call(); number != unix.SYS_GETPPID {
		return "", fmt.Errorf("stop in call %d instead of %d", number, unix.SYS_GETPPID)
	}
	if err := r.Skip(a.PID, 0); err != nil {
		return "", err
	}
	if err := ptrace(unix.PTRACE_DETACH, a.PID, 0); err != nil {
		return "", fmt.Errorf("PTRACE_DETACH: %w", err)
	}
	return "stop, registers, answer", nil
}

// waitForEvent waits for a stop that is no signal, and passes signals on: the runtime of
// the traced process sends some to itself.
func waitForEvent(pid int) (status unix.WaitStatus, err error) {
	for {
		if _, err := unix.Wait4(pid, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
			return 0, fmt.Errorf("wait for the stop: %w", err)
		}
		if !status.Stopped() || int(status)>>16 != 0 {
			return status, nil
		}
		if err := ptrace(unix.PTRACE_CONT, pid, int(status.StopSignal())); err != nil {
			return 0, fmt.Errorf("PTRACE_CONT: %w", err)
		}
	}
}

// tryMemory reads the memory of a descendant by /proc/PID/mem.
func tryMemory() (string, error) {
	p, a, err := startProcess(trialParent, environment{})
	if err != nil {
		return "", err
	}
	defer p.close()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", a.PID))
	if err != nil {
		return "", err
	}
	defer f.Close()
	got := make([]byte, len(trial.Mark))
	if _, err := f.ReadAt(got, int64(a.Addr)); err != nil {
		return "", err
	}
	if string(got) != string(trial.Mark[:]) {
		return "", fmt.Errorf("%s holds something else than expected", f.Name())
	}
	return "read of another process", nil
}

// tryLookInto opens the root directory of a process that is as closed as a session's first
// one. The supervisor looks at programs in it.
func tryLookInto() (string, error) {
	p, a, err := startProcess(trial.Undumpable, environment{user: os.Geteuid() != 0, namespaces: unix.CLONE_NEWNS})
	if err != nil {
		return "", err
	}
	defer p.close()
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", a.PID), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	return "", root.Close()
}

// CanTrace reports whether this process may trace at all: the kernel must say
// that a process that does not exist is missing, and not refuse the call.
func CanTrace() error {
	const nobody = 1<<22 + 1 // above every process number: see proc_sys_kernel(5), pid_max
	if err := unix.PtraceSeize(nobody); !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("verify programs by ptrace: %w", err)
	}
	return nil
}
