package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// maxCall limits one call, in bytes. Agent programs send far less.
const maxCall = 64 << 20

// Events of Claude Code. See https://code.claude.com/docs/en/hooks.
const (
	eventBefore = "PreToolUse"
	eventAfter  = "PostToolUse"
)

// call is the report of an agent program about one use of a tool.
type call struct {
	Event    string `json:"hook_event_name"`
	Tool     string `json:"tool_name"`
	Input    any    `json:"tool_input"`
	Response any    `json:"tool_response"`
}

// readCall reads exactly one call.
func readCall(in io.Reader) (call, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxCall+1))
	if err != nil {
		return call{}, fmt.Errorf("read the call: %w", err)
	}
	if len(data) > maxCall {
		return call{}, fmt.Errorf("the call has more than %d bytes", maxCall)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var c call
	if err := d.Decode(&c); err != nil {
		return call{}, fmt.Errorf("read the call: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return call{}, errors.New("read the call: more than one value")
	}
	return c, nil
}

// check refuses a call of another event and a call of an unknown tool, because
// the arguments of such a tool are unknown too.
func (c call) check(after bool) error {
	event := eventBefore
	if after {
		event = eventAfter
	}
	if c.Event != event {
		return fmt.Errorf("the event is %.60q, this hook is for %s", c.Event, event)
	}
	if !knownTool(c.Tool) {
		return fmt.Errorf("the tool %.60q is not known", c.Tool)
	}
	if _, ok := c.Input.(map[string]any); !ok {
		return fmt.Errorf("the input of %s is no object", c.Tool)
	}
	return nil
}

// tools are the tools of Claude Code; true: the tool runs a command. Tools of
// MCP servers are named mcp__SERVER__TOOL.
var tools = map[string]bool{
	"Bash": true, "PowerShell": true, "Monitor": true, "REPL": true,
	"Agent": false, "AskUserQuestion": false, "BashOutput": false, "Brief": false, "Config": false, "CronCreate": false,
	"CronDelete": false, "CronList": false,
	"Edit": false, "EnterPlanMode": false, "EnterWorktree": false, "ExitPlanMode": false, "ExitWorktree": false, "Glob": false,
	"Grep": false, "KillBash": false,
	"KillShell": false, "LS": false, "LSP": false, "ListMcpResourcesTool": false, "MultiEdit": false, "NotebookEdit": false,
	"NotebookRead": false, "Read": false,
	"ReadMcpResourceTool": false, "SendMessage": false, "SendUserFile": false, "SendUserMessage": false, "Skill": false,
	"SlashCommand": false, "Sleep": false,
	"StructuredOutput": false, "SubscribeMcpResourceTool": false, "Task": false, "TaskCreate": false, "TaskGet": false, "TaskList": false,
	"TaskOutput": false,
	"TaskStop":   false, "TaskUpdate": false, "TeamCreate": false, "TeamDelete": false, "TodoRead": false, "TodoWrite": false,
	"ToolSearch": false, "WaitForMcpServers": false,
	"WebFetch": false, "WebSearch": false, "Workflow": false, "Write": false,
}

const serverTool = "mcp__"

func knownTool(name string) bool {
	_, ok := tools[name]
	return ok || strings.HasPrefix(name, serverTool) && len(name) > len(serverTool) && len(name) <= 256 && strings.Trim(name, toolChars) == ""
}

const toolChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.: "

// texts calls each for every string of a value, keys included, in a stable
// order. name is the key above the string.
func texts(v any, name string, each func(name, text string)) {
	switch v := v.(type) {
	case string:
		each(name, v)
	case []any:
		for _, x := range v {
			texts(x, name, each)
		}
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			each("", k)
			texts(v[k], k, each)
		}
	}
}

// replaced returns a value of the same shape with other strings; changed
// reports whether one differs. It removes the name of a file that holds a long
// answer, because the agent program would show that file's content.
func replaced(v any, with func(string) string) (out any, changed bool) {
	switch v := v.(type) {
	case string:
		s := with(v)
		return s, s != v
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			y, c := replaced(x, with)
			list[i], changed = y, changed || c
		}
		return list, changed
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			y, c := replaced(x, with)
			m[k], changed = y, changed || c
		}
		if changed {
			delete(m, "persistedOutputPath")
			delete(m, "persistedOutputSize")
		}
		return m, changed
	}
	return v, false
}
