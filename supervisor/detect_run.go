package supervisor

import (
	"agentsh/supervisor/view"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
)

// probeName is the name under which this program tries one thing and ends.
const probeName = "agentsh-probe"

// probeTimeout bounds one trial, its process included.
const probeTimeout = 60 * time.Second

// errUndecided is in the chain of the error of a trial that had no result in
// time: on a machine with much to do it says nothing about what is there.
var errUndecided = errors.New("the trial was not decided")

// answer is what a probe process reports, as JSON.
type answer struct {
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"`
	PID    int    `json:"pid"`     // of a process to look at: itself or its child
	Addr   uint64 `json:"address"` // of probeMark in it
}

// place is where a trial runs.
type place struct {
	user       bool    // in a user namespace of its own
	namespaces uintptr // CLONE_NEWNS and others
}

// scratchProcess is a process that waits with its trial done.
type scratchProcess struct {
	process *launch.Server
	control net.Conn
}

// startProbe starts a process for one trial and returns what it reports.
func startProbe(trial string, where place) (*scratchProcess, answer, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, answer{}, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "probe"), os.NewFile(uintptr(pair[1]), "probe")
	defer ours.Close()
	defer theirs.Close()
	control, err := net.FileConn(ours)
	if err != nil {
		return nil, answer{}, err
	}
	process, err := startIn(where, []launch.Donation{{Name: controlName, File: theirs}})
	if err != nil {
		return nil, answer{}, errors.Join(err, control.Close())
	}
	theirs.Close() // its end must be the end of the conversation
	p := &scratchProcess{process, control}
	a, err := p.ask(trial)
	if err != nil {
		p.close()
		return nil, answer{}, err
	}
	return p, a, nil
}

// startIn starts a probe process where it is to try something.
func startIn(where place, donations []launch.Donation) (*launch.Server, error) {
	if !where.user && where.namespaces == 0 {
		return launch.StartServer(probeName, donations)
	}
	c := launch.Config{UserNS: where.user, UID: os.Geteuid(), GID: os.Getegid()}
	if where.user && c.UID == 0 {
		// Root may not map itself; any other id shows the same.
		c.UID, c.GID, c.HostUID, c.HostGID = view.DedicatedID, view.DedicatedID, view.DedicatedID, view.DedicatedID
	}
	return launch.StartScratch(probeName, donations, c, where.namespaces)
}

// ask sends the name of the trial and waits for its result.
func (p *scratchProcess) ask(trial string) (answer, error) {
	var a answer
	if err := p.control.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return a, err
	}
	if err := json.NewEncoder(p.control).Encode(trial); err != nil {
		return a, fmt.Errorf("start of the trial: %w", err)
	}
	err := json.NewDecoder(p.control).Decode(&a)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return a, p.process.Err() // it ended without a word
	}
	if err != nil {
		return a, fmt.Errorf("no result after %s: %w", probeTimeout, errUndecided)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// close ends the process and waits for it.
func (p *scratchProcess) close() {
	_ = p.control.Close() // the process is killed next
	p.process.Kill()
}

// try runs one trial in a process of its own.
func try(trial string, where place) (string, error) {
	p, a, err := startProbe(trial, where)
	if err != nil {
		return "", err
	}
	p.close()
	return a.Detail, nil
}

// ptraceOptions are those of the verification of an execve.
const ptraceOptions = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// tryTrace seizes a descendant as the supervisor does for an execve: not a
// child, because a wait for a child would take its stops.
func tryTrace() (string, error) {
	p, a, err := startProbe(trialParent, place{})
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

// tryMemory reads the memory of a descendant by /proc/PID/mem.
func tryMemory() (string, error) {
	p, a, err := startProbe(trialParent, place{})
	if err != nil {
		return "", err
	}
	defer p.close()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", a.PID))
	if err != nil {
		return "", err
	}
	defer f.Close()
	got := make([]byte, len(probeMark))
	if _, err := f.ReadAt(got, int64(a.Addr)); err != nil {
		return "", err
	}
	if string(got) != string(probeMark[:]) {
		return "", fmt.Errorf("%s holds something else than expected", f.Name())
	}
	return "read of another process", nil
}

// controlName is the trial process's name for its control socket.
const controlName = "control"
