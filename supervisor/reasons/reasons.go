// Package reasons writes why something was refused to the standard error of the
// tool call that tried it. The agent program reads that output and passes it to its
// model, whatever program it is.
//
// A tool call is a process that the agent program started, with its descendants. Its
// standard error is that of the outermost descendant of the command's first process
// whose standard error is another file than the command's own. If there is none, as
// in an agent that is a shell script, it is the command's own.
package reasons

import (
	"os"
	"sync"
	"time"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// Bounds for one tool call in a window.
const (
	window   = 10 * time.Second
	maxLines = 8
	maxCalls = 1024 // tool calls that are remembered
	maxChain = 256  // ancestors that are examined
)

// more follows the last refusal that is written in a window.
const more = "agentsh: more was refused; the result of the run lists it\n"

// Writer writes the refusals of a session. The zero value is ready. It is safe for
// concurrent use and never waits for a reader.
type Writer struct {
	// Untold is a file that gets the refusals that no tool call can read: those of the
	// agent program itself. Empty: they are not listed. It is set before the first call.
	Untold string

	mu       sync.Mutex
	tools    toolCalls
	listed   map[string]time.Time // when a refusal was listed last
	commands map[string]agent
	calls    map[target.Process]*call
}

// agent is the first process of a command, which is the agent program.
type agent struct {
	target.Process
	parent int // the session init
}

// call is what was written to one tool call in a window.
type call struct {
	since time.Time
	said  map[string]bool
	full  bool
}

// Register has the refusals of a command written from now on. pid is its first
// process.
func (w *Writer) Register(command string, pid int) error {
	id, err := target.Identify(pid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.commands == nil {
		w.commands = map[string]agent{}
	}
	w.commands[command] = agent{id.Process, id.Parent}
	return nil
}

// Forget ends what Register began.
func (w *Writer) Forget(command string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.commands, command); len(w.commands) == 0 {
		w.calls = nil
		w.tools.clear()
	}
}

// Refused writes the refusal that an event describes. It reports whether it was
// written, now or as a repeat shortly before. Refusals of the agent program itself
// have no tool call whose output could have them.
func (w *Writer) Refused(e wire.Event) bool {
	if e.Process == nil || e.Process.PID == 0 || e.Count > 0 {
		return false
	}
	w.mu.Lock()
	first, known := w.commands[e.Command]
	w.mu.Unlock()
	if !known {
		return false
	}
	lines := Text(e)
	if !w.tell(first, target.Process{PID: e.Process.PID, Start: e.Process.StartTime}, lines) {
		w.list(lines)
		return false
	}
	return true
}

// tell writes lines to the tool call of a process. Once a tool call has its lines, only
// the numbers of the process and its parent are read.
func (w *Writer) tell(a agent, p target.Process, lines string) bool {
	for range 2 { // the second time without what was remembered
		tool, known := w.tools.of(a, p)
		if !known {
			return false
		}
		send, again := w.admit(tool, lines)
		if again || send == "" {
			return true
		}
		to, alive := open(tool)
		if alive {
			defer to.Close()
			return to.write(send)
		}
		w.forget(tool)
	}
	return false
}

// forget forgets a tool call that has ended.
func (w *Writer) forget(tool target.Process) {
	w.tools.forget(tool)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, tool)
}

// Bounds of the file of untold refusals.
const (
	maxUntold  = 1 << 20 // bytes
	listWindow = time.Second
)

// list appends lines to the file of untold refusals. A repeat within a second is left
// out.
func (w *Writer) list(lines string) {
	if w.Untold == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if last, known := w.listed[lines]; known && now.Sub(last) < listWindow {
		return
	}
	if w.listed == nil || len(w.listed) >= maxCalls {
		w.listed = map[string]time.Time{}
	}
	w.listed[lines] = now
	f, err := os.OpenFile(w.Untold, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return // the session shows no such file
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() < maxUntold {
		_, _ = f.WriteString(lines)
	}
}

// admit returns what is written to a tool call now. again reports a repeat.
func (w *Writer) admit(id target.Process, lines string) (send string, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	c := w.calls[id]
	if c == nil || now.Sub(c.since) > window {
		if w.calls == nil || len(w.calls) >= maxCalls {
			w.calls = map[target.Process]*call{}
		}
		c = &call{since: now, said: map[string]bool{}}
		w.calls[id] = c
	}
	switch {
	case c.said[lines]:
		return "", true
	case c.full:
		return "", false
	case len(c.said) == maxLines:
		c.full = true
		return more, false
	}
	c.said[lines] = true
	return lines, false
}
