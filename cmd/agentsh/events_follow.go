package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// logsToFollow is the state directory whose logs are followed together, where the
// command line names no log and the configuration none for all sessions.
func logsToFollow(args []string) (state layout.State, all bool) {
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil || len(args) > 0 || operator.Audit != "" {
		return "", false // logFile reports the error
	}
	state, err = stateDir()
	return state, err == nil
}

// followAll prints the events of the newest log in a state directory and of those that
// are added, until ctx ends.
func (o *eventOptions) followAll(ctx context.Context, state layout.State, w io.Writer) error {
	dir := state.AuditLogs()
	if err := state.Make(); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	at, err := os.Open(dir)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer at.Close()
	watch, err := audit.WatchDirectory(at)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer func() { _ = watch.Close() }() // nothing was written
	following, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &follower{options: o, known: map[string]bool{}, fail: cancel}
	defer f.logs.Wait()
	old, err := logsOf(dir)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	newest, _ := newestLog(dir) // there may be none yet
	for _, name := range old {
		f.known[name] = name != newest
	}
	for {
		names, err := logsOf(dir)
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		for _, name := range names {
			f.follow(following, name, w)
		}
		if err := watch.Wait(following); err != nil {
			if ctx.Err() != nil {
				return nil // whatever the cause: that of a signal is no context.Canceled in Go 1.26.0
			}
			if following.Err() != nil {
				return context.Cause(following)
			}
			return failure.New(failure.Ours, err, "")
		}
	}
}

// logsOf lists the audit logs in a directory.
func logsOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".jsonl") && e.Type().IsRegular() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, err
}

// follower follows several logs.
type follower struct {
	options *eventOptions
	mu      sync.Mutex      // held while a log writes to the output
	known   map[string]bool // logs that are followed, or older than the command
	fail    context.CancelCauseFunc
	logs    sync.WaitGroup
}

// follow begins to print a log, unless it is known.
func (f *follower) follow(ctx context.Context, name string, w io.Writer) {
	if f.known[name] {
		return
	}
	f.known[name] = true
	p := f.options.printer(w)
	p.out.Reset(&lines{mu: &f.mu, w: w})
	f.logs.Go(func() {
		r, err := audit.OpenReader(name)
		if err == nil {
			defer func() { _ = r.Close() }() // opened for reading
			err = p.all(ctx, r)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, audit.ErrRemoved) && !errors.Is(err, os.ErrNotExist) {
			f.fail(failure.New(failure.Ours, err, ""))
		}
	})
}

// lines passes whole lines of one log on to an output that several logs share.
type lines struct {
	mu   *sync.Mutex
	w    io.Writer
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	end := bytes.LastIndexByte(l.rest, '\n') + 1
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(l.rest[:end]); err != nil {
		return 0, err
	}
	l.rest = append(l.rest[:0], l.rest[end:]...)
	return len(b), nil
}
