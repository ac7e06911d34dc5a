// Package tally counts what the audit logs of sandboxes say, for Prometheus. It reads the logs beside
// their writers: no sandbox waits for it.
package tally

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/prometheus"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/audit"
)

// Bounds of reading.
const (
	every   = 5 * time.Second
	maxRead = 50_000 // events at a time, of all logs; the rest is read the next time
)

// Tally counts the sandboxes that a process serves. It is safe for concurrent use. A nil Tally counts
// nothing.
type Tally struct {
	build string

	mu     sync.Mutex
	logs   map[string]*Log // of sandboxes that have not ended, by the path
	counts counts
}

// New is a tally without sandboxes. build is the version of this program.
func New(build string) *Tally {
	return &Tally{build: build, logs: map[string]*Log{}, counts: newCounts()}
}

// Log is the log of one sandbox. The mutex of its tally guards it.
type Log struct {
	of         *Tally
	path       string
	in         *audit.Reader  // nil: it cannot be read any longer
	supervisor target.Process // zero: it has not started
	cause      wire.Cause     // of the end of the session; empty: it has not ended, or was killed
}

// Begin opens the log of a sandbox whose supervisor is about to start, or makes an empty one. The
// events of a short sandbox are then read after its directory is gone. It returns nil if the sandbox is
// counted already.
func (t *Tally) Begin(path string) *Log {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.logs[path] != nil {
		return nil
	}
	l := &Log{of: t, path: path}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		l.in, err = audit.OpenReader(path)
	}
	if err != nil {
		t.counts.unread.Add(1)
	}
	t.logs[path] = l
	return l
}

// Started counts a sandbox. supervisor is the process that writes the log.
func (l *Log) Started(supervisor target.Process) {
	if l == nil {
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.supervisor = supervisor
	l.of.counts.started.Add(1)
}

// Drop forgets a sandbox that was not started.
func (l *Log) Drop() {
	if l == nil {
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.close()
}

// close forgets a log. It is called with mu held.
func (l *Log) close() {
	l.stop()
	delete(l.of.logs, l.path)
}

// stop ends reading. It is called with mu held.
func (l *Log) stop() {
	if l.in != nil {
		_ = l.in.Close() // opened for reading
		l.in = nil
	}
}

// Run reads the logs until ctx ends. Without it, they are read when somebody asks for the counts, and
// the descriptors of ended sandboxes stay open until then.
func (t *Tally) Run(ctx context.Context) {
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			t.mu.Lock()
			t.read()
			t.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// read reads what the logs got. It is called with mu held.
func (t *Tally) read() {
	left := maxRead
	for _, l := range t.logs { // in another order each time
		// Looked at before the log is read: nothing is written after the end.
		ended := l.supervisor != (target.Process{}) && !alive(l.supervisor)
		for left > 0 && l.in != nil {
			e, err := l.in.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.counts.unread.Add(1)
					l.stop()
				}
				break
			}
			left--
			l.count(e)
		}
		if ended && left > 0 { // everything is read
			t.counts.end(l.cause)
			l.close()
		}
	}
}

// count counts an event. It is called with mu held.
func (l *Log) count(e wire.Event) {
	l.of.counts.event(e)
	if e.Type == wire.EventSession && e.Phase == "end" {
		l.cause = e.Cause
	}
}

// alive reports whether a process has not ended. Another one may have its number.
func alive(p target.Process) bool {
	found, err := target.Identify(p.PID)
	return err == nil && found.Start == p.Start
}

// Gather makes the counts.
func (t *Tally) Gather() []*prometheus.Family {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read()
	live, unread := map[int]bool{}, 0.0
	for _, l := range t.logs {
		if l.supervisor != (target.Process{}) {
			live[l.supervisor.PID] = true
		}
		if l.in != nil {
			n, err := l.in.Unread()
			if err == nil {
				unread += float64(n)
			}
		}
	}
	return append(t.counts.clone(),
		gauge("agentsh_sandboxes", "Sandboxes that go on.").Add(float64(len(live))),
		gauge("agentsh_processes", "Processes of sandboxes, with their supervisors.").Add(float64(below(live))),
		gauge("agentsh_audit_unread_bytes", "Bytes of audit logs that are not counted yet.").Add(unread),
		gauge("agentsh_build_info", "The version of the program, as a label.").Add(1, "program", "agentsh", "version", t.build))
}
