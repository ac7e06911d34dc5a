package agents

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/fakemodel"
	"agentsh/internal/testenv"
)

// recipe is how the reference connects a program with the tools of a session.
type recipe struct {
	heading string // in doc/mcp.md
	program func(t *testing.T) []string
	files   map[string]string // of the home: the login of its user; MODEL is the address of the API
	env     []string          // the same
	tool    string            // prefix of the names of the tools
	own     []string          // tools of the program itself that stay, and can do nothing on this machine
}

var recipes = map[string]recipe{
	"claude": {
		heading: "### Claude Code",
		program: func(t *testing.T) []string {
			return []string{program(t, "claude/node_modules/@anthropic-ai/claude-code-linux-*/claude")}
		},
		env: []string{
			"ANTHROPIC_BASE_URL=MODEL", "ANTHROPIC_API_KEY=key", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CODE_MAX_RETRIES=0",
			"MCP_TIMEOUT=120000",
		},
		tool: "mcp__sandbox__",
	},
	"codex": {
		heading: "### Codex",
		program: func(t *testing.T) []string { return codexProgram.argv(t)[:1] },
		files: map[string]string{".codex/config.toml": `model_provider = "standin"
model = "gpt-5.5"
[model_providers.standin]
name = "stand-in"
base_url = "MODEL/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`},
		env:  []string{"OPENAI_API_KEY=key"},
		tool: "mcp__sandbox__",
		own: []string{
			"list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource", "request_user_input", "apply_patch", "view_image",
			"tool_search",
		},
	},
	"gemini": {
		heading: "### Gemini CLI",
		program: func(t *testing.T) []string { return geminiProgram.argv(t) },
		files: map[string]string{
			".gemini/settings.json": `{"security": {"auth": {"selectedType": "gemini-api-key"}}, "model": {"name": "gemini-2.5-flash"}}`,
		},
		env:  []string{"GOOGLE_GEMINI_BASE_URL=MODEL", "GEMINI_API_KEY=key"},
		tool: "mcp_sandbox_",
	},
	"opencode": {
		heading: "### OpenCode",
		program: func(t *testing.T) []string { return opencodeProgram.argv(t) },
		files: map[string]string{".config/opencode/opencode.json": strings.NewReplacer(
			"https://"+modelHost+":PORT", "MODEL", `{"provider"`, `{"model": "standin/m1", "small_model": "standin/m1", "provider"`,
		).Replace(opencodeConfig)},
		env:  []string{"OPENAI_API_KEY=key", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1"},
		tool: "sandbox_",
	},
}

// lines are the commands of a recipe in the reference.
func (r recipe) lines(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../doc/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(data), "\n"+r.heading+"\n")
	_, after, fence := strings.Cut(after, "```sh\n")
	lines, _, end := strings.Cut(after, "```")
	if !found || !fence || !end {
		t.Fatalf("doc/mcp.md has no commands below %s", r.heading)
	}
	return lines
}

// TestTheRecipesConnectRealPrograms runs the commands of doc/mcp.md. The model mends a bug by tools of a session, and has no
// tool of the program itself.
func TestTheRecipesConnectRealPrograms(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			h := harness{
				Runtime: "command", Program: []string{"true"}, Env: "UNUSED: \"\"\n", Provider: "credentials: {K: \"${MODEL_KEY}\"}\n", Agent: "# x\n",
			}
			w := newWorld(t, h, fakemodel.Turns(
				call(r.tool+"exec", map[string]any{"command": "./test.sh"}),
				call(r.tool+"edit", map[string]any{"path": "double.sh", "old_text": "$1 + 2", "new_text": "$1 + $1"}),
				call(r.tool+"exec", map[string]any{"command": "./test.sh; kill 1"}),
				fakemodel.Turn{Say: "It is mended."},
			))
			api := httptest.NewServer(w.model)
			defer api.Close()
			for file, text := range r.files {
				w.write("home/"+file, strings.ReplaceAll(text, "MODEL", api.URL), 0o600)
			}
			w.write("path/"+name, "#!/bin/sh\nexec "+strings.Join(r.program(t), " ")+" \"$@\"\n", 0o755)
			w.write("empty/.keep", "", 0o644)
			_ = os.Remove(w.path("empty/.keep"))
			lines := strings.NewReplacer("policy agent-sandbox", "policy "+w.path("claude/policy.yaml"), "~/src/app", w.path("repo"),
				`"agent-sandbox"`, `"`+w.path("claude/policy.yaml")+`"`, "$HOME/src/app", w.path("repo")).Replace(r.lines(t))
			cmd := exec.Command("bash", "-exc", lines)
			cmd.Dir = w.path("empty")
			cmd.Env = []string{
				"PATH=" + w.path("path") + ":" + w.bin + ":" + os.Getenv("PATH"), "HOME=" + w.path("home"), "XDG_STATE_HOME=" + w.path("state"),
			}
			for _, v := range r.env {
				cmd.Env = append(cmd.Env, strings.ReplaceAll(v, "MODEL", api.URL))
			}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "It is mended.") {
				t.Errorf("%v\n%s", err, out)
			}
			for n, want := range []string{"double 1 gives 3", "replace", "all good"} {
				if a := w.answer(n); !strings.Contains(a.Text, want) || strings.Contains(a.Text, "No such tool") {
					t.Errorf("tool call %d: %+v, want %q\n%s", n, a, want, out)
				}
			}
			for _, request := range w.model.Requests() {
				for _, tool := range request.Tools {
					if !strings.HasPrefix(tool, r.tool) && !slices.Contains(r.own, tool) {
						t.Errorf("the model may use %s", tool)
					}
				}
			}
			if text, err := os.ReadFile(filepath.Join(w.path("repo"), "double.sh")); err != nil || !strings.Contains(string(text), "$1 + $1") {
				t.Errorf("it is not mended: %s %v", text, err)
			}
		})
	}
}
