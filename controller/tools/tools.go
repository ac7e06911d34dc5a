// Package tools serves the tools of one sandbox over the Model Context Protocol. An agent
// loop outside the sandbox uses them in place of its own shell and file tools.
//
// Every tool works by commands in the sandbox, so the policy of the sandbox judges each
// file and each program. Nothing is read or written on the host. server.go connects
// clients, commands.go runs commands and keeps their output, files.go, search.go and
// patch.go work with files by small shell scripts (script.go), history.go compares and
// restores states of the workspace.
package tools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/controller/sandbox"
)

// Config describes a [Toolbox]. Sandbox and Dir are required.
type Config struct {
	Program, Version string // name and version that clients see
	Sandbox          sandbox.Executor
	Dir              string            // where commands start, and the base of relative paths; absolute, in the sandbox
	Env              []string          // of every command, NAME=value, subject to the policy's env_policy
	Run              map[string]string // see [wire.ExecRequest]
	History          History           // nil: the tools for it are missing
	Log              *slog.Logger      // nil: nothing is logged
	Turns            *Turns            // with other servers of the same files; nil: there are none
}

// Toolbox has the tools of one sandbox and the commands that they started. It is safe for
// concurrent use by several clients. Close ends it.
type Toolbox struct {
	cfg      Config // of a sandbox that is still made: after opening
	opening  *opening
	server   *mcp.Server
	refused  *Refused
	commands commands
	slots    chan struct{} // one for each running command
	limits   limits
	// arguments are those of each tool.
	arguments map[string][]string
	calls     gate
	ended     *endings
	life      context.Context // of the use of the sandbox; set before opening.done is closed
	ctx       context.Context
	end       context.CancelCauseFunc
	wg        sync.WaitGroup // commands of exec
}

// maxRunning bounds the commands that run at a time, of all clients together.
const maxRunning = 64

// instructions tell a model how to use the tools.
const instructions = `These tools run commands and work with files in a sandbox under a policy. ` +
	`Paths are paths in the sandbox; relative ones start in the directory of the repository. ` +
	`A result that begins with "agentsh: denied:" names the rule that refused something, and a hint: do it another way, ` +
	`or say in your answer why it is needed. Do not repeat a refused command unchanged.`

// New makes the tools of a sandbox. The caller closes them. ctx goes on while the sandbox may be used: a command that ends
// with it is said to have the cause of ctx.
func New(ctx context.Context, cfg Config) (*Toolbox, error) {
	t := newToolbox(cfg)
	if cfg.History != nil {
		t.addHistory()
	}
	if err := t.Open(ctx, cfg); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// newToolbox makes the tools that every sandbox has.
func newToolbox(cfg Config) *Toolbox {
	ctx, end := context.WithCancelCause(context.Background())
	t := &Toolbox{
		cfg: cfg, opening: &opening{done: make(chan struct{})}, ctx: ctx, end: end,
		slots: make(chan struct{}, maxRunning), limits: newLimits(), ended: newEndings(), arguments: map[string][]string{},
	}
	t.server = mcp.NewServer(&mcp.Implementation{Name: cfg.Program, Version: cfg.Version}, &mcp.ServerOptions{
		Instructions: instructions, Logger: cfg.Log, SetCacheable: private,
		// The list of tools stays; that of resources is asked for.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
	})
	t.server.AddReceivingMiddleware(answers(t))
	t.addCommands()
	t.addFiles()
	t.addSearch()
	t.addPatch()
	return t
}

// Close ends the calls and commands that still run, and returns when they have ended.
func (t *Toolbox) Close() {
	t.end(errClosed)
	closeSessions(t.server)
	t.calls.close()
	t.wg.Wait()
}

// gate counts the calls that run, until it is closed. It is safe for concurrent use.
type gate struct {
	mu     sync.Mutex
	closed bool
	n      int // inside
	inside sync.WaitGroup
}

// number is how many are inside.
func (g *gate) number() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// leave leaves it.
func (g *gate) leave() {
	g.mu.Lock()
	g.n--
	g.mu.Unlock()
	g.inside.Done()
}

// enter reports whether the gate is open. The caller leaves then.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
		g.n++
	}
	return !g.closed
}

// close lets nobody in and waits for those inside.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// errClosed is the cause of the end of commands when the tools end.
var errClosed = errors.New("the tools of this sandbox have ended")

// closedBy is errClosed with what the end of ctx says: an operator, a signal, a timeout.
func closedBy(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.Canceled) {
		return errClosed
	}
	return fmt.Errorf("%w: %w; start the server again for another sandbox", errClosed, cause)
}

// tool describes one tool to [add].
type tool struct {
	name, title, description string
	reads                    bool // changes nothing
	writes                   bool // changes files, of which others may have read the former content: one at a time, see [Turns]
	contents                 bool // holds the content of files: few at a time
}

// add adds a tool. Its schemas are those of its input and output types.
func add[In, Out any](t *Toolbox, about tool, handle func(context.Context, call, In) (string, Out, error)) {
	closed := false
	in := schemaOf[In]()
	t.arguments[about.name] = in.PropertyOrder
	mcp.AddTool(t.server, &mcp.Tool{
		Name: about.name, Title: about.title, Description: about.description,
		InputSchema: in, OutputSchema: schemaOf[Out](),
		Annotations: &mcp.ToolAnnotations{Title: about.title, ReadOnlyHint: about.reads, OpenWorldHint: &closed},
	}, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		if !t.calls.enter() {
			var none Out
			return nil, none, errClosed
		}
		defer t.calls.leave()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })()
		defer t.ended.begin(req.Session.ID(), cancel)()
		leave, err := t.limits.turn(ctx, about, len(req.Params.Arguments))
		if err != nil {
			var none Out
			return nil, none, err
		}
		defer leave()
		if err := t.opening.wait(ctx); err != nil {
			var none Out
			return nil, none, err
		}
		if about.writes {
			leave, err := t.cfg.Turns.take(ctx)
			if err != nil {
				var none Out
				return nil, none, err
			}
			defer leave()
		}
		c := call{req: req, links: &[]mcp.Content{}}
		text, out, err := handle(ctx, c, in)
		if err != nil {
			return nil, out, err
		}
		return &mcp.CallToolResult{Content: append([]mcp.Content{&mcp.TextContent{Text: text}}, *c.links...)}, out, nil
	})
}

// call is one use of a tool.
type call struct {
	req   *mcp.CallToolRequest
	links *[]mcp.Content // resources of the result
}

// link adds a resource to the result.
func (c call) link(uri, name string, size int64) {
	*c.links = append(*c.links, &mcp.ResourceLink{URI: uri, Name: name, MIMEType: "text/plain", Size: &size})
}

// progress tells the client how far the call is. Without a token of the client it does nothing.
func (c call) progress(ctx context.Context, done int64, message string) {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, progressWait)
	defer cancel()
	// A client that has gone needs no progress.
	_ = c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(done), Message: message})
}

// progressInterval is the shortest time between two notifications, progressWait the longest
// time that one may take.
const (
	progressInterval = 250 * time.Millisecond
	progressWait     = 5 * time.Second
)
