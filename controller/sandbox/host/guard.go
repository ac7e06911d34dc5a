package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/siginfo"
)

// The guard is this program started as guardName, between the controller and
// the command. Controller and guard share a socket:
//
//	controller                         guard                      command
//	    | -- spec (one JSON object) ----> | -- fork, execve ---------> |
//	    | -- 'T' -----------------------> | -- SIGTERM to its group -> |
//	    | -- 'K' -----------------------> | -- SIGKILL --------------> |
//	    | -- the socket closes ---------> | -- SIGTERM, then SIGKILL > |
//	    |                                 | <- ends ------------------ |
//	    |                                 | kills what is left of the tree
//	    | <- answer (one JSON object) --- |
//
// A controller that is killed closes the socket: nothing is left behind, and git
// gets the time to remove its lock files. The
// guard is a child subreaper, so a process that leaves the group or detaches
// comes back to it. See prctl(2), PR_SET_CHILD_SUBREAPER.
const (
	guardName      = "agentctl-guard"
	guardFD        = 3
	orderTerminate = 'T'
	orderKill      = 'K'
	maxSpec        = 8 << 20 // bytes; the limits of execve(2) for arguments and environment are far lower
	maxAnswer      = 64 << 10
	orphanGrace    = 500 * time.Millisecond // after the controller is gone
)

// guardSpec describes the command that the guard starts.
type guardSpec struct {
	Path string   `json:"path"`
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env"`
}

// guardAnswer describes how the command ended.
type guardAnswer struct {
	Code     int    `json:"code"`
	Signal   int    `json:"signal"`
	Leftover int    `json:"leftover"`
	Error    string `json:"error"` // why the command was not started
}

// init turns the process into a guard before any other code of the program
// runs. So every program of this package, including a test, can start itself as
// its guard.
func init() {
	if len(os.Args) == 1 && os.Args[0] == guardName {
		os.Exit(guardMain())
	}
}

func guardMain() int {
	unix.CloseOnExec(guardFD)
	control := os.NewFile(guardFD, "control")
	answer := guard(control)
	if err := json.NewEncoder(control).Encode(answer); err != nil {
		return 1
	}
	return 0
}

func guard(control *os.File) guardAnswer {
	var spec guardSpec
	dec := json.NewDecoder(io.LimitReader(control, maxSpec))
	if err := dec.Decode(&spec); err != nil {
		return guardAnswer{Error: fmt.Sprintf("read command: %v", err)}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return guardAnswer{Error: fmt.Sprintf("become subreaper: %v", err)}
	}
	dir := spec.Dir
	if dir == "" {
		dir = "/"
	}
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, &syscall.ProcAttr{
		Dir: dir, Env: spec.Env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return guardAnswer{Error: err.Error()}
	}
	m := &mainProcess{pid: pid}
	// The decoder may have read orders that follow the spec.
	go m.obey(io.MultiReader(dec.Buffered(), control))
	return m.wait()
}

// mainProcess is the process of the command, without its children.
type mainProcess struct {
	pid int

	mu     sync.Mutex
	reaped bool // from now on pid may belong to another process
}

// obey executes orders until the controller is gone. The exit of the guard ends
// it.
func (m *mainProcess) obey(control io.Reader) {
	order := make([]byte, 1)
	for {
		_, err := io.ReadFull(control, order)
		switch {
		case err != nil:
			m.signal(syscall.SIGTERM)
			<-time.After(orphanGrace)
			m.signal(syscall.SIGKILL)
			return
		case order[0] == orderKill:
			m.signal(syscall.SIGKILL)
			return
		case order[0] == orderTerminate:
			m.signal(syscall.SIGTERM)
		}
	}
}

// signal sends a signal to the command's process group, and to the command,
// which may have left the group.
func (m *mainProcess) signal(sig syscall.Signal) {
	// The process group has the id pid only until the command is reaped.
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reaped {
		return
	}
	_ = syscall.Kill(-m.pid, sig)
	_ = syscall.Kill(m.pid, sig)
}

// wait reaps processes until the command has ended, then kills all remaining
// children.
func (m *mainProcess) wait() guardAnswer {
	for {
		pid, err := peekDead()
		if err != nil {
			return guardAnswer{Error: fmt.Sprintf("wait for command: %v", err)}
		}
		if pid != m.pid {
			reap(pid)
			continue
		}
		// Its group is named by pid only as long as it is not reaped.
		m.mu.Lock()
		m.reaped = true
		_ = syscall.Kill(-m.pid, syscall.SIGKILL)
		status := reap(pid)
		m.mu.Unlock()
		a := guardAnswer{Leftover: killChildren()}
		if status.Signaled() {
			a.Signal = int(status.Signal())
		} else {
			a.Code = status.ExitStatus()
		}
		return a
	}
}

// peekDead waits until any child has ended and returns it without reaping it.
func peekDead() (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return siginfo.PID(&info), nil
	}
}

func reap(pid int) syscall.WaitStatus {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}

// killChildren kills and reaps children until there are none, and returns their
// number. The children of a killed child become children of the guard.
//
// Without children it looks at nothing in /proc. Entries there of a process with many threads
// are expensive to remove when it ends: its parent waits for the kernel.
func killChildren() int {
	n, options := 0, syscall.WNOHANG
	for {
		pid, err := syscall.Wait4(-1, nil, options, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return n
		case pid > 0:
			n++
			options = syscall.WNOHANG // children of this one may live
		default:
			for _, pid := range listChildren() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			options = 0
		}
	}
}

// listChildren reads proc(5), /proc/PID/task/TID/children.
func listChildren() []int {
	var pids []int
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, t := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
