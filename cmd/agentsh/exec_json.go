package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
	"agentsh/internal/refusals"
	"agentsh/internal/wire"
)

// maxCaptured bounds each stream in the output of exec --json, in bytes.
const maxCaptured = 1 << 20

// jsonResult is the output of exec --json.
type jsonResult struct {
	ExitCode       int                 `json:"exit_code"`
	Exit           wire.Exit           `json:"exit"`
	Stdout         jsonStream          `json:"stdout"`
	Stderr         jsonStream          `json:"stderr"`
	Denials        []*refusals.Refusal `json:"denials"`
	DenialsDropped int                 `json:"denials_dropped,omitempty"`
	Audit          string              `json:"audit,omitempty"`
}

// jsonStream is one stream: text when it is UTF-8, else base64.
type jsonStream struct {
	Text      string `json:"text,omitempty"`
	Base64    []byte `json:"base64,omitempty"`
	Bytes     int64  `json:"bytes"` // written in all
	Truncated bool   `json:"truncated"`
}

// runJSON runs a command and prints one object, also when it could not be run.
func (o *execOptions) runJSON(ctx context.Context, argv []string, std stdio) error {
	var stdout, stderr capture
	r, err := o.captured(ctx, argv, wire.Streams{Stdin: std.in, Stdout: &stdout, Stderr: &stderr})
	foreground.SignalsEnd()
	if err != nil && r.exit.Cause == "" {
		r.exit = oursAsExit(err)
		r.exit.Hint = orDefault(r.exit.Hint, auditHint(err))
	}
	out := jsonResult{
		ExitCode: r.exit.ExitCode(), Exit: r.exit, Stdout: stdout.stream(), Stderr: stderr.stream(),
		Denials: r.refused.All, DenialsDropped: r.refused.Dropped, Audit: r.auditPath,
	}
	if out.Denials == nil {
		out.Denials = []*refusals.Refusal{}
	}
	if err := json.NewEncoder(foreground.Result(ctx, std.out)).Encode(out); err != nil {
		return failure.New(failure.Ours, fmt.Errorf("standard output could not be written: %w", err),
			"repeat the command with its output somewhere else")
	}
	if out.ExitCode == 0 {
		return nil
	}
	return failure.New(out.ExitCode, nil, "")
}

func (o *execOptions) captured(ctx context.Context, argv []string, streams wire.Streams) (result, error) {
	w, err := o.runner(ctx)
	if err != nil {
		return result{}, err
	}
	request, err := o.request(argv, w)
	if err != nil {
		return result{}, errors.Join(err, w.close())
	}
	return foreground.PassSignals(foreground.Connect(w.execute, unread), earlier)(ctx, request, streams)
}

// oursAsExit is the exit of a command that agentsh itself could not run.
func oursAsExit(err error) wire.Exit {
	exit := wire.Exit{Kind: wire.ExitSpawnFailed, Code: failure.Ours, Message: err.Error()}
	if f := (*failure.Failure)(nil); errors.As(err, &f) {
		exit.Code, exit.Hint = f.Code, f.Hint
	}
	return exit
}

// capture stores the first bytes written to it and counts all. It is safe for
// concurrent use.
type capture struct {
	mu   sync.Mutex
	kept []byte
	all  int64
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, p[:min(len(p), maxCaptured-len(c.kept))]...)
	c.all += int64(len(p))
	return len(p), nil
}

// stream is the captured text. A character that the limit cut is left out.
func (c *capture) stream() jsonStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := jsonStream{Bytes: c.all, Truncated: c.all > int64(len(c.kept))}
	whole := c.kept
	for i := 1; s.Truncated && i < utf8.UTFMax && i <= len(whole); i++ {
		if last := whole[len(whole)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole = whole[:len(whole)-i]
			}
			break
		}
	}
	if utf8.Valid(whole) {
		s.Text = string(whole)
	} else {
		s.Base64 = c.kept
	}
	return s
}
