package runtime

import (
	"slices"
	"strings"
	"testing"
)

// TestADefinitionHasTheToolsOfTheSandbox in place of those of the program, in each form of a list.
func TestADefinitionHasTheToolsOfTheSandbox(t *testing.T) {
	const exec = "mcp__sandbox__exec, mcp__sandbox__exec_output, mcp__sandbox__exec_kill"
	for front, want := range map[string]string{
		"name: x\n":                           "name: x\n",
		"tools: Bash\n":                       "tools: " + exec + "\n",
		"tools: [Bash, \"Glob\"]\n":           "tools: " + exec + ", mcp__sandbox__glob\n",
		"tools:\n  - Bash\n  - Glob\nname: x": "tools: " + exec + ", mcp__sandbox__glob\nname: x\n",
		"tools: Bash, Skill, WebFetch\n":      "tools: " + exec + "\n",
		"tools: mcp__sandbox__read\n":         "tools: mcp__sandbox__read\n",
		"tools: '*'\n":                        "",
		"tools:\nname: x\n":                   "name: x\n",
		"disallowedTools: Write, WebFetch\n":  "disallowedTools: mcp__sandbox__write\n",
		"disallowedTools: WebFetch\n":         "",
	} {
		got, err := outsideDefinition("---\n" + strings.TrimRight(front, "\n") + "\n---\nDo it.\n")
		if err != nil || got != "---\n"+want+"---\nDo it.\n" {
			t.Errorf("%q: %q, %v", front, got, err)
		}
	}
	for front, want := range map[string]string{
		"tools: Skill, WebFetch": "the sandbox has none", "tools: Bash(git *)": "no such limit", "name: x\n": "no end",
	} {
		text := "---\n" + front + "\n---\nx"
		if want == "no end" {
			text = "---\n" + front
		}
		if _, err := outsideDefinition(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", front, err)
		}
	}
}

// TestModelsOfCodexHaveNoToolsOfIt changes what gives them tools, and nothing else.
func TestModelsOfCodexHaveNoToolsOfIt(t *testing.T) {
	got, err := codex{}.catalog([]byte(`{"models":[{"slug":"m","apply_patch_tool_type":"freeform","tool_mode":"code_mode_only","other":1}],"x":2}`))
	if want := `{"models":[{"apply_patch_tool_type":null,"other":1,"slug":"m","tool_mode":null}],"x":2}`; err != nil || string(got) != want {
		t.Errorf("%s %v", got, err)
	}
	for _, bad := range []string{"", "[]", `{"models":[]}`, `{"models":[1]}`} {
		if _, err := (codex{}).catalog([]byte(bad)); err == nil {
			t.Errorf("%q is a catalog", bad)
		}
	}
}

// TestProgramsWaitForTheirTools has Claude Code and Codex begin when their servers are there: on a busy machine they began without
// tools, and their model saw none.
func TestProgramsWaitForTheirTools(t *testing.T) {
	in := Invocation{Agent: "fixer", Text: "Do it.", Iteration: 1}
	in.Servers = []Server{{Name: "notes", Argv: []string{"/opt/notes"}}}
	place := Place{Dir: "/place", URL: "http://127.0.0.1:1/mcp", Token: "t", Answer: []byte(`{"models":[{"slug":"m"}]}`)}
	outside, err := claude{}.Outside(in, place)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := claudeSettingsOf(in)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "60000", "MCP_TIMEOUT": "60000"} {
		setting := `"` + name + `": "` + want + `"`
		if !slices.Contains(outside.Command.Env, name+"="+want) || !strings.Contains(string(inside), setting) {
			t.Errorf("%s is not %s: %s\n%s", name, want, outside.Command.Env, inside)
		}
	}
	there, err := codex{}.Outside(in, place)
	if err != nil {
		t.Fatal(err)
	}
	here, err := codex{}.Command(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{there.Command.Argv, here.Argv} {
		if line := strings.Join(argv, " "); !strings.Contains(line, "required=true, startup_timeout_sec=60") {
			t.Error(line)
		}
	}
}
