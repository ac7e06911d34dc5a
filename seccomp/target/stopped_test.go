package target

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The variables of a program at its exec stop are changed by the process's
// number, through its memory's file and, where that cannot be opened for writing,
// by ptrace: a few bytes, and more than the stack has room for.
func TestSetEnvByEveryMethod(t *testing.T) {
	large := "LARGE=" + strings.Repeat("x", 100_000)
	huge := "LARGE=" + strings.Repeat("x", 131_000) // the stack must grow for it
	file := func(s *Stopped) error { return s.openMemory() }
	poke := func(s *Stopped) error { s.poke = true; return s.openMemory() }
	for name, prepare := range map[string]func(*Stopped) error{"number": func(*Stopped) error { return nil }, "file": file, "ptrace": poke} {
		for _, added := range []string{"ADDED=yes", large, huge} {
			if out := runWith(t, prepare, added); !strings.Contains(out, added+"\n") || !strings.Contains(out, "OWN=1\n") {
				t.Errorf("by %s: the program saw %.200q", name, out)
			}
		}
	}
}

// runWith runs env with a variable that is put in at its exec stop, and returns
// what it printed.
func runWith(t *testing.T, prepare func(*Stopped) error, added string) string {
	t.Helper()
	runtime.LockOSThread() // the thread that starts a traced program is its tracer
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/usr/bin/env")
	cmd.Env = []string{"OWN=1"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("no exec stop: %v, %v", status, err)
	}
	s, err := OpenStopped(cmd.Process.Pid)
	if err == nil {
		if err = prepare(s); err == nil {
			err = s.SetEnv([]string{added})
		}
		s.Close()
	}
	if err != nil {
		t.Error(err)
	}
	if err := unix.PtraceDetach(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return out.String()
}

// A process that is killed stops again at its end, if its tracer asks for that. Nothing that is
// read from it then says anything about its program.
func TestAProcessThatWasKilledIsNotHeld(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("no exec stop: %v, %v", status, err)
	}
	if !Held(pid) {
		t.Error("a process at its exec stop is not held")
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() || status.TrapCause() != unix.PTRACE_EVENT_EXIT {
		t.Fatalf("no stop at its end: %v, %v", status, err)
	}
	if Held(pid) {
		t.Error("a process that was killed is held")
	}
	if err := unix.PtraceDetach(pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || Held(pid) {
		t.Errorf("after its end: %v", err)
	}
}
