// Package runtime starts agent programs in a sandbox. Each [Runtime] is the
// adapter of one program: it makes the command line and parses the output into
// [Event] values, which are the same for all programs.
package runtime

import (
	"cmp"
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

// Runtime adapts one agent program. It stores no state of a run.
type Runtime interface {
	// Name is the value of runtime in a harness.
	Name() string
	// Traits describe the features of the program.
	Traits() Traits
	// Check reports what is missing in the invocation. It is called before a
	// sandbox exists.
	Check(in Invocation) error
	// Files configure the program: settings, definitions in its own format, and its
	// hooks. They are the same for every iteration.
	Files(in Invocation) ([]File, error)
	// Command is the command to run in the sandbox for one iteration.
	Command(in Invocation) (Command, error)
	// Parser parses the program's output and calls emit for each event, in order.
	Parser(emit func(Event)) Parser
	// State lists the files and directories of the program's own state, as absolute
	// paths in the sandbox. They are removed before the next iteration starts.
	State(in Invocation) []string
	// Transcripts lists the files and directories of the program's own logs, as
	// absolute paths in the sandbox. They are extracted after each iteration. A
	// missing one is no error.
	Transcripts(in Invocation) []string
}

// Hider is a [Runtime] whose program would read settings from the repository
// that only the harness may set.
type Hider interface {
	// Hidden lists the files and directories with such settings, relative to the
	// repository. They are not copied into the sandbox, and the agent cannot create
	// them.
	Hidden(in Invocation) []string
}

// Traits are the features of a program.
type Traits struct {
	Program string // started if the harness sets no command; empty: the harness must set one
	Bridge  bool   // reads CLAUDE.md and not AGENTS.md
	Model   bool   // has an option for the model
	Effort  bool   // has an option for the reasoning effort
	Plugins bool   // loads plugins
	Hooks   bool   // calls hooks around its tools
	Servers bool   // starts MCP servers
	Ends    bool   // reports its end by an [EventResult]; without one it failed
}

// File is a file of the sandbox.
type File struct {
	Dest   string // absolute
	Data   []byte
	Mode   fs.FileMode // permission bits
	Target string      // if not empty, a symbolic link: relative, within the sandbox
}

// Hook is a program that checks a tool call before or after it runs.
type Hook struct {
	After bool     // runs after the call; otherwise before
	Tools string   // names of tools, a|b; empty: all
	Argv  []string // reads the call from stdin; exit status 2 denies the call
}

// Server is an MCP server on standard input and output.
type Server struct {
	Name string
	Argv []string
}

// Parser receives the output of a program as it is written. Its methods may be
// called by two goroutines, one for each stream.
type Parser interface {
	Stdout() io.Writer
	Stderr() io.Writer
	// Close emits the rest of an unfinished last line.
	Close()
}

// Invocation describes one iteration. Paths are paths in the sandbox.
type Invocation struct {
	Agent      string   // name
	Definition string   // file of the agent definition
	Text       string   // content of the definition
	Argv       []string // program and first arguments; empty: [Traits.Program]
	Model      string
	Effort     string
	Skills     []string // names of directories below ConfigDir/skills
	Directories
	Feedback Feedback // of the validator; empty in the first iteration
	Started
	RunID     string
	Iteration int       // from 1
	Deadline  time.Time // of this iteration
	Vars      []string  // TRACEPARENT and other variables of the run, NAME=value
}

// Started are programs that the agent's program starts by itself.
type Started struct {
	Plugins []string // directories below ConfigDir
	Hooks   []Hook
	Servers []Server // MCP servers
}

// Directories are those of the repository that the agent works on.
type Directories struct {
	RepoDir string // its top
	Dir     string // in which the program starts; empty: RepoDir
}

// Feedback is the validator's output about the previous iteration.
type Feedback struct {
	File string // in the sandbox; empty: there is none
	Text string // content of the file
}

// Start is the directory in which the program starts.
func (d Directories) Start() string { return cmp.Or(d.Dir, d.RepoDir) }

// program is the program with its first arguments.
func (in Invocation) program(t Traits) []string {
	if len(in.Argv) > 0 {
		return slices.Clone(in.Argv)
	}
	return []string{t.Program}
}

// checkArgv rejects strings that cannot be arguments.
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

// Optional reports whether the program works without a variable of Env. Such a
// variable only describes the run.
func (c Command) Optional(name string) bool {
	return name == "TRACEPARENT" || strings.HasPrefix(name, "FULLSEND_")
}

// Kinds of [Event].
const (
	EventLine       = "line"        // a line of output of no other kind
	EventSaid       = "said"        // text of the model
	EventToolCall   = "tool_call"   // the model calls a tool
	EventToolResult = "tool_result" // the result of a tool call
	EventUsage      = "usage"       // tokens used since the last usage event
	EventUsing      = "using"       // tokens of one answer of the model; the next usage event has them again
	EventError      = "error"       // an error that the program reports
	EventResult     = "result"      // the end of the program, as it reports it
)

// Event is one output of an agent. Its texts are clean, see [Clean].
type Event struct {
	Kind   string `json:"kind"`
	Stream string `json:"stream,omitempty"` // stdout or stderr
	Text   string `json:"text"`             // of a tool call: its input, shortened
	Tool   string `json:"tool,omitempty"`   // name of the tool
	Call   string `json:"call,omitempty"`   // id of the call; the same in a call and its result
	Failed bool   `json:"failed,omitempty"` // of a tool result and of the result
	Usage  *Usage `json:"usage,omitempty"`
}

// Usage is the model usage of a program or run.
type Usage struct {
	Model      string  `json:"model,omitempty"`
	Turns      int     `json:"turns"`
	Input      int64   `json:"input_tokens"`
	Output     int64   `json:"output_tokens"`
	CacheRead  int64   `json:"cache_read_tokens"`
	CacheWrite int64   `json:"cache_write_tokens"`
	CostUSD    float64 `json:"cost_usd"` // as the program reports it; 0: not reported
}

// maxCost is the highest cost of a run, in US dollars, that is counted. Higher
// and negative costs that a program reports are ignored, so that the sum stays
// a number.
const maxCost = 1e9

// maxCount is the highest number of a count. The sum of the four kinds of tokens stays a number.
const maxCount = 1 << 60

// Add adds v to u. The model becomes that of v, if v names one. No count becomes smaller, whatever a
// program has reported.
func (u *Usage) Add(v Usage) {
	if v.Model != "" {
		u.Model = v.Model
	}
	add := func(to *int64, n int64) { *to = min(*to, maxCount) + min(max(n, 0), maxCount-min(*to, maxCount)) }
	turns := int64(u.Turns)
	add(&turns, int64(v.Turns))
	u.Turns = int(turns)
	add(&u.Input, v.Input)
	add(&u.Output, v.Output)
	add(&u.CacheRead, v.CacheRead)
	add(&u.CacheWrite, v.CacheWrite)
	if v.CostUSD > 0 && v.CostUSD < maxCost {
		u.CostUSD += v.CostUSD
	}
}

// Without is u less v, which is a part of it. Nothing becomes negative.
func (u Usage) Without(v Usage) Usage {
	less := func(a, b int64) int64 { return max(a-b, 0) }
	u.Turns = max(u.Turns-v.Turns, 0)
	u.Input, u.Output = less(u.Input, v.Input), less(u.Output, v.Output)
	u.CacheRead, u.CacheWrite = less(u.CacheRead, v.CacheRead), less(u.CacheWrite, v.CacheWrite)
	u.CostUSD = max(u.CostUSD-v.CostUSD, 0)
	return u
}

// Tokens is the number of all tokens.
func (u Usage) Tokens() int64 { return u.Input + u.Output + u.CacheRead + u.CacheWrite }

// registered are the runtimes that a harness can select.
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

// Run runs one iteration in a sandbox and waits for its end. An error means
// that it is unknown how the agent ended.
func Run(ctx context.Context, ex sandbox.Executor, r Runtime, in Invocation, emit func(Event)) (wire.Exit, error) {
	c, err := r.Command(in)
	if err != nil {
		return wire.Exit{}, fmt.Errorf("prepare runtime %s: %w", r.Name(), err)
	}
	return start(ctx, ex, in, c, r.Parser(emit))
}

// start runs the command of one iteration.
func start(ctx context.Context, ex sandbox.Executor, in Invocation, c Command, p Parser) (wire.Exit, error) {
	defer p.Close()
	req := wire.ExecRequest{
		ID:   in.RunID + "-" + strconv.Itoa(in.Iteration),
		Argv: c.Argv, Cwd: c.Cwd, Env: c.Env, Run: c.Run,
		DeadlineMS: max(time.Until(in.Deadline).Milliseconds(), 1),
		Reasons:    true, // the model reads them in what its tools answer
	}
	exit, err := ex.Run(ctx, req, wire.Streams{Stdout: p.Stdout(), Stderr: p.Stderr()})
	if err != nil {
		return exit, fmt.Errorf("run agent %s: %w", in.Agent, err)
	}
	return exit, nil
}

// runVars are the variables that describe the run to an agent. Some are also
// set under the name that older agents read.
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
	return run, append(env, in.Vars...)
}
