package runtime

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"sort"
	"strings"

	"agentsh/internal/layout"
)

// gemini is the adapter of Google's Gemini CLI without a terminal. Its home is
// in the configuration directory, where it may write only its own state.
// Settings of a repository would override those of the home, so they are not
// copied into the sandbox.
type gemini struct{}

func init() { register(gemini{}) }

func (gemini) Name() string { return "gemini" }

func (gemini) Traits() Traits {
	return Traits{Program: "gemini", Model: true, Hooks: true, Servers: true, Ends: true}
}

func (gemini) Check(in Invocation) error {
	if _, err := in.instructions(); err != nil {
		return err
	}
	return in.checkArgv()
}

// geminiSettings switch off everything of the repository that starts a program,
// and every tool that bypasses the network policy of the sandbox.
var geminiSettings = map[string]any{
	"admin":    map[string]any{"extensions": off, "mcp": off},
	"advanced": map[string]any{"ignoreLocalEnv": true, "autoConfigureMemory": false},
	"context":  map[string]any{"fileName": []string{"AGENTS.md"}},
	"experimental": map[string]any{
		"enableAgents": false, "gemmaModelRouter": map[string]any{"enabled": false, "autoStartServer": false},
	},
	"general":     map[string]any{"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "checkpointing": off},
	"hooksConfig": off,
	"ide":         off,
	"mcp":         map[string]any{"serverCommand": "", "allowed": []string{noServer}},
	"privacy":     map[string]any{"usageStatisticsEnabled": false},
	"security": map[string]any{
		"auth": map[string]any{"selectedType": "gemini-api-key"}, "folderTrust": map[string]any{"enabled": true},
	},
	"telemetry": off,
	"tools": map[string]any{
		"discoveryCommand": "", "callCommand": "", "sandbox": false, // the run has its own sandbox
		"exclude": []string{"google_web_search", "web_fetch"},
	},
}

// geminiHooks are the settings with the hooks of the run.
func geminiHooks(in Invocation) (map[string]any, error) {
	hooks := map[string]any{}
	for event, after := range map[string]bool{"BeforeTool": false, "AfterTool": true} {
		commands, err := in.hookCommands(after)
		if err != nil {
			return nil, err
		}
		var calls []hookCall
		for _, c := range commands {
			calls = append(calls, hookCall{Type: "command", Command: c})
		}
		if len(calls) > 0 {
			hooks[event] = []any{map[string]any{"hooks": calls}}
		}
	}
	all := maps.Clone(geminiSettings)
	if len(in.Servers) > 0 {
		servers := map[string]any{}
		for _, s := range in.Servers {
			servers[s.Name] = map[string]any{"command": s.Argv[0], "args": s.Argv[1:], "trust": true}
		}
		all["mcpServers"] = servers
		all["admin"] = map[string]any{"extensions": off}
		all["mcp"] = map[string]any{"serverCommand": "", "allowed": in.serverNames()}
	}
	if len(hooks) == 0 {
		return all, nil
	}
	all["hooksConfig"], all["hooks"] = map[string]any{"enabled": true}, hooks
	return all, nil
}

var off = map[string]any{"enabled": false}

// noServer is the name of a tool server that does not exist.
const noServer = "none"

// home is the home of Gemini CLI. System settings would have the highest
// precedence, but Gemini CLI reads them only if root owns every directory of
// their path.
func (gemini) home() string { return path.Join(layout.ConfigDir, "gemini") }
func (g gemini) settings() string {
	return path.Join(g.home(), ".gemini/settings.json")
}
func (g gemini) system() string { return path.Join(g.home(), "system.md") }

func (g gemini) Files(in Invocation) ([]File, error) {
	text, err := in.instructions()
	if err != nil {
		return nil, err
	}
	if !strings.Contains(text, "${AgentSkills}") {
		text += "\n\n${AgentSkills}" // Gemini CLI replaces this by the list of skills
	}
	all, err := geminiHooks(in)
	if err != nil {
		return nil, err
	}
	settings, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("settings of gemini: %w", err)
	}
	return []File{
		{Dest: g.settings(), Data: append(settings, '\n'), Mode: 0o644},
		{Dest: g.system(), Data: []byte(text + "\n"), Mode: 0o644},
		in.skillsLink(g.home()),
	}, nil
}

// geminiState are the files that Gemini CLI writes in its home.
var geminiState = []string{
	"history",
	"projects.json",
	"tmp",
	"installation_id",
	"google_accounts.json",
	"state.json",
	"trustedFolders.json",
}

func (g gemini) State(in Invocation) []string {
	var state []string
	for _, name := range geminiState {
		state = append(state, path.Join(g.home(), ".gemini", name))
	}
	return state
}

func (g gemini) Transcripts(in Invocation) []string {
	return []string{path.Join(g.home(), ".gemini/tmp")}
}

// Hidden lists the files that Gemini CLI reads from a repository that it
// trusts. The repository must be trusted: without a terminal, Gemini CLI does
// not start in another one.
func (gemini) Hidden(in Invocation) []string {
	return append(in.shadowed(), ".gemini/settings.json", ".gemini/.env", ".gemini/agents", ".gemini/commands", ".gemini/extensions",
		".gemini/hooks", ".gemini/policies", ".gemini/system.md")
}

func (g gemini) Command(in Invocation) (Command, error) {
	argv := append(in.program(g.Traits()), "--output-format", "stream-json",
		"--approval-mode", "yolo", // nobody answers, and the run has its own sandbox
		"--skip-trust", "--extensions", "none", "--allowed-mcp-server-names", cmp.Or(strings.Join(in.serverNames(), ","), noServer))
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	argv = append(argv, "--prompt", Task(in))
	run, env := runVars(in)
	return Command{
		Argv: withEnv([]string{
			"GEMINI_CLI_HOME=" + g.home(), "GEMINI_CLI_NO_RELAUNCH=true", "GEMINI_SYSTEM_MD=" + g.system(), "NO_COLOR=1",
		}, argv),
		Cwd: in.Start(), Env: env, Run: run,
	}, nil
}

// geminiRecord is one line of the output format stream-json.
type geminiRecord struct {
	Type     string `json:"type"`
	Role     string `json:"role"`    // message
	Content  string `json:"content"` // message
	Severity string `json:"severity"`
	Message  string `json:"message"` // error

	Tool   string          `json:"tool_name"` // tool_use
	ID     string          `json:"tool_id"`   // and tool_result
	Input  json.RawMessage `json:"parameters"`
	Status string          `json:"status"` // tool_result, result
	Output string          `json:"output"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Stats *geminiStats `json:"stats"` // result
}

type geminiStats struct {
	geminiTokens
	Models map[string]geminiTokens `json:"models"`
}

type geminiTokens struct {
	Input  int64 `json:"input"` // without cached tokens
	Output int64 `json:"output_tokens"`
	Cached int64 `json:"cached"`
}

func (gemini) Parser(emit func(Event)) Parser {
	p := &geminiParser{emit: emit, tools: map[string]string{}}
	return newRecordParser(emit, p.read, p.said)
}

// geminiParser parses the records of one run.
type geminiParser struct {
	emit  func(Event)
	say   strings.Builder   // pieces of a message
	last  string            // message of the model
	tools map[string]string // of running calls, by id
}

func (p *geminiParser) read(object []byte) bool {
	var r geminiRecord
	if !decode(object, &r) {
		return false
	}
	if r.Type == "message" {
		if r.Role == "assistant" && p.say.Len() < limitText {
			p.say.WriteString(r.Content)
		}
		return true
	}
	p.said()
	switch r.Type {
	case "init":
	case "tool_use":
		id, tool := clean(r.ID, maxName), clean(r.Tool, maxName)
		if len(p.tools) < maxOpen {
			p.tools[id] = tool
		}
		p.emit(
			Event{
				Kind: EventToolCall,
				Tool: tool,
				Call: id,
				Text: short(r.Input, "command", "file_path", "dir_path", "pattern", "query", "prompt", "name"),
			},
		)
	case "tool_result":
		id, text := clean(r.ID, maxName), r.Output
		if r.Error != nil {
			text = joined(text, r.Error.Message)
		}
		p.emit(
			Event{Kind: EventToolResult, Tool: p.tools[id], Call: id, Text: clean(text, limitAnswer), Failed: r.Status == "error" || r.Error != nil},
		)
		delete(p.tools, id)
	case "error":
		p.emit(Event{Kind: EventError, Stream: "stdout", Text: clean(r.Message, limitAnswer)})
	case "result":
		p.result(r)
	default:
		return false
	}
	return true
}

// said reports a message that is complete.
func (p *geminiParser) said() {
	if p.say.Len() == 0 {
		return
	}
	p.last = clean(p.say.String(), limitText)
	p.say.Reset()
	p.emit(Event{Kind: EventSaid, Text: p.last})
}

func (p *geminiParser) result(r geminiRecord) {
	if r.Stats != nil {
		p.usage(*r.Stats)
	}
	e := Event{Kind: EventResult, Text: p.last}
	if r.Status != "success" {
		e.Failed, e.Text = true, "it ended with the status "+clean(r.Status, maxName)
		if r.Error != nil && r.Error.Message != "" {
			e.Text = clean(r.Error.Message, limitAnswer)
		}
	}
	p.emit(e)
}

// usage reports the usage of each model.
func (p *geminiParser) usage(s geminiStats) {
	if len(s.Models) == 0 {
		s.Models = map[string]geminiTokens{"": s.geminiTokens}
	}
	var models []string
	for m := range s.Models {
		models = append(models, m)
	}
	sort.Strings(models)
	for i, m := range models {
		t := s.Models[m]
		u := &Usage{Model: clean(m, maxName), Input: tokens(t.Input), Output: tokens(t.Output), CacheRead: tokens(t.Cached)}
		if i == 0 {
			u.Turns = 1
		}
		p.emit(Event{Kind: EventUsage, Usage: u})
	}
}
