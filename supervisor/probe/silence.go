package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSilent is in the chain of the error of a trial whose call gets no answer from the
// listener of another supervisor. Further trials would wait as long.
var ErrSilent = errors.New("the listener of another supervisor does not answer")

// A call without an answer is one in which a thread is found in each of so many looks.
const (
	looks    = 50
	lookTime = 100 * time.Millisecond
)

// prompt are calls that trials make. They never wait for a lock or a disk, so a thread waits in
// one only because a listener stopped it.
var prompt = map[int]string{
	unix.SYS_KILL: "kill", unix.SYS_TKILL: "tkill", unix.SYS_TGKILL: "tgkill", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
	unix.SYS_BIND: "bind", unix.SYS_LISTEN: "listen",
}

// silence looks for a call without an answer in the process of a trial and in the processes
// that it started. It ends the process where it finds one.
type silence struct {
	names   map[int]string // of the calls that it looks for
	waiting map[string]wait
	stop    chan struct{}
	found   chan string // one name, empty: none
}

// wait is a thread's call in so many looks.
type wait struct {
	call  string // as the kernel prints it
	count int
}

// watchSilence begins to look. The caller calls end.
func (p *process) watchSilence(names map[int]string) *silence {
	s := &silence{names: names, waiting: map[string]wait{}, stop: make(chan struct{}), found: make(chan string, 1)}
	go func() { // ends with end
		t := time.NewTicker(lookTime)
		defer t.Stop()
		for {
			select {
			case <-s.stop:
				s.found <- ""
				return
			case <-t.C:
			}
			if name := s.look(p.server.PID()); name != "" {
				s.found <- name
				p.server.Kill()
				return
			}
		}
	}()
	return s
}

// end returns what was found instead of err.
func (s *silence) end(err error) error {
	close(s.stop)
	if name := <-s.found; name != "" {
		return fmt.Errorf("%w %s for %v (to change: run agentsh outside that supervisor, or have its filter leave %[2]s out)",
			ErrSilent, name, looks*lookTime)
	}
	return err
}

// look counts the calls of all threads of a process and of its children. It returns the name
// of one that has waited too long.
func (s *silence) look(pid int) string {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*") // a pattern without error
	for _, task := range tasks {
		if name := s.lookAt(task); name != "" {
			return name
		}
		children, _ := os.ReadFile(task + "/children") // a kernel without this file: only this process
		for _, child := range bytes.Fields(children) {
			n, err := strconv.Atoi(string(child))
			if err != nil {
				continue
			}
			if name := s.look(n); name != "" {
				return name
			}
		}
	}
	return ""
}

// lookAt counts the call of one thread. A thread that has a tracer's attention is not waiting.
// See proc_pid_syscall(5) and proc_pid_stat(5).
func (s *silence) lookAt(task string) string {
	stat, _ := os.ReadFile(task + "/stat")
	call, _ := os.ReadFile(task + "/syscall") // the thread may have ended
	_, state, _ := bytes.Cut(stat, []byte(") "))
	number, _, _ := bytes.Cut(call, []byte(" "))
	n, err := strconv.Atoi(string(number))
	name := s.names[n]
	if err != nil || name == "" || len(state) == 0 || state[0] != 'S' && state[0] != 'D' {
		delete(s.waiting, task)
		return ""
	}
	w := s.waiting[task]
	if w.call != string(call) {
		w = wait{call: string(call)}
	}
	w.count++
	s.waiting[task] = w
	if w.count < looks {
		return ""
	}
	return name
}
