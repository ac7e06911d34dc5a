package hook

import (
	"encoding/json"
	"fmt"
	"strings"

	"agentsh/internal/text"
)

// program is how one agent program calls its hooks.
type program struct {
	before string   // event before a call
	after  []string // events after a call
	tools  map[string]bool
	server string // prefix of the tools of MCP servers
	late   bool   // calls no hook after a call that failed: the next call is told what was refused
	open   bool   // further tools exist; they are judged like tools of servers
	answer func(outcome) any
}

// outcome is what the hooks after a call make of the tool's answer.
type outcome struct {
	event   string
	changed bool
	output  any    // with the same shape as the tool's answer
	notes   string // for the agent; empty: none
}

// DefaultProgram is the program of settings that name none.
const DefaultProgram = "claude"

// programs are the agent programs that call hooks. The forms of Codex, Gemini CLI
// and OpenCode were measured with the versions of test/agents.
var programs = map[string]program{
	// https://code.claude.com/docs/en/hooks
	"claude": {
		before: "PreToolUse", after: []string{"PostToolUse", "PostToolUseFailure"}, tools: claudeTools, server: "mcp__", answer: claudeAnswer,
	},
	// https://developers.openai.com/codex/hooks
	"codex": {
		before: "PreToolUse", after: []string{"PostToolUse"}, tools: codexTools, server: "mcp__", late: true, open: true, answer: codexAnswer,
	},
	// https://geminicli.com/docs/hooks/reference
	"gemini": {before: "BeforeTool", after: []string{"AfterTool"}, tools: geminiTools, server: "mcp_", answer: geminiAnswer},
	// The plugin that the controller delivers writes this form.
	"opencode": {before: "PreToolUse", after: []string{"PostToolUse"}, tools: opencodeTools, open: true, answer: opencodeAnswer},
}

// lookup finds the program that settings name.
func (s Settings) lookup() (program, error) {
	name := s.Program
	if name == "" {
		name = DefaultProgram
	}
	p, ok := programs[name]
	if !ok {
		return program{}, fmt.Errorf("settings for the program %.40q, which calls no hooks", name)
	}
	return p, nil
}

// knows reports whether a name can be a tool of the program.
func (p program) knows(name string) bool {
	if _, ok := p.tools[name]; ok {
		return true
	}
	return (p.open || p.fromServer(name)) && name != "" && len(name) <= 256 && strings.Trim(name, toolChars) == ""
}

// fromServer reports whether a tool is one of an MCP server, or not known.
func (p program) fromServer(name string) bool {
	if _, ok := p.tools[name]; ok {
		return false
	}
	return p.open || strings.HasPrefix(name, p.server) && len(name) > len(p.server)
}

// runs reports whether a tool runs commands.
func (p program) runs(name string) bool { return p.tools[name] || p.fromServer(name) }

// fetches reports whether a tool requests what its arguments name.
func (p program) fetches(name string) bool {
	return p.fromServer(name) || strings.HasPrefix(strings.ToLower(name), "web")
}

const toolChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.: "

// names makes a table of tools. Those before "|" run commands.
func names(list string) map[string]bool {
	out := map[string]bool{}
	commands, others, _ := strings.Cut(list, "|")
	for _, name := range strings.Fields(commands) {
		out[name] = true
	}
	for _, name := range strings.Fields(others) {
		out[name] = false
	}
	return out
}

// shellTools are the tools whose command a new shell reads.
var shellTools = map[string]bool{
	"Bash": true, "Monitor": true, "shell": true, "exec_command": true, "local_shell": true, "run_shell_command": true, "bash": true,
}

var (
	claudeTools = names(`Bash PowerShell Monitor REPL |
		Agent AskUserQuestion BashOutput Brief Config CronCreate CronDelete CronList Edit EnterPlanMode EnterWorktree ExitPlanMode ExitWorktree
		Glob Grep KillBash KillShell LS LSP ListMcpResourcesTool MultiEdit NotebookEdit NotebookRead Read ReadMcpResourceTool SendMessage
		SendUserFile SendUserMessage Skill SlashCommand Sleep StructuredOutput SubscribeMcpResourceTool Task TaskCreate TaskGet TaskList
		TaskOutput TaskStop TaskUpdate TeamCreate TeamDelete TodoRead TodoWrite ToolSearch WaitForMcpServers WebFetch WebSearch Workflow Write`)
	codexTools  = names(`Bash shell exec_command local_shell write_stdin | apply_patch update_plan view_image web_search request_user_input`)
	geminiTools = names(`run_shell_command |
		activate_skill ask_user complete_task enter_plan_mode exit_plan_mode get_internal_docs glob google_web_search grep_search invoke_agent
		list_directory list_mcp_resources read_file read_many_files read_mcp_resource replace save_memory search_file_content
		tracker_add_dependency tracker_create_task tracker_get_task tracker_list_tasks tracker_update_task tracker_visualize update_topic
		web_fetch write_file write_todos`)
	opencodeTools = names(`bash | apply_patch codesearch edit glob grep invalid list lsp multiedit patch plan_exit question read skill task
		todoread todowrite webfetch websearch write`)
)

// claudeAnswer replaces the answer of the tool.
func claudeAnswer(a outcome) any {
	specific := map[string]any{"hookEventName": a.event, "additionalContext": a.notes}
	if a.changed && a.event == "PostToolUse" { // a failure has no answer to replace
		specific["updatedToolOutput"] = a.output
	}
	return map[string]any{"hookSpecificOutput": specific}
}

// codexAnswer gives the answer as the reason of a block, which takes the place of
// what the tool answered.
func codexAnswer(a outcome) any {
	if a.changed {
		return map[string]any{"decision": "block", "reason": noted(a)}
	}
	return map[string]any{"hookSpecificOutput": map[string]any{"hookEventName": a.event, "additionalContext": a.notes}}
}

// geminiAnswer does the same for Gemini CLI, also for an error: the program does not
// show its model what a hook adds to one.
func geminiAnswer(a outcome) any {
	m, _ := a.output.(map[string]any)
	if a.changed || m["error"] != nil {
		if m != nil {
			a.output = m["llmContent"]
		}
		return map[string]any{"decision": "deny", "reason": noted(a)}
	}
	return map[string]any{"hookSpecificOutput": map[string]any{"hookEventName": a.event, "additionalContext": a.notes}}
}

// opencodeAnswer is read by the delivered plugin.
func opencodeAnswer(a outcome) any {
	out := map[string]any{"notes": a.notes}
	if a.changed {
		out["output"] = a.output
	}
	return out
}

// noted is a rewritten answer with its notes as one text.
func noted(a outcome) string { return a.notes + "\n\n" + plain(a.output) }

// plain is the text of an answer.
func plain(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			parts[i] = plain(x)
		}
		return strings.Join(parts, "\n")
	case map[string]any:
		for _, key := range []string{"text", "output"} {
			if s, ok := v[key].(string); ok {
				return s
			}
		}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return text.Visible(err.Error())
	}
	return string(data)
}
