// Package runtime starts agent programs. A [Runtime] is the adapter of one of
// them: it says which command to run in the sandbox and reads its output into
// [Event] values that are the same for every program.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// Runtime adapts one agent program. It holds no state of a run.
type Runtime interface {
	// Name is the word a harness selects it by.
	Name() string
	// Traits say what the program reads and takes.
	Traits() Traits
	// Check reports what is missing in the invocation, before a sandbox exists.
	Check(in Invocation) error
	// Files configure the program: settings, definitions in its own form, the
	// wiring of its hooks. They are the same for every iteration.
	Files(in Invocation) ([]File, error)
	// Command is what to run in the sandbox for one iteration.
	Command(in Invocation) (Command, error)
	// Parser reads the program's output and calls emit for each event, in order.
	Parser(emit func(Event)) Parser
	// State lists where the program stores its own state, absolute paths in the
	// sandbox. It is removed before a next iteration starts.
	State(in Invocation) []string
	// Transcripts lists the files and directories in which the program writes
	// down what it did, absolute paths in the sandbox. They are taken out after
	// each iteration; one that is missing is no error.
	Transcripts(in Invocation) []string
}

// Hider is a [Runtime] whose program would take from files of the repository
// what only the harness decides.
type Hider interface {
	// Hidden lists these files and directories, relative to the repository. They
	// do not travel, and the agent cannot make them.
	Hidden(in Invocation) []string
}

// Traits are what a program can be given.
type Traits struct {
	Program string // started when the harness names no command; empty: it must
	Bridge  bool   // reads CLAUDE.md and not AGENTS.md
	Model   bool   // takes a model
	Effort  bool   // takes a reasoning effort
	Plugins bool   // loads plugins
	Hooks   bool   // calls hooks around its tools
	Ends    bool   // says how it ended by an [EventResult]; without one it failed
}

// File is a file of the sandbox.
type File struct {
	Dest   string // absolute
	Data   []byte
	Mode   fs.FileMode // permission bits
	Target string      // not empty: a symbolic link, relative, that stays in the sandbox
}

// Hook is a program that looks at a tool's call before or after it.
type Hook struct {
	After bool     // the call; otherwise before
	Tools string   // names of tools, a|b; empty: all
	Argv  []string // reads the call on stdin; status 2 refuses
}

// Parser takes the output of a program as it comes. Its methods may be called
// by two goroutines, one for each stream.
type Parser interface {
	Stdout() io.Writer
	Stderr() io.Writer
	// Close emits what an unfinished last line holds.
	Close()
}

// Invocation is what one iteration is about. Paths are paths in the sandbox.
type Invocation struct {
	Agent      string   // name
	Definition string   // the agent definition
	Text       string   // what is in it
	Argv       []string // program and first arguments; empty: [Traits.Program]
	Model      string
	Effort     string
	Skills     []string // names of directories below ConfigDir/skills
	Plugins    []string // directories below ConfigDir
	RepoDir    string   // working directory
	Feedback   Feedback // of the validator, for all iterations but the first
	Hooks      []Hook
	RunID      string
	Iteration  int       // from 1
	Deadline   time.Time // of this iteration
	Trace      string    // TRACEPARENT
}

// Feedback is what the validator said of the iteration before.
type Feedback struct {
	File string // in the sandbox; empty: there is none
	Text string // content of the file
}

// program is the program with its first arguments.
func (in Invocation) program(t Traits) []string {
	if len(in.Argv) > 0 {
		return slices.Clone(in.Argv)
	}
	return []string{t.Program}
}

// checkArgv refuses words that cannot be arguments.
func (in Invocation) checkArgv() error {
	for i, a := range in.Argv {
		if i == 0 && a == "" {
			return errors.New("the program of command is empty")
		}
		if strings.ContainsRune(a, 0) {
			return errors.New("an argument of command holds a NUL")
		}
	}
	return nil
}

// Command is one program to run.
type Command struct {
	Argv []string
	Cwd  string
	Env  []string          // NAME=value, subject to the policy's env_policy
	Run  map[string]string // AGENTSH_ variables, see [wire.ExecRequest]
}

// Optional reports whether the program works without a variable of Env, which
// only describes the run.
func (c Command) Optional(name string) bool {
	return name == "TRACEPARENT" || strings.HasPrefix(name, "FULLSEND_")
}

// Kinds of [Event].
const (
	EventLine       = "line"        // a line of output that says nothing else
	EventSaid       = "said"        // text of the model
	EventToolCall   = "tool_call"   // the model uses a tool
	EventToolResult = "tool_result" // what the tool answered
	EventUsage      = "usage"       // tokens used since the usage before
	EventError      = "error"       // what the program reports as an error
	EventResult     = "result"      // how the program says it ended
)

// Event is one thing an agent said or did. Texts are clean, see [Clean].
type Event struct {
	Kind   string `json:"kind"`
	Stream string `json:"stream,omitempty"` // stdout or stderr
	Text   string `json:"text"`             // of a tool call: its input in short
	Tool   string `json:"tool,omitempty"`   // name of the tool
	Call   string `json:"call,omitempty"`   // joins a tool's call and its result
	Failed bool   `json:"failed,omitempty"` // of a tool result, of the result
	Usage  *Usage `json:"usage,omitempty"`
}

// Usage is what a model's work took.
type Usage struct {
	Model      string  `json:"model,omitempty"`
	Turns      int     `json:"turns"`
	Input      int64   `json:"input_tokens"`
	Output     int64   `json:"output_tokens"`
	CacheRead  int64   `json:"cache_read_tokens"`
	CacheWrite int64   `json:"cache_write_tokens"`
	CostUSD    float64 `json:"cost_usd"` // as the program says; 0: it does not say
}

// maxCost is more than a run can have cost: what a program says beyond it, or
// below nothing, is not counted. The sum must stay a number.
const maxCost = 1e9

// Add adds what v took. The model is the last one named.
func (u *Usage) Add(v Usage) {
	if v.Model != "" {
		u.Model = v.Model
	}
	u.Turns += v.Turns
	u.Input += v.Input
	u.Output += v.Output
	u.CacheRead += v.CacheRead
	u.CacheWrite += v.CacheWrite
	if v.CostUSD > 0 && v.CostUSD < maxCost {
		u.CostUSD += v.CostUSD
	}
}

// registered are the runtimes a harness can name.
var registered = map[string]Runtime{}

func register(r Runtime) { registered[r.Name()] = r }

func init() { register(command{}) }

// ErrUnknown reports a runtime that is not registered.
var ErrUnknown = errors.New("unknown runtime")

// Lookup finds a runtime by name.
func Lookup(name string) (Runtime, error) {
	if r, ok := registered[name]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("%w %q: this build has %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Names are the registered runtimes, sorted.
func Names() []string {
	var names []string
	for name := range registered {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Run runs one iteration in a sandbox and waits for its end. The error is not
// nil when the end of the agent is not known.
func Run(ctx context.Context, ex sandbox.Executor, r Runtime, in Invocation, emit func(Event)) (wire.Exit, error) {
	c, err := r.Command(in)
	if err != nil {
		return wire.Exit{}, fmt.Errorf("prepare runtime %s: %w", r.Name(), err)
	}
	p := r.Parser(emit)
	defer p.Close()
	req := wire.ExecRequest{
		ID:   in.RunID + "-" + strconv.Itoa(in.Iteration),
		Argv: c.Argv, Cwd: c.Cwd, Env: c.Env, Run: c.Run,
		DeadlineMS: max(time.Until(in.Deadline).Milliseconds(), 1),
	}
	exit, err := ex.Run(ctx, req, wire.Streams{Stdout: p.Stdout(), Stderr: p.Stderr()})
	if err != nil {
		return exit, fmt.Errorf("run agent %s: %w", in.Agent, err)
	}
	return exit, nil
}

// runVars are the variables that describe the run to an agent. Each is also
// given under the name older agents read, where there is one.
func runVars(in Invocation) (run map[string]string, env []string) {
	run = map[string]string{
		"AGENTSH_AGENT":      in.Agent,
		"AGENTSH_AGENT_FILE": in.Definition,
		"AGENTSH_DEADLINE":   in.Deadline.UTC().Format(time.RFC3339),
		"AGENTSH_RUN_ID":     in.RunID,
		"AGENTSH_ITERATION":  strconv.Itoa(in.Iteration),
		"AGENTSH_OUTPUT_DIR": layout.Output,
	}
	if in.Feedback.File != "" {
		run["AGENTSH_FEEDBACK_FILE"] = in.Feedback.File
	}
	for _, name := range []string{"DEADLINE", "RUN_ID", "ITERATION", "OUTPUT_DIR"} {
		env = append(env, "FULLSEND_"+name+"="+run["AGENTSH_"+name])
	}
	if in.Trace != "" {
		env = append(env, "TRACEPARENT="+in.Trace)
	}
	return run, env
}
