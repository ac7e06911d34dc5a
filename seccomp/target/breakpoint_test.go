package target

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A program stops at its entry, before which the loader's calls were made, and
// runs on as if nothing had been there.
func TestAProgramStopsAtItsEntryAndGoesOn(t *testing.T) {
	for _, name := range []string{"/bin/true", "/bin/dash", "/usr/bin/busybox", "/usr/bin/node"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // the thread that starts a traced program is its tracer
			defer runtime.UnlockOSThread()
			cmd := exec.Command(program, "-c", "exit 0", "true")
			if name == "/usr/bin/busybox" {
				cmd.Args = []string{"true"}
			}
			if name == "/usr/bin/node" {
				cmd.Args = []string{"node", "--version"}
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
				t.Fatalf("no exec stop: %v, %v", status, err)
			}
			at, err := EntryOf(pid)
			if err != nil {
				t.Fatal(err)
			}
			b, err := SetBreakpoint(pid, at)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.PtraceCont(pid, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() || status.StopSignal() != unix.SIGTRAP {
				t.Fatalf("no stop at the entry: %#x, %v", int(status), err)
			}
			if reached, err := b.Reached(pid); err != nil || !reached {
				t.Errorf("reached %v, %v", reached, err)
			}
			if again, err := b.Reached(pid); err != nil || again != (breakAdvance == 0) {
				t.Errorf("before the instruction it is reached: %v, %v", again, err)
			}
			if err := b.Remove(pid); err != nil {
				t.Error(err)
			}
			if err := unix.PtraceDetach(pid); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := SetBreakpoint(1<<22, 0); err == nil {
		t.Error("a breakpoint in a process that there is not")
	}
}
