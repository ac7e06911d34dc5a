package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// maxEnded is the number of ended commands whose output is kept.
const maxEnded = 64

// commands are the commands of the exec tool, by their ids. The oldest that have ended are
// dropped.
type commands struct {
	mu   sync.Mutex
	last int
	of   map[string]*command
	done []*command // ended, oldest first
	live map[*command]bool
}

// command is one command of the exec tool.
type command struct {
	id      string
	number  int
	shown   string // for people
	output  *output
	kill    context.CancelCauseFunc
	ended   chan struct{}
	started time.Time
	// exit, refusals and err are set before ended is closed.
	exit     wire.Exit
	refusals []Refusal
	err      error
}

func (c *commands) add(shown string, kill context.CancelCauseFunc) *command {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	one := &command{
		id: fmt.Sprintf("c%d", c.last), number: c.last, shown: shown, output: &output{room: maxKept}, kill: kill,
		ended: make(chan struct{}), started: time.Now(),
	}
	if c.of == nil {
		c.of, c.live = map[string]*command{}, map[*command]bool{}
	}
	c.of[one.id], c.live[one] = one, true
	c.share()
	return one
}

// share divides the room for the outputs of running commands among them. The caller holds mu.
func (c *commands) share() {
	for one := range c.live {
		one.output.limit(min(maxKept, maxAll/len(c.live)))
	}
}

// retire bounds what is kept of ended commands.
func (c *commands) retire(one *command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, one)
	c.share()
	c.done = append(c.done, one)
	all := 0
	for _, d := range c.done {
		_, kept := d.output.size()
		all += kept
	}
	for len(c.done) > 1 && (len(c.done) > maxEnded || all > maxAll) {
		_, kept := c.done[0].output.size()
		all -= kept
		delete(c.of, c.done[0].id)
		c.done = slices.Delete(c.done, 0, 1)
	}
}

func (c *commands) find(id string) (*command, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.of[id]
	if one == nil {
		return nil, fmt.Errorf("there is no command %.40q: exec returns the command_id, and the newest %d ended commands are kept", id, maxEnded)
	}
	return one, nil
}

// execInput is the input of exec.
type execInput struct {
	Command        string   `json:"command,omitempty" jsonschema:"script for bash, or sh where there is no bash; write this or argv"`
	Argv           []string `json:"argv,omitempty" jsonschema:"program and arguments, without a shell; write this or command"`
	Cwd            string   `json:"cwd,omitempty" jsonschema:"directory in which it starts"`
	Stdin          string   `json:"stdin,omitempty" jsonschema:"its standard input; it is empty otherwise"`
	TimeoutSeconds float64  `json:"timeout_seconds,omitempty" jsonschema:"end it and everything that it started after this time"`
	Background     bool     `json:"background,omitempty" jsonschema:"return at once; read its output with exec_output and end it with exec_kill"`
}

// execOutput is the result of exec, exec_output and exec_kill.
type execOutput struct {
	CommandID  string    `json:"command_id"`
	State      string    `json:"state" jsonschema:"running or ended"`
	ExitCode   *int      `json:"exit_code,omitempty" jsonschema:"its exit status: 124 timeout, 126 denied, 127 not found, 128 and the number of a signal"`
	End        string    `json:"end,omitempty" jsonschema:"how it ended: exited, signaled, deadline, denied, spawn_failed, oom, lost"`
	Message    string    `json:"message,omitempty"`
	Output     string    `json:"output" jsonschema:"standard output and standard error as they came"`
	Offset     int64     `json:"offset" jsonschema:"of the first byte of output"`
	NextOffset int64     `json:"next_offset" jsonschema:"offset for exec_output to go on reading"`
	TotalBytes int64     `json:"total_bytes" jsonschema:"that it has printed until now"`
	Truncated  bool      `json:"truncated,omitempty" jsonschema:"the middle of output is left out"`
	Refusals   []Refusal `json:"refusals,omitempty" jsonschema:"what the policy refused"`
}

type outputInput struct {
	CommandID   string  `json:"command_id"`
	Offset      int64   `json:"offset,omitempty" jsonschema:"first byte to return; next_offset of the previous result goes on"`
	Limit       int     `json:"limit,omitempty" jsonschema:"most bytes to return; default 32768"`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"wait this long for more output or the end"`
}

type killInput struct {
	CommandID string `json:"command_id"`
}

// addCommands adds the tools for commands.
func (t *Toolbox) addCommands() {
	add(t, tool{name: "exec", title: "Run a command", description: "Run a command in the sandbox and return its output and exit status. " +
		"A background command returns at once. A long output is shortened in the middle; exec_output reads the rest."}, t.exec)
	add(t, tool{name: "exec_output", title: "Read the output of a command", reads: true,
		description: "Read the output of a command by byte offset, and wait for more of it. Its end says how the command ended."}, t.execOutput)
	add(t, tool{name: "exec_kill", title: "End a command",
		description: "End a command with everything that it started, and return the rest of its output."}, t.execKill)
	t.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "output", Title: "Output of a command", MIMEType: "text/plain", URITemplate: outputURI + "{command_id}",
		Description: "All output of a command that is kept: at most the newest 8 MiB, or its share of 64 MiB if more than 8 commands run.",
	}, t.readOutput)
}

// outputURI begins the names of outputs of commands as resources.
const outputURI = "agentsh://output/"

// maxTimeout bounds timeout_seconds and wait_seconds.
const maxTimeout = 24 * time.Hour

// seconds reads a time in seconds.
func seconds(name string, n float64) (time.Duration, error) {
	if n < 0 || n > maxTimeout.Seconds() || math.IsNaN(n) {
		return 0, fmt.Errorf("%s: %v: at least 0 and at most %.0f", name, n, maxTimeout.Seconds())
	}
	return time.Duration(n * float64(time.Second)), nil
}

// request is the command of a call.
func (t *Toolbox) request(in execInput) (wire.ExecRequest, error) {
	req := wire.ExecRequest{ID: "tool-" + rand.Text(), Argv: in.Argv, Env: t.cfg.Env, Run: t.cfg.Run}
	limit, err := seconds("timeout_seconds", in.TimeoutSeconds)
	switch {
	case err != nil:
		return req, err
	case (in.Command == "") == (len(in.Argv) == 0):
		return req, errors.New("write either command, a script for the shell, or argv, a program with its arguments")
	case in.Command != "":
		req.Argv = []string{"bash", "-c", in.Command}
	}
	if limit > 0 {
		req.DeadlineMS = max(limit.Milliseconds(), 1)
	}
	req.Cwd = t.path(in.Cwd)
	return req, nil
}

// path is an absolute path in the sandbox.
func (t *Toolbox) path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(t.cfg.Dir, name)
}

func (t *Toolbox) exec(ctx context.Context, c call, in execInput) (string, execOutput, error) {
	req, err := t.request(in)
	if err != nil {
		return "", execOutput{}, err
	}
	if err := t.take(ctx); err != nil {
		return "", execOutput{}, err
	}
	from := ctx
	if in.Background {
		from = t.ctx
	}
	from, kill := context.WithCancelCause(from)
	one := t.commands.add(text.Short(in.Command+strings.Join(in.Argv, " "), 200), kill)
	t.wg.Go(func() {
		defer func() { <-t.slots }()
		t.run(from, one, req, in)
	})
	if in.Background {
		return "running in the background as " + one.id, execOutput{CommandID: one.id, State: stateRunning}, nil
	}
	t.watch(ctx, c, one)
	return t.result(c, one)
}

// take waits for a slot of a command.
func (t *Toolbox) take(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%d commands run already: end one with exec_kill", maxRunning)
	}
}

// slotWait is how long a call waits for another command to end.
const slotWait = 30 * time.Second

// run runs a command to its end. A script runs in sh where there is no bash.
func (t *Toolbox) run(ctx context.Context, one *command, req wire.ExecRequest, in execInput) {
	script := in.Command != ""
	defer one.kill(nil)
	t.refused.Begin(req.ID)
	run := func() {
		streams := wire.Streams{Stdout: one.output, Stderr: one.output}
		if in.Stdin != "" {
			streams.Stdin = strings.NewReader(in.Stdin) // a program that was not found may have taken a part
		}
		one.exit, one.err = t.cfg.Sandbox.Run(ctx, req, streams)
	}
	run()
	if one.exit.Kind == wire.ExitSpawnFailed && one.exit.Code == 127 && script {
		t.refused.Finish(req.ID, one.exit) // nothing has run
		req.ID, req.Argv[0] = "tool-"+rand.Text(), "sh"
		t.refused.Begin(req.ID)
		run()
	}
	cause := context.Cause(ctx)
	if cause == nil && t.life.Err() != nil && one.exit.Kind != wire.ExitExited { // the sandbox has ended it
		cause = closedBy(t.life)
	}
	switch {
	case one.err != nil && errors.Is(cause, errKilled): // as when its end was reported
		one.exit, one.err = wire.Exit{Kind: wire.ExitSignaled, Signal: int(unix.SIGKILL)}, nil
	case errors.Is(cause, errClosed) && one.exit.Kind != wire.ExitExited: // the signal of its end says less
		one.exit, one.err = wire.Exit{Kind: wire.ExitLost}, cause
	case one.err != nil && cause != nil:
		one.err = cause
	}
	one.refusals = t.refused.Finish(req.ID, one.exit)
	if one.exit.Kind == wire.ExitDenied && len(one.refusals) == 0 {
		one.refusals = []Refusal{ofExit(one.shown, one.exit)}
	}
	one.output.end()
	close(one.ended)
	t.commands.retire(one)
}

// watch waits for the end of a command, and tells the client meanwhile what it printed.
func (t *Toolbox) watch(ctx context.Context, c call, one *command) {
	if c.req.Params.GetProgressToken() == nil {
		<-one.ended // the end of ctx ends the command
		return
	}
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	var told int64
	for {
		select {
		case <-one.ended:
			return
		case <-tick.C:
			if line, total := one.output.lastLine(); total > told {
				told = total
				c.progress(ctx, total, line)
			}
		}
	}
}

// States of a command in results.
const (
	stateRunning = "running"
	stateEnded   = "ended"
)

// describe fills in how a command ended, and returns it in words.
func (one *command) describe(out *execOutput) string {
	out.CommandID, out.State = one.id, stateRunning
	select {
	case <-one.ended:
	default:
		return "[" + one.id + " is still running]"
	}
	code := one.exit.ExitCode()
	out.State, out.ExitCode, out.End, out.Refusals = stateEnded, &code, one.exit.Kind, one.refusals
	out.Message = text.Visible(one.exit.Message)
	switch {
	case one.exit.Kind == wire.ExitExited && code == 0 && one.err == nil:
		return ""
	case one.exit.Kind == wire.ExitExited && one.err == nil:
		return fmt.Sprintf("[exit status %d]", code)
	case one.exit.Kind == wire.ExitSignaled:
		return fmt.Sprintf("[ended by signal %d]", one.exit.Signal)
	case one.exit.Kind == wire.ExitDeadline:
		return "[ended by timeout_seconds, with everything that it started]"
	case one.exit.Kind == wire.ExitDenied:
		return "[not started: the policy denies it]"
	case one.err != nil:
		out.Message = text.Visible(one.err.Error())
		return "[" + out.Message + "]"
	}
	line := "[" + out.Message + "]"
	if one.exit.Hint != "" {
		line += "\nagentsh: hint: " + text.Visible(one.exit.Hint)
	}
	return line
}

// result is the result of a command that has ended.
func (t *Toolbox) result(c call, one *command) (string, execOutput, error) {
	var out execOutput
	state := one.describe(&out)
	if errors.Is(one.err, context.Canceled) {
		return "", out, one.err // nobody reads the result of a cancelled call
	}
	out.Output, out.Truncated = one.output.summary()
	out.TotalBytes, _ = one.output.size()
	out.NextOffset = out.TotalBytes
	if out.Truncated {
		c.link(outputURI+one.id, "output of "+one.id, out.TotalBytes)
	}
	said := tell(out.Output, one.refusals) + state
	if said == "" {
		said = "[exit status 0, no output]" // APIs of models refuse a text that is empty
	}
	return said, out, nil
}

func (t *Toolbox) execOutput(ctx context.Context, _ call, in outputInput) (string, execOutput, error) {
	var out execOutput
	one, err := t.commands.find(in.CommandID)
	if err != nil {
		return "", out, err
	}
	limit := in.Limit
	if limit == 0 {
		limit = maxShown
	}
	if limit < 1 || limit > maxPage {
		return "", out, fmt.Errorf("limit: %d: 1 to %d bytes", in.Limit, maxPage)
	}
	wait, err := seconds("wait_seconds", in.WaitSeconds)
	if err != nil {
		return "", out, err
	}
	if wait > 0 {
		waiting, cancel := context.WithTimeout(ctx, wait)
		one.output.wait(waiting, in.Offset)
		cancel()
	}
	p, err := one.output.read(in.Offset, limit)
	if err != nil {
		return "", out, err
	}
	state := one.describe(&out)
	out.Output, out.Offset, out.NextOffset, out.TotalBytes = p.text, p.from, p.next, p.total
	if p.next < p.total {
		return p.text + fmt.Sprintf("\n[%s more: go on with offset %d]", text.Count(p.total-p.next, "byte"), p.next), out, nil
	}
	if state == "" {
		state = "[exit status 0]"
	}
	return tell(p.text, out.Refusals) + state, out, nil
}

// maxPage is the most that one call of exec_output returns, in bytes.
const maxPage = 1 << 20

// errKilled is the cause of the end of a command.
var errKilled = errors.New("ended by exec_kill")

func (t *Toolbox) execKill(ctx context.Context, c call, in killInput) (string, execOutput, error) {
	one, err := t.commands.find(in.CommandID)
	if err != nil {
		return "", execOutput{}, err
	}
	one.kill(errKilled)
	select {
	case <-one.ended:
	case <-ctx.Done():
		return "", execOutput{}, context.Cause(ctx)
	}
	return t.result(c, one)
}

// readOutput is the output of a command as a resource.
func (t *Toolbox) readOutput(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	id, _ := strings.CutPrefix(req.Params.URI, outputURI)
	one, err := t.commands.find(id)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	leave, err := enter(ctx, t.limits.contents)
	if err != nil {
		return nil, err
	}
	defer leave()
	total, kept := one.output.size()
	p, err := one.output.read(total-int64(kept), maxKept*2)
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: p.text}}}, nil
}
