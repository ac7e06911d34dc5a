package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"agentsh/internal/layout"
)

func init() { register(claude{}) }

// claude is the adapter of Claude Code, https://code.claude.com/docs/en/cli-
// reference. Its treatment of flags, settings and agent names was measured with
// version 2.1.197. test/agents repeats the measurements with that version.
type claude struct{}

func (claude) Name() string { return "claude" }

func (claude) Traits() Traits {
	return Traits{Program: "claude", Bridge: true, Model: true, Effort: true, Plugins: true, Hooks: true, Servers: true, Ends: true}
}

func (claude) Check(in Invocation) error {
	if err := checkClaudeFront(in); err != nil {
		return err
	}
	if strings.HasPrefix(in.Model, "-") {
		return fmt.Errorf("model %q is an option", in.Model)
	}
	return in.checkArgv()
}

// unreadKeys are the keys of a definition's front matter that Claude Code
// ignores in the agents of a plugin.
var unreadKeys = []string{"hooks", "mcpServers", "permissionMode"}

// checkClaudeFront rejects front matter that would have no effect. The name in
// the front matter is the agent's, whatever the name of the file is.
func checkClaudeFront(in Invocation) error {
	front, found := strings.CutPrefix(strings.ReplaceAll(strings.TrimPrefix(in.Text, "\ufeff"), "\r\n", "\n"), "---\n")
	if !found {
		return nil
	}
	for line := range strings.Lines(front) {
		line = strings.TrimRight(line, "\n")
		if line == "---" {
			break
		}
		key, value, _ := strings.Cut(line, ":")
		key = strings.Trim(strings.TrimRight(key, " \t"), `"'`) // YAML takes these spellings too
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		switch {
		case slices.Contains(unreadKeys, key):
			return fmt.Errorf(
				"the agent definition sets %s, which nothing acts on: hooks, servers and permissions are those of the harness and its policy",
				key,
			)
		case key == "name" && value != in.Agent:
			return fmt.Errorf("the agent definition says name: %.60s, and its file is called %s.md", value, in.Agent)
		}
	}
	return nil
}

// claudePlugin is the plugin that contains the agent definition. An agent of a
// plugin is called NAME:AGENT, and no file of a repository can define that
// name. An agent without a plugin would be replaced by one of the same name in
// a repository's .claude/agents.
const claudePlugin = "operator"

// claudeSettings is the file with the settings of a run.
func claudeSettings(Invocation) string { return "/sandbox/workspace/.claude/settings.json" }

// Files are the settings of the run, empty user settings, and the manifest that
// makes the configuration directory a plugin with one agent, see
// [claudePlugin].
func (claude) Files(in Invocation) ([]File, error) {
	settings, err := claudeSettingsOf(in)
	if err != nil {
		return nil, err
	}
	manifest, err := claudeManifest(in)
	if err != nil {
		return nil, err
	}
	files := []File{
		{Dest: claudeSettings(in), Data: settings, Mode: 0o644},
		{Dest: path.Join(layout.ConfigDir, "settings.json"), Data: []byte("{}\n"), Mode: 0o644},
		{Dest: path.Join(layout.ConfigDir, ".claude-plugin", "plugin.json"), Data: manifest, Mode: 0o644},
	}
	if len(in.Servers) > 0 {
		servers := map[string]any{}
		for _, s := range in.Servers {
			servers[s.Name] = map[string]any{"type": "stdio", "command": s.Argv[0], "args": s.Argv[1:]}
		}
		data, err := json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
		if err != nil {
			return nil, err
		}
		files = append(files, File{Dest: claudeServers, Data: append(data, '\n'), Mode: 0o644})
	}
	return files, nil
}

// claudeServers is the file with the MCP servers of a run.
const claudeServers = layout.RuntimeDir + "/servers.json"

// claudeManifest makes a directory a plugin with one agent.
func claudeManifest(in Invocation) ([]byte, error) {
	return json.Marshal(map[string]any{
		"name": claudePlugin, "version": "1.0.0", "description": "The agent of this run.", "agents": []string{"./agents/" + in.Agent + ".md"},
	})
}

// hookGroup is one entry of hooks in settings.
type hookGroup struct {
	Matcher string     `json:"matcher"`
	Hooks   []hookCall `json:"hooks"`
}

type hookCall struct {
	Type    string `json:"type"`
	Command string `json:"command"`
}

// claudeSettingsOf makes the settings of a run with its hooks. A repository's
// settings could switch all hooks off. The settings passed by a flag have
// precedence, but only for the keys that they set.
func claudeSettingsOf(in Invocation) ([]byte, error) {
	hooks := map[string][]hookGroup{}
	for _, h := range in.Hooks {
		if len(h.Argv) == 0 {
			return nil, errors.New("a hook without a program")
		}
		events := []string{"PreToolUse"}
		if h.After {
			events = []string{"PostToolUse", "PostToolUseFailure"}
		}
		matcher := h.Tools
		if matcher == "" {
			matcher = "*"
		}
		group := hookGroup{Matcher: matcher, Hooks: []hookCall{{Type: "command", Command: shellWords(h.Argv) + hookElse}}}
		for _, event := range events {
			hooks[event] = append(hooks[event], group)
		}
	}
	settings := map[string]any{"disableAllHooks": false, "hooks": hooks}
	if len(in.Servers) > 0 { // otherwise the first calls of their tools may come before the servers are there
		settings["env"] = claudeWaits
	}
	data, err := json.MarshalIndent(settings, "", "  ")
	return append(data, '\n'), err
}

// claudeWaits has the program wait a minute for its servers. It waits 5 seconds of its own, or none, and begins without their tools.
var claudeWaits = map[string]string{"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "60000", "MCP_TIMEOUT": "60000"}

// hookElse turns every failure of a hook into a denial. The program would
// otherwise allow the call after any other status, such as that of a hook that
// was killed or could not be started.
const hookElse = " || exit 2"

// shellWords quotes arguments for sh.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// Command runs one prompt without a terminal. The policy of the sandbox limits
// the agent, so the program does not ask for permission. MCP servers of a
// repository's .mcp.json are not started.
func (c claude) Command(in Invocation) (Command, error) {
	argv := append(
		in.program(c.Traits()),
		"-p",
		"--agent",
		claudePlugin+":"+in.Agent,
		"--plugin-dir",
		layout.ConfigDir,
		"--settings",
		claudeSettings(in),
		"--debug-file",
		path.Join(layout.ConfigDir, "debug", "claude.log"),
		"--output-format",
		"stream-json",
		"--verbose",
		"--dangerously-skip-permissions",
		"--strict-mcp-config",
	)
	if len(in.Servers) > 0 {
		argv = append(argv, "--mcp-config", claudeServers)
	}
	for _, dir := range in.Plugins {
		argv = append(argv, "--plugin-dir", dir)
	}
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	if in.Effort != "" {
		argv = append(argv, "--effort", in.Effort)
	}
	run, env := runVars(in)
	env = append(env,
		"CLAUDE_CONFIG_DIR="+layout.ConfigDir,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", // telemetry, updates, reports
		"DISABLE_AUTOUPDATER=1",
		"IS_SANDBOX=1", // required to skip permissions as root of a user namespace
	)
	return Command{Argv: append(argv, "--", Task(in)), Cwd: in.Start(), Env: env, Run: run}, nil
}

// State lists the files that the program writes in its configuration directory.
func (claude) State(in Invocation) []string {
	var out []string
	for _, name := range claudeState {
		out = append(out, path.Join(layout.ConfigDir, name))
	}
	return out
}

// claudeState are the files that the program writes in its configuration directory.
var claudeState = []string{
	".claude.json", ".last-cleanup", "projects", "sessions", "session-env", "shell-snapshots", "backups", "todos", "tasks", "plans",
	"file-history", "statsig", "cache", "debug",
}

// Hidden lists the settings of the repository and its skills with the names of
// delivered ones. Settings could start programs and switch others off. The
// program would use the delivered skill, but show the model the description of
// the other.
func (claude) Hidden(in Invocation) []string {
	hidden := []string{".claude/settings.json", ".claude/settings.local.json"}
	for _, name := range in.Skills {
		hidden = append(hidden, ".claude/skills/"+name, ".claude/commands/"+name+".md")
	}
	return hidden
}

// Transcripts are the conversations, with one JSON line for each message, and
// the program's own log.
func (claude) Transcripts(in Invocation) []string {
	return []string{path.Join(layout.ConfigDir, "projects"), path.Join(layout.ConfigDir, "debug")}
}
