package agents

import (
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// reference is the page with the recipes.
func reference(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../doc/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// lines are the commands of a recipe in the reference.
func (r recipe) lines(t *testing.T) string {
	t.Helper()
	_, after, found := strings.Cut(reference(t), "\n"+r.heading+"\n")
	_, after, fence := strings.Cut(after, "```sh\n")
	lines, _, end := strings.Cut(after, "```")
	if !found || !fence || !end {
		t.Fatalf("doc/mcp.md has no commands below %s", r.heading)
	}
	return lines
}

// inSandbox are the commands of a recipe after the change that the reference names: agentctl mcp in place of agentsh mcp.
func (r recipe) inSandbox(t *testing.T) string {
	t.Helper()
	said := regexp.MustCompile("write `(agentctl mcp [^`]*)` in place of\\s`(agentsh mcp [^`]*)`").FindStringSubmatch(reference(t))
	if said == nil {
		t.Fatal("doc/mcp.md does not say what to write for a sandbox")
	}
	lines := r.lines(t)
	before, after := spellings(said[2]), spellings(said[1])
	for i := range before {
		lines = strings.ReplaceAll(lines, before[i], after[i])
	}
	if strings.Contains(lines, "agentsh") || !strings.Contains(lines, "agentctl") {
		t.Fatalf("the reference does not say how to change these lines:\n%s", lines)
	}
	return lines
}

// spellings are a command line as shells, Gemini CLI and OpenCode have it.
func spellings(line string) []string {
	var quoted []string
	for word := range strings.FieldsSeq(strings.ReplaceAll(line, "~", "$HOME")) {
		quoted = append(quoted, `"`+word+`"`)
	}
	return []string{
		line, `"command": ` + quoted[0] + `, "args": [` + strings.Join(quoted[1:], ", "), `"command": [` + strings.Join(quoted, ", "),
	}
}

// TestTheRecipesConnectRealPrograms runs the commands of doc/mcp.md. The model mends a bug by tools of a session, and has no
// tool of the program itself.
func TestTheRecipesConnectRealPrograms(t *testing.T) {
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			w := r.world(t, name)
			r.run(t, w, r.lines(t))
			if text := w.read("home/src/app/double.sh"); !strings.Contains(text, "$1 + $1") {
				t.Errorf("it is not mended: %s", text)
			}
		})
	}
}

// TestTheRecipesConnectRealProgramsWithASandbox does the same with agentctl mcp in place of agentsh mcp: a copy of the repository
// is mended, and the results have it when the client has gone.
func TestTheRecipesConnectRealProgramsWithASandbox(t *testing.T) {
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			w := r.world(t, name)
			if err := unix.Mkfifo(w.path("ended"), 0o600); err != nil {
				t.Fatal(err)
			}
			both, err := os.OpenFile(w.path("ended"), os.O_RDWR, 0) // both ends, so that nobody waits for the other
			if err != nil {
				t.Fatal(err)
			}
			streams := " 2>>" + w.path("agentctl.log") + " 9>" + w.path("ended")
			w.write("path/agentctl", "#!/bin/sh\n"+slow+"exec "+w.bin+"/agentctl \"$@\""+streams+"\n", 0o755)
			r.run(t, w, r.inSandbox(t))
			reader, err := os.Open(w.path("ended"))
			if err != nil {
				t.Fatal(err)
			}
			_ = both.Close()
			if _, err := io.ReadAll(reader); err != nil { // until the last process of agentctl has ended
				t.Error(err)
			}
			_ = reader.Close()
			if text := w.read("home/out/files/double.sh"); !strings.Contains(text, "$1 + $1") {
				t.Errorf("it is not mended: %s\n%s", text, w.read("agentctl.log"))
			}
			if text := w.read("home/src/app/double.sh"); strings.Contains(text, "$1 + $1") {
				t.Errorf("the repository itself was changed: %s", text)
			}
		})
	}
}

// TestTheReferenceNamesTheVersionsThatWereTried compares it with what is installed for these tests.
func TestTheReferenceNamesTheVersionsThatWereTried(t *testing.T) {
	script, err := os.ReadFile("install.sh")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(reference(t)), " ")
	for program, r := range recipes {
		_, rest, found := strings.Cut(string(script), "npm_program "+program+" ")
		fields := strings.Fields(rest)
		if !found || len(fields) < 2 {
			t.Fatalf("install.sh has no %s", program)
		}
		if want := strings.TrimPrefix(r.heading, "### ") + " " + fields[1]; !strings.Contains(words, want) {
			t.Errorf("doc/mcp.md has no %q", want)
		}
	}
}

// slow delays the start of a server by more than Claude Code, Codex and OpenCode wait without the settings of the recipes: 5, 10 and
// 5 seconds. So a busy machine is always tried.
const slow = "sleep 12\n"

// world is the home of a user with a project that has a bug, and a model that mends it.
func (r recipe) world(t *testing.T, name string) *world {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	h := harness{
		Runtime: "command", Program: []string{"true"}, Env: "UNUSED: \"\"\n", Provider: "credentials: {K: \"${MODEL_KEY}\"}\n", Agent: "# x\n",
	}
	w := newWorld(t, h, fakemodel.Turns(
		call(r.tool+"exec", map[string]any{"command": "./test.sh"}),
		call(r.tool+"edit", map[string]any{"path": "double.sh", "old_text": "$1 + 2", "new_text": "$1 + $1"}),
		call(r.tool+"exec", map[string]any{"command": "./test.sh; kill 1"}),
		fakemodel.Turn{Say: "It is mended."},
	))
	err := errors.Join(os.MkdirAll(w.path("home/src"), 0o755), os.Mkdir(w.path("empty"), 0o755),
		os.Rename(w.path("repo"), w.path("home/src/app")))
	if err != nil {
		t.Fatal(err)
	}
	for _, pack := range []string{"default", "agent-sandbox"} {
		w.copy("../../packaging/policies/"+pack+".yaml", "etc/agentsh/policies/"+pack+".yaml")
	}
	w.write("path/"+name, "#!/bin/sh\nexec "+strings.Join(r.program(t), " ")+" \"$@\"\n", 0o755)
	return w
}

// withPolicies runs bash with /etc/agentsh as the packages have it.
const withPolicies = `set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$1/etc:/etc" /etc
exec bash -exc "$2"`

// run runs the commands of a recipe, and checks what the model saw.
func (r recipe) run(t *testing.T, w *world, lines string) {
	t.Helper()
	api := httptest.NewServer(w.model)
	defer api.Close()
	for file, text := range r.files {
		w.write("home/"+file, strings.ReplaceAll(text, "MODEL", api.URL), 0o600)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", withPolicies, "sh", w.dir, lines)
	cmd.Dir = w.path("empty")
	cmd.Env = []string{"PATH=" + w.path("path") + ":" + w.bin + ":" + os.Getenv("PATH"), "HOME=" + w.path("home")}
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
}
