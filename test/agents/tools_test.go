package agents

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/internal/fakemodel"
	"agentsh/internal/testenv"
)

// TestClaudeOutsideMendsABugByTools has Claude Code on the host with the tools of a sandbox alone, as doc/mcp.md says.
func TestClaudeOutsideMendsABugByTools(t *testing.T) {
	mendsByTools(t, "", "--agentsh-config", "config.yaml")
}

// TestClaudeOutsideMendsABugInAContainer has the sandbox in a container of dockerd.
func TestClaudeOutsideMendsABugInAContainer(t *testing.T) {
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	e := testenv.Docker(t)
	mendsByTools(t, "image: "+testenv.EngineImage+"\ncontainer:\n  mounts: [{source: /usr, target: /usr}, "+
		"{source: /etc/alternatives, target: /etc/alternatives}]\n", "--backend", e.Backend, "--connect", e.Host)
}

// mendsByTools runs it. more belongs to the harness, flags to agentctl mcp.
func mendsByTools(t *testing.T, more string, flags ...string) {
	t.Helper()
	h := claude(t, more)
	w := newWorld(t, h, fakemodel.Turns(
		call("mcp__sandbox__exec", map[string]any{"command": "./test.sh"}),
		call("mcp__sandbox__read", map[string]any{"path": "double.sh"}),
		call("mcp__sandbox__edit", map[string]any{"path": "double.sh", "old_text": "$1 + 2", "new_text": "$1 + $1"}),
		call("mcp__sandbox__exec", map[string]any{"command": "pkill -9 claude; ./test.sh && git commit -qam mended && echo committed"}),
		fakemodel.Turn{Say: "It is mended."},
	))
	api := httptest.NewServer(w.model)
	defer api.Close()
	for i, flag := range flags {
		if flag == "config.yaml" {
			flags[i] = w.path(flag)
		}
	}
	run := w.command()
	settings, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"sandbox": map[string]any{
		"command": w.bin + "/agentctl", "args": append([]string{
			"mcp", w.path("harness.yaml"), "--repo", w.path("repo"), "--out", w.path("out"),
		}, flags...),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	w.write("tools.json", string(settings), 0o644)
	w.write("empty/home/.keep", "", 0o644)
	cmd := exec.Command(h.Program[0], "-p", "--strict-mcp-config", "--mcp-config", w.path("tools.json"), "--tools", "",
		"--allowedTools", "mcp__sandbox", "--model", "sonnet", "Mend double.sh")
	cmd.Dir = w.path("empty")
	cmd.Env = append(slices.Clone(run.Env), "HOME="+w.path("empty/home"), "ANTHROPIC_BASE_URL="+api.URL, "ANTHROPIC_API_KEY=key-of-the-host",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CODE_MAX_RETRIES=0", "MCP_TIMEOUT=120000")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "It is mended.") {
		t.Fatalf("%v\n%s", err, out)
	}
	for n, want := range []string{"double 1 gives 3", "echo $(($1 + 2))", `"replacements":1`, `"rule":"block-kill"`} {
		if a := w.answer(n); !strings.Contains(a.Text, want) {
			t.Errorf("tool call %d: %+v, want %q", n, a, want)
		}
	}
	for _, tool := range w.model.Requests()[0].Tools {
		if !strings.HasPrefix(tool, "mcp__sandbox__") {
			t.Errorf("the model may use %s", tool)
		}
	}
	var r controller.Result
	limit, tick := time.After(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for r.Status == "" { // the work is taken out behind the program
		select {
		case <-tick.C:
			if data, err := os.ReadFile(w.path("out/result.json")); err == nil {
				_ = json.Unmarshal(data, &r) // a part of it is there
			}
		case <-limit:
			t.Fatalf("the work is not taken out\n%s", out)
		}
	}
	if len(r.Commits) != 1 || !strings.Contains(w.git("show", r.Branch+":double.sh"), "$1 + $1") {
		t.Errorf("%+v", r)
	}
}
