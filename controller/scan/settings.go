package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
)

// maxSettings limits the parsed part of a settings file, in bytes.
const maxSettings = 1 << 20

// settingsBuffer holds the beginning of a text.
type settingsBuffer struct{ b []byte }

func (s *settingsBuffer) add(b []byte) {
	s.b = append(s.b, b[:min(len(b), maxSettings-len(s.b))]...)
}

// starter names settings that start programs. In a path of keys * matches
// one key or element and ** for any number.
type starter struct {
	file     string // the end of the name
	keys     string // JSON: keys divided by a slash
	value    string // only with this value; empty: any
	severity Severity
	message  string
	command  bool // the value is a shell command
}

var starters = []starter{
	{".claude/settings.json", "hooks/**/command", "", High, "a hook that Claude Code runs", true},
	{".claude/settings.local.json", "hooks/**/command", "", High, "a hook that Claude Code runs", true},
	{".claude/settings.json", "apiKeyHelper", "", High, "a program that Claude Code runs for its key", true},
	{".claude/settings.json", "statusLine/command", "", High, "a program that Claude Code runs for its status line", true},
	{".claude/settings.json", "awsAuthRefresh", "", High, "a program that Claude Code runs", true},
	{".claude/settings.json", "env/ANTHROPIC_BASE_URL", "", High, "sends the agent's conversation to another server", false},
	{".claude/settings.json", "env/ANTHROPIC_*", "", Medium, "changes how the agent reaches its model", false},
	{".claude/settings.json", "enableAllProjectMcpServers", "true", High, "starts every server of .mcp.json unasked", false},
	{".claude/settings.json", "permissions/defaultMode", "bypassPermissions", High, "lets the agent do everything unasked", false},
	{".claude/settings.json", "permissions/allow/*", "Bash", Medium, "lets the agent run every command unasked", false},
	{".claude/settings.json", "permissions/allow/*", "Bash(*)", Medium, "lets the agent run every command unasked", false},
	{"plugin.json", "hooks/**/command", "", High, "a hook that Claude Code runs", true},
	{"hooks.json", "hooks/**/command", "", High, "a hook that an agent runs", true},
	{".mcp.json", "mcpServers/*/command", "", Medium, "a server that the agent starts", true},
	{".mcp.json", "mcpServers/*/args/*", "", Low, "an argument of a server that the agent starts", true},
	{".cursor/mcp.json", "mcpServers/*/command", "", Medium, "a server that the agent starts", true},
	{".vscode/mcp.json", "servers/*/command", "", Medium, "a server that the agent starts", true},
	{".gemini/settings.json", "mcpServers/*/command", "", Medium, "a server that the agent starts", true},
	{".gemini/settings.json", "hooks/**/command", "", High, "a hook that Gemini CLI runs", true},
	{".gemini/settings.json", "tools/discoveryCommand", "", High, "a program that Gemini CLI runs at its start", true},
	{".gemini/settings.json", "tools/callCommand", "", High, "a program that Gemini CLI runs as its tools", true},
	{".gemini/settings.json", "mcp/serverCommand", "", Medium, "a server that the agent starts", true},
	{"opencode.json*", "mcp/*/command/*", "", Medium, "a server that the agent starts", true},
	{"opencode.json*", "plugin/*", "", Medium, "a plugin that the agent loads", false},
	{"opencode.json*", "formatter/*/command/*", "", Medium, "a program that OpenCode runs after each edit", true},
	{"opencode.json*", "lsp/*/command/*", "", Medium, "a program that OpenCode starts", true},
	{"opencode.json*", "provider/*/options/baseURL", "", High, "sends the agent's conversation to another server", false},
	{".vscode/tasks.json", "tasks/*/runOptions/runOn", "folderOpen", High, "a task that runs when the directory is opened", false},
	{".vscode/tasks.json", "tasks/*/command", "", Low, "a task", true},
	{".vscode/settings.json", "task.allowAutomaticTasks", "on", High, "tasks run unasked", false},
	{".vscode/settings.json", "chat.tools.autoApprove", "true", High, "the agent's tools run unasked", false},
	{".vscode/settings.json", "terminal.integrated.profiles.*/**/path", "", Medium, "a program that terminals start", false},
	{".vscode/settings.json", "*.executablePath", "", Medium, "a program that the editor starts", false},
	{"devcontainer.json", "initializeCommand", "", High, "a command that runs on the host when the container is made", true},
	{"devcontainer.json", "postCreateCommand", "", Low, "a command that runs in the new container", true},
	{"devcontainer.json", "postStartCommand", "", Low, "a command that runs in the container", true},
	{"package.json", "scripts/preinstall", "", Low, "a script that npm install runs", true},
	{"package.json", "scripts/install", "", Low, "a script that npm install runs", true},
	{"package.json", "scripts/postinstall", "", Low, "a script that npm install runs", true},
	{"package.json", "scripts/prepare", "", Low, "a script that npm install runs", true},
	{"package.json", "scripts/*", "", Low, "", true},
	{"composer.json", "scripts/post-install-cmd/**", "", Low, "a script that composer install runs", true},
}

// lineStarter is a setting in a file of lines.
type lineStarter struct {
	file     string // pattern of path.Match for the end of the name
	re       string // its first group, or all of it, is what is reported
	severity Severity
	message  string
}

var lineStarters = []lineStarter{
	{
		".git/config",
		`(?mi)^\s*(?:fsmonitor|sshcommand|hookspath|pager|editor|askpass|gitproxy|textconv|external|clean|smudge|process|program|helper|packobjectshook|uploadpack|receivepack|command)\s*=\s*(\S.*)$`,
		High,
		"git starts a program",
	},
	{".git/config", `(?mi)^\s*(?:path\s*=\s*\S.*|\[include.*)$`, High, "git reads another file as its configuration"},
	{".git/config", `(?mi)^\s*url\s*=\s*(ext::.*)$`, Critical, "git starts a program to reach a remote"},
	{".gitmodules", `(?mi)^\s*update\s*=\s*(!.*)$`, Critical, "git starts a program for a submodule"},
	{".gitmodules", `(?mi)^\s*url\s*=\s*((?:ext::|-).*)$`, Critical, "git starts a program to reach a submodule"},
	{".gitmodules", `(?mi)^\s*path\s*=\s*(-.*)$`, Critical, "a path that git takes for an option"},
	{".gitattributes", `(?m)^\S+\s+.*\b(?:filter|diff|merge)=(\S+)`, Low, "names a filter of git's configuration"},
	{".codex/config.toml", `(?m)^\s*(?:command|notify)\s*=\s*(.*)$`, Medium, "a program that Codex starts"},
	{".codex/config.toml", `(?m)^\s*(?:\w+_)?base_url\s*=\s*(.*)$`, High, "sends the agent's conversation to another server"},
	{".gemini/.env", `(?m)^\s*(?:export\s+)?([A-Za-z_][^#\s].*)$`, Medium, "a variable that Gemini CLI sets for itself"},
	{".opencode/plugin/*", `\A\s*(\S.*)`, Medium, "a plugin that OpenCode loads at its start"},
	{".opencode/plugins/*", `\A\s*(\S.*)`, Medium, "a plugin that OpenCode loads at its start"},
	{".npmrc", `(?m)^\s*(?:script-shell|node-options|git)\s*=\s*(.*)$`, High, "a program that npm starts"},
	{".yarnrc.yml", `(?m)^\s*(?:yarnPath|- path):\s*(.*)$`, Low, "code that yarn loads"},
	{".envrc", `(?m)^\s*([^#\s].*)$`, Medium, "direnv runs it when the directory is entered"},
	{".pre-commit-config.yaml", `(?m)^\s*entry:\s*(.*)$`, Low, "a hook of pre-commit"},
	{".husky/*", `(?m)^\s*([^#\s].*)$`, Low, "a hook of git"},
	{".githooks/*", `(?m)^\s*([^#\s].*)$`, Low, "a hook of git"},
}

var lineRegexps = sync.OnceValue(func() []*regexp.Regexp {
	out := make([]*regexp.Regexp, len(lineStarters))
	for i, l := range lineStarters {
		out[i] = regexp.MustCompile(l.re)
	}
	return out
})

// isSettings reports whether the settings scanner knows a file.
func isSettings(name string) bool {
	for _, s := range starters {
		if endsWith(name, s.file) {
			return true
		}
	}
	for _, l := range lineStarters {
		if endsWith(name, l.file) {
			return true
		}
	}
	return false
}

// endsWith reports whether a name ends with the elements of pattern.
func endsWith(name, pattern string) bool {
	from := len(name)
	for range strings.Count(pattern, "/") + 1 {
		if from < 0 {
			return false
		}
		from = strings.LastIndexByte(name[:from], '/')
	}
	tail := name[from+1:]
	if !strings.ContainsAny(pattern, `*?[\`) {
		return tail == pattern
	}
	ok, _ := path.Match(pattern, tail) // the patterns are constants
	return ok
}

// settings finds settings that start programs, after the whole file was read.
func (j *job) settings() error {
	if !j.scanner.options.Settings || !isSettings(j.name) {
		return nil
	}
	j.line, j.column = 1, 1
	s := span{job: j, raw: j.persist.b}
	for i, l := range lineStarters {
		if !endsWith(j.name, l.file) {
			continue
		}
		for _, at := range lineRegexps()[i].FindAllSubmatchIndex(s.raw, maxFindings) {
			from, to := at[0], at[1]
			if len(at) > 2 && at[2] >= 0 {
				from, to = at[2], at[3]
			}
			s.start(from, to, l.severity, l.message, true)
		}
	}
	if strings.HasSuffix(j.name, ".json") || strings.HasSuffix(j.name, ".jsonc") {
		s.json()
	}
	return nil
}

// start reports a setting that starts a program. A command that looks like an
// attack is critical.
func (s *span) start(from, to int, severity Severity, message string, command bool) {
	if command {
		for _, a := range attacks() {
			if a.severity >= High && a.re.Match(s.raw[from:to]) {
				severity, message = Critical, strings.TrimPrefix(message+" that "+a.message, " that ")
				break
			}
		}
	}
	if message == "" {
		return
	}
	s.report(from, to, Finding{Rule: RuleSettings, Severity: severity, Message: message, Hint: "remove it, or review what it starts"})
}

// json walks a JSON file. Comments and trailing commas are allowed, as editors
// write them.
func (s *span) json() {
	clean := withoutComments(s.raw)
	d := json.NewDecoder(bytes.NewReader(clean))
	d.UseNumber()
	w := walker{span: s, decoder: d}
	w.value(nil) // what cannot be read is found by the tool that reads it
}

// walker visits the values of a JSON text with their positions.
type walker struct {
	span    *span
	decoder *json.Decoder
}

const maxJSONDepth = 32

// value visits one value. It returns false at the end of the text or if it is
// not JSON.
func (w *walker) value(keys []string) bool {
	before := int(w.decoder.InputOffset())
	token, err := w.decoder.Token()
	if err != nil || len(keys) > maxJSONDepth {
		return false
	}
	delim, open := token.(json.Delim)
	if !open {
		w.leaf(keys, fmt.Sprint(token), before, int(w.decoder.InputOffset()))
		return true
	}
	for i := 0; w.decoder.More(); i++ {
		key := fmt.Sprint(i)
		if delim == '{' {
			t, err := w.decoder.Token()
			if err != nil {
				return false
			}
			key = fmt.Sprint(t)
		}
		if !w.value(append(keys[:len(keys):len(keys)], key)) {
			return false
		}
	}
	_, err = w.decoder.Token()
	return err == nil
}

// leaf judges a string, number or literal.
func (w *walker) leaf(keys []string, value string, from, to int) {
	for from < to && strings.IndexByte(" \t\r\n:,", w.span.raw[from]) >= 0 {
		from++
	}
	for _, s := range starters {
		if endsWith(w.span.job.name, s.file) && keysMatch(strings.Split(s.keys, "/"), keys) && (s.value == "" || s.value == value) {
			w.span.start(from, to, s.severity, s.message, s.command)
			return
		}
	}
}

func keysMatch(pattern, keys []string) bool {
	switch {
	case len(pattern) == 0:
		return len(keys) == 0
	case pattern[0] == "**":
		for i := range len(keys) + 1 {
			if keysMatch(pattern[1:], keys[i:]) {
				return true
			}
		}
		return false
	case len(keys) == 0:
		return false
	}
	ok, _ := path.Match(pattern[0], strings.ReplaceAll(keys[0], "/", "-")) // the patterns are constants
	return ok && keysMatch(pattern[1:], keys[1:])
}

// withoutComments replaces comments and trailing commas by spaces, so offsets
// stay.
func withoutComments(b []byte) []byte {
	out := bytes.Clone(b)
	quoted := false
	for i := 0; i < len(out); i++ {
		switch {
		case quoted && out[i] == '\\':
			i++
		case out[i] == '"':
			quoted = !quoted
		case quoted:
		case bytes.HasPrefix(out[i:], []byte("//")):
			for ; i < len(out) && out[i] != '\n'; i++ {
				out[i] = ' '
			}
		case bytes.HasPrefix(out[i:], []byte("/*")):
			end := bytes.Index(out[i:], []byte("*/"))
			if end < 0 {
				end = len(out) - i - 2
			}
			for k := i; k < i+end+2; k++ {
				if out[k] != '\n' {
					out[k] = ' '
				}
			}
		}
	}
	last := -1 // a comma with nothing but space behind it so far
	quoted = false
	for i := 0; i < len(out); i++ {
		c := out[i]
		switch {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted, last = !quoted, -1
		case quoted || strings.IndexByte(" \t\r\n", c) >= 0:
		case c == ',':
			last = i
		case (c == '}' || c == ']') && last >= 0:
			out[last], last = ' ', -1
		default:
			last = -1
		}
	}
	return out
}
