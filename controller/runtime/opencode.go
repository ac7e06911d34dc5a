package runtime

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"agentsh/internal/layout"
)

// opencode is the adapter of OpenCode without a terminal. Variables switch off
// the repository's configuration. The configuration of the run is a variable,
// too.
type opencode struct{}

func init() { register(opencode{}) }

func (opencode) Name() string { return "opencode" }

func (opencode) Traits() Traits {
	return Traits{Program: "opencode", Model: true, Hooks: true, Servers: true, Ends: true}
}

func (o opencode) Check(in Invocation) error {
	if in.Model != "" && !strings.Contains(in.Model, "/") {
		return errors.New("the runtime opencode needs a model with its provider: PROVIDER/MODEL")
	}
	config, err := o.config(in)
	if err == nil {
		err = fitsArgument("the agent definition", config)
	}
	if err == nil {
		err = in.checkArgv()
	}
	return err
}

func (opencode) Hidden(in Invocation) []string { return in.shadowed() }

func (opencode) Files(in Invocation) ([]File, error) {
	files := []File{in.skillsLink(layout.Home)}
	if len(in.Hooks) == 0 {
		return files, nil
	}
	before, after, err := in.hookArgv()
	if err != nil {
		return nil, err
	}
	script, err := opencodePlugin(before, after)
	if err != nil {
		return nil, err
	}
	return append(files, File{Dest: opencodePluginFile, Data: script, Mode: 0o644}), nil
}

// opencodePluginFile is the plugin that calls the hooks.
const opencodePluginFile = layout.ConfigDir + "/opencode/hooks.js"

//go:embed opencode_hooks.js
var opencodeHooks string

// opencodePlugin is the plugin with the commands of the hooks; nil: none.
func opencodePlugin(before, after []string) ([]byte, error) {
	commands, err := json.Marshal(map[string][]string{"before": before, "after": after})
	if err != nil {
		return nil, fmt.Errorf("plugin of opencode: %w", err)
	}
	return []byte("const commands = " + string(commands) + ";\n" + opencodeHooks), nil
}

// opencodeState are the directories of OpenCode below its home.
var opencodeState = []string{".config/opencode", ".local/share/opencode", ".local/state/opencode", ".cache/opencode", ".opencode"}

func (opencode) State(in Invocation) []string {
	var dirs []string
	for _, d := range opencodeState {
		dirs = append(dirs, path.Join(layout.Home, d))
	}
	return dirs
}

func (opencode) Transcripts(in Invocation) []string {
	data := path.Join(layout.Home, ".local/share/opencode")
	return []string{path.Join(data, "log"), path.Join(data, "opencode.db"), path.Join(data, "opencode.db-wal")}
}

// rules are the AGENTS.md of the repository: at its top, and in the directories
// down to the one in which the program starts.
func (in Invocation) rules() []string {
	var out []string
	for dir := in.Start(); strings.HasPrefix(dir, in.RepoDir+"/"); dir = path.Dir(dir) {
		out = append([]string{path.Join(dir, "AGENTS.md")}, out...)
	}
	return append([]string{path.Join(in.RepoDir, "AGENTS.md")}, out...)
}

// config is the configuration of the run. It names the repository's AGENTS.md
// by its path, because OpenCode does not look for files of a project.
func (opencode) config(in Invocation) (string, error) {
	text, err := in.instructions()
	if err != nil {
		return "", err
	}
	// OpenCode replaces {env:NAME} and {file:NAME} in its configuration.
	if strings.Contains(text, "{env:") || strings.Contains(text, "{file:") {
		return "", errors.New("the agent definition holds {env: or {file:, which the runtime opencode would replace")
	}
	config := map[string]any{
		"agent":        map[string]any{in.Agent: map[string]any{"mode": "primary", "prompt": text}, "title": map[string]any{"disable": true}},
		"autoupdate":   false,
		"formatter":    false,
		"instructions": in.rules(),
		"lsp":          false,
		"permission":   "allow", // nobody answers, and the run has its own sandbox
		"share":        "disabled",
		"snapshot":     false,
	}
	if len(in.Hooks) > 0 {
		config["plugin"] = []string{"file://" + opencodePluginFile}
	}
	if len(in.Servers) > 0 {
		servers := map[string]any{}
		for _, s := range in.Servers {
			servers[s.Name] = map[string]any{"type": "local", "command": s.Argv, "enabled": true, "timeout": 60000}
		}
		config["mcp"] = servers
	}
	if in.Model != "" {
		config["model"], config["small_model"] = in.Model, in.Model
	}
	b, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("configuration of opencode: %w", err)
	}
	return string(b), nil
}

// opencodeVars switch off the configuration of a repository, code that is
// loaded at startup, and downloads that nobody requested.
var opencodeVars = []string{
	"OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_DISABLE_CLAUDE_CODE=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
	"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_SHARE=1",
	"OPENCODE_DISABLE_TERMINAL_TITLE=1",
}

func (o opencode) Command(in Invocation) (Command, error) {
	config, err := o.config(in)
	if err != nil {
		return Command{}, err
	}
	vars := append([]string{
		"OPENCODE_CONFIG_CONTENT=" + config, "XDG_CONFIG_HOME=" + path.Join(layout.Home, ".config"), "XDG_DATA_HOME=" + path.Join(layout.Home,
			".local/share"),
		"XDG_STATE_HOME=" + path.Join(layout.Home, ".local/state"), "XDG_CACHE_HOME=" + path.Join(layout.Home, ".cache"),
	}, opencodeVars...)
	if len(in.Hooks) == 0 {
		vars = append(vars, "OPENCODE_PURE=1") // no plugins
	}
	argv := append(in.program(o.Traits()), "run", "--format", "json", "--agent", in.Agent)
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	run, env := runVars(in)
	return Command{Argv: withEnv(vars, append(argv, "--", Task(in))), Cwd: in.Start(), Env: env, Run: run}, nil
}

// opencodeRecord is one line of "opencode run --format json".
type opencodeRecord struct {
	Type  string       `json:"type"`
	Part  opencodePart `json:"part"`
	Error *struct {
		Name string `json:"name"`
		Data struct {
			Message string `json:"message"`
		} `json:"data"`
	} `json:"error"`
}

type opencodePart struct {
	Text   string  `json:"text"`
	Tool   string  `json:"tool"`
	CallID string  `json:"callID"`
	Reason string  `json:"reason"` // step_finish
	Cost   float64 `json:"cost"`   // US dollars
	State  struct {
		Status   string          `json:"status"`
		Input    json.RawMessage `json:"input"`
		Output   string          `json:"output"`
		Error    string          `json:"error"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
	} `json:"state"`
	Tokens struct {
		Input     int64 `json:"input"`
		Output    int64 `json:"output"`
		Reasoning int64 `json:"reasoning"`
		Cache     struct {
			Read  int64 `json:"read"`
			Write int64 `json:"write"`
		} `json:"cache"`
	} `json:"tokens"`
}

func (opencode) Parser(emit func(Event)) Parser {
	p := &opencodeParser{emit: emit}
	return newRecordParser(emit, p.read, func() {})
}

// opencodeParser parses the records of one run.
type opencodeParser struct {
	emit func(Event)
	last string // text of the model
}

func (p *opencodeParser) read(object []byte) bool {
	var r opencodeRecord
	if !decode(object, &r) {
		return false
	}
	switch r.Type {
	case "step_start", "reasoning":
	case "text":
		p.last = clean(r.Part.Text, limitText)
		p.emit(Event{Kind: EventSaid, Text: p.last})
	case "tool_use":
		p.tool(r.Part)
	case "step_finish":
		p.step(r.Part)
	case "error":
		text := "opencode reports an error"
		if r.Error != nil {
			text = clean(joined(r.Error.Name, r.Error.Data.Message), limitAnswer)
		}
		p.emit(Event{Kind: EventError, Stream: "stdout", Text: text})
		p.emit(Event{Kind: EventResult, Text: text, Failed: true})
	default:
		return false
	}
	return true
}

// tool reports a call that ended. OpenCode does not report the start of a call.
func (p *opencodeParser) tool(part opencodePart) {
	tool, id, s := clean(part.Tool, maxName), clean(part.CallID, maxName), part.State
	p.emit(
		Event{
			Kind: EventToolCall,
			Tool: tool,
			Call: id,
			Text: short(s.Input, "command", "filePath", "patchText", "pattern", "path", "url", "prompt", "name"),
		},
	)
	failed, text := s.Status == "error" || tool == "invalid", joined(s.Output, s.Error)
	if s.Metadata.Exit != nil && *s.Metadata.Exit != 0 {
		failed, text = true, joined(strings.TrimRight(text, "\n"), fmt.Sprintf("exit status %d", *s.Metadata.Exit))
	}
	p.emit(Event{Kind: EventToolResult, Tool: tool, Call: id, Text: clean(text, limitAnswer), Failed: failed})
}

// step reports the usage of one answer of the model. After the reason "tool-
// calls" another answer follows; any other reason ends the run.
func (p *opencodeParser) step(part opencodePart) {
	t := part.Tokens
	p.emit(Event{Kind: EventUsage, Usage: &Usage{
		Turns: 1, Input: tokens(t.Input), Output: tokens(t.Output) + tokens(t.Reasoning), CacheRead: tokens(t.Cache.Read),
		CacheWrite: tokens(t.Cache.Write),
		CostUSD:    max(part.Cost, 0),
	}})
	switch part.Reason {
	case "tool-calls":
	case "stop":
		p.emit(Event{Kind: EventResult, Text: p.last})
	default:
		p.emit(Event{Kind: EventResult, Text: "the model stopped: " + clean(part.Reason, maxName), Failed: true})
	}
}
