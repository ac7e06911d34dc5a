package boxes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"agentsh/controller/sandbox"
	"agentsh/controller/tools"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Command is one command in a sandbox.
type Command struct {
	Argv           []string          `json:"argv,omitempty"`   // program and arguments; or Script
	Script         string            `json:"script,omitempty"` // for bash, or sh where there is no bash
	Cwd            string            `json:"cwd,omitempty"`    // relative to the repository
	Env            map[string]string `json:"env,omitempty"`    // subject to env_policy of the policy
	Stdin          string            `json:"stdin,omitempty"`  // or StdinBase64
	StdinBase64    []byte            `json:"stdin_base64,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"`  // 0: none
	MaxOutputBytes int               `json:"max_output_bytes,omitempty"` // of each output in the result; 0: 1 MiB
}

// Bounds of a command.
const (
	defaultOutput = 1 << 20
	maxOutput     = 64 << 20
	maxTimeout    = 7 * 24 * time.Hour
)

// Result is the end of a command.
type Result struct {
	ExitCode int    `json:"exit_code"` // 124 timeout, 126 denied, 127 not found, 128 and the number of a signal
	End      string `json:"end"`       // exited, signaled, deadline, denied, spawn_failed, oom, lost
	Message  string `json:"message,omitempty"`
	Hint     string `json:"hint,omitempty"`

	Stdout       string `json:"stdout"` // if it is UTF-8
	Stderr       string `json:"stderr"`
	StdoutBase64 []byte `json:"stdout_base64,omitempty"` // if it is not
	StderrBase64 []byte `json:"stderr_base64,omitempty"`
	Truncated    bool   `json:"truncated,omitempty"` // the end of an output is missing

	Refusals   []tools.Refusal `json:"refusals,omitempty"` // what the policy refused
	Dropped    []string        `json:"dropped,omitempty"`  // variables of Env that the command did not get
	DurationMS int64           `json:"duration_ms"`
	CPUMS      int64           `json:"cpu_ms"`
	MaxRSS     int64           `json:"max_rss_bytes"`

	Cause wire.Cause `json:"-"` // why its session ended, if that is known after an error
}

// request is the command for a sandbox whose commands start in dir.
func (c Command) request(dir string) (wire.ExecRequest, error) {
	req := wire.ExecRequest{Argv: c.Argv, Cwd: dir}
	switch {
	case (len(c.Argv) == 0) == (c.Script == ""):
		return req, errors.New("write argv, a program with its arguments, or script")
	case c.TimeoutSeconds < 0 || c.TimeoutSeconds > maxTimeout.Seconds():
		return req, fmt.Errorf("timeout_seconds: %v: at least 0 and at most %.0f", c.TimeoutSeconds, maxTimeout.Seconds())
	case c.MaxOutputBytes < 0 || c.MaxOutputBytes > maxOutput:
		return req, fmt.Errorf("max_output_bytes: %d: 0 to %d", c.MaxOutputBytes, maxOutput)
	case c.Stdin != "" && len(c.StdinBase64) > 0:
		return req, errors.New("write stdin or stdin_base64")
	case c.Script != "":
		req.Argv = []string{"bash", "-c", c.Script}
	}
	if c.TimeoutSeconds > 0 {
		req.DeadlineMS = max(int64(c.TimeoutSeconds*1000), 1)
	}
	if c.Cwd != "" {
		req.Cwd = c.Cwd
		if !path.IsAbs(c.Cwd) {
			req.Cwd = path.Join(dir, c.Cwd)
		}
	}
	for name, value := range c.Env {
		req.Env = append(req.Env, name+"="+value)
	}
	return req, nil
}

// stdin is the input of the command; nil: it is empty.
func (c Command) stdin() io.Reader {
	switch {
	case c.Stdin != "":
		return strings.NewReader(c.Stdin)
	case len(c.StdinBase64) > 0:
		return bytes.NewReader(c.StdinBase64)
	}
	return nil
}

// Runner runs commands in one sandbox. It is safe for concurrent use.
type Runner struct {
	Box     sandbox.Executor
	Dir     string         // where commands start
	Refused *tools.Refused // nil: results have no refusals besides that of the command itself
	ID      func() string  // makes request ids; nil: ones of this package

	room func(bytes int) error // is asked before so much output is kept; nil: it is
}

// Run runs a command and waits for its end. The streams get the whole output as it comes, besides what is in
// the result, and Stdin is in the place of the command's own; they may be nil.
func (r Runner) Run(ctx context.Context, c Command, s sandbox.Streams) (Result, error) {
	id := r.ID
	if id == nil {
		id = func() string { return "box-" + rand.Text() }
	}
	req, err := c.request(r.Dir)
	if err != nil {
		return Result{}, err
	}
	req.ID = id()
	most := c.MaxOutputBytes
	if most == 0 {
		most = defaultOutput
	}
	start := time.Now()
	out, errs := &head{most: most, to: s.Stdout, room: r.room}, &head{most: most, to: s.Stderr, room: r.room}
	in := s.Stdin
	if in == nil {
		in = c.stdin()
	}
	var res Result
	run := func() (wire.Exit, error) {
		if r.Refused != nil {
			r.Refused.Begin(req.ID)
		}
		return r.Box.Run(ctx, req, sandbox.Streams{Stdin: in, Stdout: out, Stderr: errs, Dropped: func(list []wire.DroppedVar) {
			for _, v := range list {
				res.Dropped = append(res.Dropped, text.Visible(v.Name)+": "+text.Visible(v.Reason))
			}
		}})
	}
	exit, err := run()
	if c.Script != "" && err == nil && exit.Kind == wire.ExitSpawnFailed && exit.Code == 127 {
		if r.Refused != nil {
			r.Refused.Finish(req.ID, exit) // nothing has run
		}
		res.Dropped = nil
		if s.Stdin == nil {
			in = c.stdin() // again: the first program may have taken a part
		}
		req.ID, req.Argv[0] = id(), "sh"
		exit, err = run()
	}
	if r.Refused != nil {
		res.Refusals = r.Refused.Finish(req.ID, exit)
	}
	if cause := context.Cause(ctx); cause != nil { // it may have ended by the signal of the cancelling
		err = cause
	}
	if err != nil {
		res.Cause = exit.Cause
		return res, err
	}
	res.describe(exit, req.Argv[0])
	res.Stdout, res.StdoutBase64 = out.text()
	res.Stderr, res.StderrBase64 = errs.text()
	res.Truncated = out.cut || errs.cut
	res.DurationMS = time.Since(start).Milliseconds()
	return res, nil
}

// describe sets how the command ended.
func (r *Result) describe(exit wire.Exit, name string) {
	r.ExitCode, r.End = exit.ExitCode(), exit.Kind
	r.Message, r.Hint = text.Visible(exit.Message), text.Visible(exit.Hint)
	r.CPUMS = (exit.Rusage.UserMicros + exit.Rusage.SystemMicros) / 1000
	r.MaxRSS = exit.Rusage.MaxRSSBytes
	if exit.Kind == wire.ExitDenied && len(r.Refusals) == 0 {
		one := tools.Refusal{What: text.Short(name, 200), Message: r.Message, Hint: r.Hint}
		if exit.Rule != nil {
			one.Rule, one.At = text.Visible(exit.Rule.Name), text.Visible(exit.Rule.Position())
		}
		r.Refusals = []tools.Refusal{one}
	}
}

// head keeps the beginning of an output, and passes all of it on.
type head struct {
	bytes.Buffer
	most int
	cut  bool
	to   io.Writer
	room func(bytes int) error
}

func (h *head) Write(p []byte) (int, error) {
	left := h.most - h.Len()
	kept := p[:min(len(p), left)]
	if h.room != nil && len(kept) > 0 {
		if err := h.room(len(kept)); err != nil {
			return 0, err
		}
	}
	h.Buffer.Write(kept)
	h.cut = h.cut || len(p) > left
	if h.to == nil {
		return len(p), nil
	}
	return h.to.Write(p)
}

// text is the output as a text, or its bytes if they are none. A character that the limit has cut is left out.
func (h *head) text() (string, []byte) {
	data := h.Bytes()
	for cut := 0; h.cut && cut < utf8.UTFMax && len(data) > 0; cut++ {
		if r, n := utf8.DecodeLastRune(data); r != utf8.RuneError || n != 1 {
			break
		}
		data = data[:len(data)-1]
	}
	if asText(data) {
		return string(data), nil
	}
	return "", h.Bytes()
}

// asText reports whether bytes stand in JSON as a text: UTF-8, but no long one of which JSON makes more than twice as many.
func asText(data []byte) bool {
	if !utf8.Valid(data) {
		return false
	}
	more := 0
	for i := 0; len(data) > smallFile && i < len(data); i++ {
		switch c := data[i]; c {
		case '"', '\\', '\b', '\f', '\n', '\r', '\t':
			more++
		default:
			if c < ' ' {
				more += len(`\u0000`) - 1
			}
		}
	}
	return more <= len(data)
}
