package target

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// As in gVisor, whose status has no numbers of other namespaces, and whose directories of
// procfs are no process descriptors.
func TestTheNumbersOfAProcessAreThoseOfItsDescriptor(t *testing.T) {
	testenv.Need(t, testenv.Root)
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(statusField(status, "NStgid"))
	got, err := Numbers(regexp.MustCompile(`(?m)^NStgid:.*\n`).ReplaceAll(status, nil))
	if err != nil || len(got) < 2 || !slices.Equal(got, want) {
		t.Errorf("%v instead of %v, %v", got, want, err)
	}

	view, err := OpenView(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	id, err := view.Identity()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := openProcess(view, Peer{PID: 1, Start: id.Start})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := numbersOf(fd); err != nil || !slices.Equal(now, want) {
		t.Errorf("the descriptor is of %v, %v", now, err)
	}
	if fd, err := openProcess(view, Peer{PID: 2, Start: id.Start}); err == nil {
		_ = unix.Close(fd)
		t.Error("a process that does not exist was found")
	}
	if fd, err := openProcess(view, Peer{PID: 1, Start: id.Start + 1}); err == nil {
		_ = unix.Close(fd)
		t.Error("a process that began at another time was found")
	}
}
