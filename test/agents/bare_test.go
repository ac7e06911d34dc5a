package agents

import (
	"bytes"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/fakemodel"
)

// newBare makes a world whose program works on the host without a session. Its own directory is below two that have files of
// somebody else: instructions, skills, settings, hooks and servers. The first is a repository.
func newBare(t *testing.T, h harness, base, below string, script fakemodel.Script) *world {
	t.Helper()
	w := newWorld(t, h, script)
	api := httptest.NewServer(w.model)
	t.Cleanup(api.Close)
	host := strings.TrimPrefix(api.URL, "http://")
	w.write("providers/model.yaml", "name: model\ntype: model\nendpoints: ['"+host+"']\n"+h.Provider, 0o644)
	w.append("harness.yaml", "container: {harness: false, confine_agent: never, env_passthrough: ["+base+"]}\n")
	w.write("harness.yaml", strings.ReplaceAll(w.read("harness.yaml"), "https://"+modelHost+":PORT", api.URL), 0o644)
	w.setenv = []string{base + "=" + api.URL + below}
	strange := w.path("strange")
	hooks := `{"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch ` + strange + `"}]}]}}`
	skill := "---\nname: strange\ndescription: STRANGE skill\n---\nSTRANGE\n"
	for name, text := range map[string]string{
		"CLAUDE.md": "STRANGE", "CLAUDE.local.md": "STRANGE", "AGENTS.md": "STRANGE", "AGENTS.override.md": "STRANGE",
		".claude/CLAUDE.md": "STRANGE", ".claude/rules/strange.md": "STRANGE", ".claude/settings.json": hooks,
		".claude/settings.local.json":     hooks,
		".claude/skills/strange/SKILL.md": skill, ".claude/agents/strange.md": skill, ".claude/commands/strange.md": skill,
		".agents/skills/strange/SKILL.md": skill, ".codex/skills/strange/SKILL.md": skill, ".codex/hooks.json": hooks,
		".mcp.json": `{"mcpServers": {"strange": {"command": "touch", "args": ["` + strange + `"]}}}`,
		".codex/config.toml": "developer_instructions = \"STRANGE\"\nnotify = [\"touch\", \"" + strange + "\"]\n" +
			"[mcp_servers.strange]\ncommand = \"touch\"\nargs = [\"" + strange + "\"]\n",
	} {
		w.write(name, text+"\n", 0o644)
		w.write("state/agentsh/"+name, text+"\n", 0o644)
	}
	if out, err := exec.Command("git", "init", "-q", w.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return w
}

// runBare runs it. Nothing of somebody else was started, or came to the model.
func (w *world) runBare() {
	w.t.Helper()
	r, code := w.run()
	if code != 0 || r.Status != controller.StatusDone || r.AgentHost == nil || r.AgentHost.Session {
		w.t.Fatalf("exit %d: %+v %+v", code, r.Error, r.AgentHost)
	}
	if _, err := os.Stat(w.path("strange")); err == nil {
		w.t.Error("a program of somebody else was started")
	}
	for i, r := range w.model.Requests() {
		if at := bytes.Index(r.Body, []byte("STRANGE")); at >= 0 {
			w.t.Errorf("request %d: %.200s", i, r.Body[max(0, at-100):])
		}
	}
	if a := w.answer(0); strings.Contains(a.Text, "uid=") || !strings.Contains(w.answer(1).Text, "uid=") {
		w.t.Errorf("%+v, %+v", a, w.answer(1))
	}
}

func TestClaudeWithoutASessionReadsNothingAbove(t *testing.T) {
	h := claude(t, "model: sonnet\n")
	h.Env = "CLAUDE_CODE_MAX_RETRIES: \"0\"\n"
	newBare(t, h, "ANTHROPIC_BASE_URL", "", fakemodel.Turns(
		call("Bash", map[string]any{"command": "id"}), call("mcp__sandbox__exec", map[string]any{"command": "id"}), fakemodel.Turn{Say: "done"},
	)).runBare()
}

func TestCodexWithoutASessionReadsNothingAbove(t *testing.T) {
	p := codexProgram
	newBare(t, harness{
		Runtime: p.runtime, Program: p.argv(t), Provider: p.provider, More: p.more, Env: "UNUSED: \"\"\n",
		Agent: "---\nname: tester\ndescription: tests\n---\nYou are the tester.\n",
	}, "OPENAI_BASE_URL", "/v1", fakemodel.Turns(
		call("shell", map[string]any{"command": []string{"id"}}), call("mcp__sandbox__exec", map[string]any{"command": "id"}),
		fakemodel.Turn{Say: "done"},
	)).runBare()
}
