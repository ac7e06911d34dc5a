// Package silence finds calls of processes that the seccomp listener of another supervisor
// has stopped and does not answer.
package silence

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Err is in the chain of the error of a call without an answer. Whoever makes that call again
// waits as long.
var Err = errors.New("the listener of another supervisor does not answer")

// A call without an answer is one in which a thread is found in each of so many looks.
const (
	looks    = 50
	lookTime = 100 * time.Millisecond
)

// Watch looks for a call without an answer.
type Watch struct {
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

// Process watches a process and those that it starts, until End is called. It calls kill once,
// if it finds one of the named calls. These must wait for nothing but a listener.
func Process(pid int, names map[int]string, kill func()) *Watch {
	w := &Watch{names: names, waiting: map[string]wait{}, stop: make(chan struct{}), found: make(chan string, 1)}
	go func() { // ends with End
		t := time.NewTicker(lookTime)
		defer t.Stop()
		for {
			select {
			case <-w.stop:
				w.found <- ""
				return
			case <-t.C:
			}
			if name := w.process(pid); name != "" {
				w.found <- name
				kill()
				return
			}
		}
	}()
	return w
}

// End ends the watch. It returns what was found instead of err.
func (w *Watch) End(err error) error {
	close(w.stop)
	if name := <-w.found; name != "" {
		return NotAnswered(name)
	}
	return err
}

// NotAnswered is the error of a call without an answer.
func NotAnswered(name string) error {
	return fmt.Errorf("%w %s for %v (to change: run agentsh outside that supervisor, or have its filter leave %[2]s out)",
		Err, name, looks*lookTime)
}

// process counts the calls of all threads of a process and of its children. It returns the
// name of one that has waited too long.
func (w *Watch) process(pid int) string {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*") // a pattern without error
	for _, task := range tasks {
		if name := w.thread(task); name != "" {
			return name
		}
		children, _ := os.ReadFile(task + "/children") // a kernel without this file: none
		for _, child := range bytes.Fields(children) {
			n, err := strconv.Atoi(string(child))
			if err != nil {
				continue
			}
			if name := w.process(n); name != "" {
				return name
			}
		}
	}
	return ""
}

// thread counts the call of one thread. A thread that has a tracer's attention is not waiting,
// and one that waits elsewhere in the kernel is not silenced.
// See proc_pid_syscall(5), proc_pid_stat(5) and proc_pid_wchan(5).
func (w *Watch) thread(task string) string {
	stat, _ := os.ReadFile(task + "/stat")
	call, _ := os.ReadFile(task + "/syscall") // the thread may have ended
	place, _ := os.ReadFile(task + "/wchan")
	_, state, _ := bytes.Cut(stat, []byte(") "))
	number, _, _ := bytes.Cut(call, []byte(" "))
	n, err := strconv.Atoi(string(number))
	name := w.names[n]
	elsewhere := len(place) > 1 && !bytes.Contains(place, []byte("seccomp")) // "0" or nothing: unknown
	if err != nil || name == "" || elsewhere || len(state) == 0 || state[0] != 'S' && state[0] != 'D' {
		delete(w.waiting, task)
		return ""
	}
	seen := w.waiting[task]
	if seen.call != string(call) {
		seen = wait{call: string(call)}
	}
	seen.count++
	w.waiting[task] = seen
	if seen.count < looks {
		return ""
	}
	return name
}
