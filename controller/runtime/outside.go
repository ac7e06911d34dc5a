package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// Outsider is a [Runtime] whose program can work outside of the sandbox, with the tools of
// the sandbox in place of its own.
type Outsider interface {
	Runtime
	// Model says how the program reaches its model.
	Model() Model
	// CheckOutside reports what of the invocation has no meaning outside, besides Check.
	CheckOutside(in Invocation) error
	// Outside is the program for one iteration at a place.
	Outside(in Invocation, p Place) (Outside, error)
}

// Questioner is an [Outsider] whose program is asked for something before it starts.
type Questioner interface {
	// Question are the arguments of the program. Its output is in [Place.Answer].
	Question() []string
}

// Model says how a program reaches its model.
type Model struct {
	Keys  []string // variables with credentials
	Hosts []string // of the API where no variable names another one, as host:port
	Any   bool     // the program may be any: it starts other programs
}

// Place is where a program works outside of the sandbox.
type Place struct {
	Dir   string // its own directory, absolute, as the program sees it
	URL   string // of the tools, over streamable HTTP
	Token string // for them
	// Answer is what the program answered to its [Questioner.Question].
	Answer []byte
}

// Directories and files of [Place.Dir].
const (
	placeHome  = "home"
	placeWork  = "work" // empty; the program starts there
	placeTools = "tools.json"
)

// Home is the home directory of the program.
func (p Place) Home() string { return path.Join(p.Dir, placeHome) }

// Work is the empty directory in which the program starts.
func (p Place) Work() string { return path.Join(p.Dir, placeWork) }

// Outside is a program outside of the sandbox.
type Outside struct {
	Files       []File // in the program's own directory
	Command     Command
	State       []string // as [Runtime.State]
	Transcripts []string // as [Runtime.Transcripts]
}

// ToolServer is the name by which programs know the tools of the sandbox.
const ToolServer = "sandbox"

// toolsFile is the file with the address of the tools, in the form of Claude Code and others.
func (p Place) toolsFile() (File, error) {
	data, err := json.Marshal(map[string]any{"mcpServers": map[string]any{ToolServer: map[string]any{
		"type": "http", "url": p.URL, "headers": map[string]string{"Authorization": "Bearer " + p.Token},
	}}})
	return File{Dest: path.Join(p.Dir, placeTools), Data: append(data, '\n'), Mode: 0o600}, err
}

// Vars are the variables of the run for a command in its sandbox.
func Vars(in Invocation) (run map[string]string, env []string) { return runVars(in) }

// OutsideTask is the prompt for an agent outside of the sandbox.
func OutsideTask(in Invocation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Your work is in a sandbox. You have no shell and no files of your own: the tools of the server %q run commands "+
		"and read and write files there, and every path is a path in the sandbox.\n", ToolServer)
	fmt.Fprintf(&b, "The repository is %s. If it has the files AGENTS.md or CLAUDE.md, read them first: they are its rules.\n", in.RepoDir)
	if len(in.Skills) > 0 {
		b.WriteString("There are instructions for some tasks. Read those that fit your work before you start:\n")
		for _, name := range in.Skills {
			fmt.Fprintf(&b, "- %s\n", path.Join(layout.ConfigDir, "skills", name, "SKILL.md"))
		}
	}
	return b.String() + Task(in)
}

// RunOutside runs one iteration of a program outside and waits for its end, as [Run] does in a
// sandbox. ex runs its command.
func RunOutside(ctx context.Context, ex sandbox.Executor, in Invocation, c Command, p Parser) (wire.Exit, error) {
	return start(ctx, ex, in, c, p)
}

// Model implements [Outsider]. The program may be any: it takes what the harness names.
func (command) Model() Model { return Model{Any: true} }

// CheckOutside implements [Outsider].
func (command) CheckOutside(Invocation) error { return nil }

// Outside implements [Outsider]. The program gets the address of the tools in variables, and in
// a file.
func (command) Outside(in Invocation, p Place) (Outside, error) {
	tools, err := p.toolsFile()
	if err != nil {
		return Outside{}, err
	}
	run, env := runVars(in)
	run["AGENTSH_TOOLS_URL"], run["AGENTSH_TOOLS_TOKEN"], run["AGENTSH_TOOLS_FILE"] = p.URL, p.Token, tools.Dest
	run["AGENTSH_TASK"] = OutsideTask(in)
	return Outside{Files: []File{tools}, Command: Command{Argv: in.Argv, Cwd: p.Work(), Env: env, Run: run}}, nil
}

// Model implements [Outsider].
func (claude) Model() Model {
	return Model{
		Keys:  []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
		Hosts: []string{"api.anthropic.com:443"},
	}
}

// CheckOutside implements [Outsider].
func (claude) CheckOutside(in Invocation) error {
	if len(in.Plugins) > 0 {
		return errors.New("a plugin would run programs outside of the sandbox")
	}
	_, err := outsideDefinition(in.Text)
	return err
}

// Outside implements [Outsider]. The program has no tools but those of the sandbox, and no settings,
// hooks and instructions but those that are written here.
func (c claude) Outside(in Invocation, p Place) (Outside, error) {
	text, err := outsideDefinition(in.Text)
	if err != nil {
		return Outside{}, err
	}
	config := path.Join(p.Dir, "config")
	settings, err := claudeSettingsOf(in)
	if err != nil {
		return Outside{}, err
	}
	manifest, err := claudeManifest(in)
	if err != nil {
		return Outside{}, err
	}
	tools, err := p.toolsFile()
	if err != nil {
		return Outside{}, err
	}
	settingsFile := path.Join(p.Dir, "settings.json")
	argv := append(
		in.program(c.Traits()),
		"-p",
		"--agent", claudePlugin+":"+in.Agent,
		"--plugin-dir", config,
		"--settings", settingsFile,
		"--setting-sources", "",
		"--debug-file", path.Join(config, "debug", "claude.log"),
		"--output-format", "stream-json", "--verbose",
		"--strict-mcp-config", "--mcp-config", tools.Dest,
		"--tools", "",
		"--allowedTools", "mcp__"+ToolServer,
	)
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	if in.Effort != "" {
		argv = append(argv, "--effort", in.Effort)
	}
	run, env := runVars(in)
	env = append(env,
		"CLAUDE_CONFIG_DIR="+config,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1",
		"MCP_TOOL_TIMEOUT=86400000", // exec has a time limit of its own
	)
	for _, name := range slices.Sorted(maps.Keys(claudeWaits)) {
		env = append(env, name+"="+claudeWaits[name])
	}
	out := Outside{
		Files: []File{
			tools,
			{Dest: settingsFile, Data: settings, Mode: 0o644},
			{Dest: path.Join(config, "settings.json"), Data: []byte("{}\n"), Mode: 0o644},
			{Dest: path.Join(config, ".claude-plugin", "plugin.json"), Data: manifest, Mode: 0o644},
			{Dest: path.Join(config, "agents", in.Agent+".md"), Data: []byte(text), Mode: 0o644},
		},
		Command:     Command{Argv: append(argv, "--", OutsideTask(in)), Cwd: p.Work(), Env: env, Run: run},
		Transcripts: []string{path.Join(config, "projects"), path.Join(config, "debug", "claude.log")},
	}
	for _, name := range claudeState {
		out.State = append(out.State, path.Join(config, name))
	}
	return out, nil
}

// sandboxTools are the tools of the sandbox that stand for tools of Claude Code in a definition.
var sandboxTools = map[string][]string{
	"Bash": {"exec", "exec_output", "exec_kill"}, "BashOutput": {"exec_output"}, "KillShell": {"exec_kill"}, "KillBash": {"exec_kill"},
	"Read": {"read", "list"}, "Edit": {"edit", "apply_patch"}, "MultiEdit": {"edit", "apply_patch"}, "Write": {"write"},
	"Glob": {"glob"}, "Grep": {"grep"}, "LS": {"list"},
}

// outsideDefinition is an agent definition with the tools of the sandbox in place of the program's
// own. Tools that the sandbox does not have are left out.
func outsideDefinition(text string) (string, error) {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	front, found := strings.CutPrefix(text, "---\n")
	if !found {
		return text, nil
	}
	var out strings.Builder
	out.WriteString("---\n")
	lines := strings.SplitAfter(front, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\n")
		if line == "---" {
			out.WriteString(strings.Join(lines[i:], ""))
			return out.String(), nil
		}
		key, value, _ := strings.Cut(line, ":")
		if key != "tools" && key != "disallowedTools" {
			out.WriteString(lines[i])
			continue
		}
		names := strings.Split(strings.Trim(strings.TrimSpace(value), "[]"), ",")
		for strings.TrimSpace(value) == "" && i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "- ") {
			i++
			names = append(names, strings.TrimPrefix(strings.TrimSpace(lines[i]), "- "))
		}
		kept, err := outsideTools(key, names)
		if err != nil {
			return "", err
		}
		if len(kept) > 0 {
			fmt.Fprintf(&out, "%s: %s\n", key, strings.Join(kept, ", "))
		}
	}
	return "", errors.New("the front matter of the agent definition has no end")
}

// outsideTools translates a list of tools.
func outsideTools(key string, names []string) ([]string, error) {
	var kept []string
	named := false
	for _, name := range names {
		name = strings.Trim(strings.TrimSpace(name), `"'`)
		if name == "" {
			continue
		}
		named = true
		base, _, limited := strings.Cut(name, "(")
		switch {
		case name == "*":
			return nil, nil
		case limited:
			return nil, fmt.Errorf(
				"the agent definition has %s: %.60s, and a tool of the sandbox has no such limit: write it in the policy, and %s here", key, name, base)
		case strings.HasPrefix(name, "mcp__"+ToolServer):
			kept = append(kept, name)
		default:
			for _, tool := range sandboxTools[name] {
				kept = append(kept, "mcp__"+ToolServer+"__"+tool)
			}
		}
	}
	if named && len(kept) == 0 && key == "tools" {
		return nil, errors.New("the agent definition has tools of which the sandbox has none: name Bash, Read, Edit, Write, Glob or Grep")
	}
	return kept, nil
}
