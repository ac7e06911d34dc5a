package runtime

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"agentsh/internal/layout"
)

// codex is the adapter of OpenAI's Codex CLI, started as "codex exec". It is
// configured by its arguments alone: it reads no configuration of the user or
// the repository.
type codex struct{}

func init() { register(codex{}) }

func (codex) Name() string { return "codex" }

func (codex) Traits() Traits {
	return Traits{Program: "codex", Model: true, Effort: true, Hooks: true, Servers: true, Ends: true}
}

func (codex) Check(in Invocation) error {
	text, err := in.instructions()
	if err == nil {
		err = fitsArgument("the agent definition", tomlString(text))
	}
	if err == nil {
		err = in.checkArgv()
	}
	return err
}

func (codex) Hidden(in Invocation) []string { return in.shadowed() }

func (codex) Files(in Invocation) ([]File, error) { return []File{in.skillsLink(layout.Home)}, nil }

// home is the directory of Codex for its configuration, state and logs. Codex
// creates this default directory, but not one that CODEX_HOME names.
func (codex) home() string { return path.Join(layout.Home, ".codex") }

func (c codex) State(in Invocation) []string { return []string{c.home()} }

func (c codex) Transcripts(in Invocation) []string {
	return []string{path.Join(c.home(), "sessions")}
}

// codexSettings apply to every run. A search by the provider would bypass the
// network policy of the sandbox.
var codexSettings = []string{
	`web_search="disabled"`,
	`skills.bundled.enabled=false`,
	`analytics.enabled=false`,
	`check_for_update_on_startup=false`,
}

// codexProvider is OpenAI's API over HTTP. Placeholders are not replaced in
// WebSockets.
var codexProvider = []string{
	`model_provider="agentsh"`,
	`model_providers.agentsh={name="OpenAI", base_url="https://api.openai.com/v1", env_key="OPENAI_API_KEY", wire_api="responses"}`,
}

func (c codex) Command(in Invocation) (Command, error) {
	text, err := in.instructions()
	if err != nil {
		return Command{}, err
	}
	argv := in.program(c.Traits())
	settings := slices.Clone(codexSettings)
	if !mentions(argv, "model_provider") {
		settings = append(settings, codexProvider...)
	}
	settings = append(settings, "developer_instructions="+tomlString(text))
	hooks, err := codexHooks(in)
	if err != nil {
		return Command{}, err
	}
	settings = append(settings, hooks...)
	for _, s := range in.Servers {
		args := make([]string, len(s.Argv)-1)
		for i, a := range s.Argv[1:] {
			args[i] = tomlString(a)
		}
		settings = append(settings, "mcp_servers."+s.Name+"={command="+tomlString(s.Argv[0])+", args=["+strings.Join(args, ", ")+
			"], required=true, startup_timeout_sec=60, tool_timeout_sec=86400}") // it would begin without a server that is late
	}
	if in.Effort != "" {
		settings = append(settings, "model_reasoning_effort="+tomlString(in.Effort))
	}
	argv = append(argv, "exec", "--json", "--color", "never", "--skip-git-repo-check",
		"--dangerously-bypass-approvals-and-sandbox", // nobody answers, and the run has its own sandbox
		"--ignore-user-config", "--ignore-rules", "--disable", "plugins", "--disable", "apps",
		"--disable", "shell_snapshot") // it uses builtins that BASH_ENV of the policy may disable
	if len(hooks) > 0 {
		argv = append(argv, "--dangerously-bypass-hook-trust") // the only hooks are those of these arguments
	}
	for _, s := range settings {
		argv = append(argv, "-c", s)
	}
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	run, env := runVars(in)
	return Command{
		Argv: withEnv([]string{"-u", "CODEX_HOME"}, append(argv, "--", Task(in))),
		Cwd:  in.Start(), Env: env, Run: run,
	}, nil
}

// codexHooks are the settings of the hooks.
func codexHooks(in Invocation) ([]string, error) {
	var out []string
	for _, after := range []bool{false, true} {
		event := "PreToolUse"
		if after {
			event = "PostToolUse"
		}
		commands, err := in.hookCommands(after)
		if err != nil {
			return nil, err
		}
		var groups []string
		for _, c := range commands {
			groups = append(groups, `{hooks=[{type="command", command=`+tomlString(c)+`}]}`)
		}
		if len(groups) > 0 {
			out = append(out, "hooks."+event+"=["+strings.Join(groups, ", ")+"]")
		}
	}
	return out, nil
}

// mentions reports whether one of the arguments contains a word.
func mentions(argv []string, word string) bool {
	return slices.ContainsFunc(argv, func(a string) bool { return strings.Contains(a, word) })
}

// tomlString quotes a text as a basic string of TOML 1.0. That is a JSON string
// except for U+007F.
func tomlString(text string) string {
	return strings.ReplaceAll(jsonString(text), "\x7f", `\u007f`)
}

// codexRecord is one line of "codex exec --json".
type codexRecord struct {
	Type    string     `json:"type"`
	Message string     `json:"message"` // error
	Item    *codexItem `json:"item"`    // item.started, item.updated, item.completed
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"` // turn.failed
	Usage *codexUsage `json:"usage"` // turn.completed
}

// codexUsage is the usage of the whole thread so far.
type codexUsage struct {
	Input      int64 `json:"input_tokens"` // includes cached tokens
	Cached     int64 `json:"cached_input_tokens"`
	CacheWrite int64 `json:"cache_write_input_tokens"`
	Output     int64 `json:"output_tokens"`
}

func (codex) Parser(emit func(Event)) Parser {
	p := &codexParser{emit: emit, open: map[string]bool{}}
	return newRecordParser(emit, p.read, func() {})
}

// codexParser parses the records of one run.
type codexParser struct {
	emit func(Event)
	open map[string]bool // reported calls without a result, by id
	last string          // text of the model
	took codexUsage      // reported so far
}

func (p *codexParser) read(object []byte) bool {
	var r codexRecord
	if !decode(object, &r) {
		return false
	}
	switch r.Type {
	case "thread.started", "turn.started", "item.updated":
	case "item.started", "item.completed":
		if r.Item == nil {
			return false
		}
		p.item(*r.Item, r.Type == "item.completed")
	case "turn.completed":
		if r.Usage != nil {
			p.usage(*r.Usage)
		}
		p.emit(Event{Kind: EventResult, Text: p.last})
	case "turn.failed":
		text := "the turn failed"
		if r.Error != nil && r.Error.Message != "" {
			text = clean(r.Error.Message, limitAnswer)
		}
		p.emit(Event{Kind: EventResult, Text: text, Failed: true})
	case "error":
		kind := EventError
		if strings.HasPrefix(r.Message, "Reconnecting...") {
			kind = EventLine // Codex retries
		}
		p.emit(Event{Kind: kind, Stream: "stdout", Text: clean(r.Message, limitAnswer)})
	default:
		return false
	}
	return true
}

// usage reports the usage of the turn.
func (p *codexParser) usage(u codexUsage) {
	was := p.took
	if u.Input < was.Input || u.Output < was.Output || u.Cached < was.Cached || u.CacheWrite < was.CacheWrite {
		was = codexUsage{}
	}
	p.took = u
	cached := tokens(u.Cached - was.Cached)
	p.emit(Event{Kind: EventUsage, Usage: &Usage{
		Turns: 1, Input: tokens(u.Input - was.Input - cached), Output: tokens(u.Output - was.Output),
		CacheRead: cached, CacheWrite: tokens(u.CacheWrite - was.CacheWrite),
	}})
}

// codexItem is one item of a thread.
type codexItem struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Status  string `json:"status"`
	Text    string `json:"text"`    // agent_message, reasoning
	Message string `json:"message"` // error

	Command  string `json:"command"` // command_execution
	Output   string `json:"aggregated_output"`
	ExitCode *int   `json:"exit_code"`

	Changes []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"changes"` // file_change

	Server string `json:"server"` // mcp_tool_call
	Tool   string `json:"tool"`   // and collab_tool_call
	Query  string `json:"query"`  // web_search
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func (p *codexParser) item(it codexItem, done bool) {
	switch it.Type {
	case "agent_message":
		if done {
			p.last = clean(it.Text, limitText)
			p.emit(Event{Kind: EventSaid, Text: p.last})
		}
		return
	case "error": // a warning: the turn continues
		p.emit(Event{Kind: EventLine, Stream: "stdout", Text: clean(it.Message, limitAnswer)})
		return
	}
	tool, input := it.call()
	if tool == "" {
		return // reasoning, plans
	}
	id := clean(it.ID, maxName)
	if !p.open[id] && (done || len(p.open) < maxOpen) {
		p.open[id] = true
		p.emit(Event{Kind: EventToolCall, Tool: tool, Call: id, Text: input})
	}
	if done {
		delete(p.open, id)
		text, failed := it.answer()
		p.emit(Event{Kind: EventToolResult, Tool: tool, Call: id, Text: text, Failed: failed})
	}
}

// call returns the tool that an item calls, and its input, shortened.
func (it codexItem) call() (tool, input string) {
	switch it.Type {
	case "command_execution":
		return "exec_command", clean(it.Command, limitCall)
	case "file_change":
		var changes []string
		for _, c := range it.Changes {
			changes = append(changes, c.Kind+" "+c.Path)
		}
		return "apply_patch", clean(strings.Join(changes, ", "), limitCall)
	case "mcp_tool_call":
		return clean("mcp__"+it.Server+"__"+it.Tool, maxName), ""
	case "collab_tool_call":
		return clean(it.Tool, maxName), ""
	case "web_search":
		return "web_search", clean(it.Query, limitCall)
	}
	return "", ""
}

// answer returns the result of a call that ended.
func (it codexItem) answer() (text string, failed bool) {
	failed = it.Status == "failed" || it.Status == "declined"
	text = it.Output
	if it.ExitCode != nil && *it.ExitCode != 0 {
		failed = true
		text = joined(strings.TrimRight(text, "\n"), fmt.Sprintf("exit status %d", *it.ExitCode))
	}
	if it.Error != nil {
		failed = true
		text = joined(text, it.Error.Message)
	}
	return clean(text, limitAnswer), failed
}
