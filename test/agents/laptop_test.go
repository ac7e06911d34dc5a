package agents

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/fakemodel"
	"agentsh/internal/testenv"
)

// laptopProject is where the project is on the laptop.
const laptopProject = "/home/dev/project"

// onLaptop runs a command as user 1000, whose home is /home/dev, in the project. The
// machine has the packages' files below /etc/agentsh.
const onLaptop = `set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$1/etc:/etc" /etc
mount --bind "$1/home" /home
mount --bind "$1/fuse" /dev/fuse
shift
cd ` + laptopProject + `
exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"`

// login is what the user's own logins hold.
const login = "login-of-the-user-77120"

// logins are files with them, in the user's home.
var logins = []string{
	".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".local/share/opencode/auth.json", ".npmrc",
	".ssh/id_ed25519",
}

// laptopAgent is a program on a laptop.
type laptopAgent struct {
	other
	host, key string
	args      []string
	settings  map[string]string // of its own, in its home
	turns     []fakemodel.Turn  // that mend double.sh
}

var laptopAgents = []laptopAgent{
	{
		other: other{runtime: "claude", shell: func(c string) fakemodel.Call {
			return fakemodel.Call{Tool: "Bash", Input: map[string]any{"command": c, "description": "a step"}}
		}},
		host: "api.anthropic.com", key: "ANTHROPIC_API_KEY",
		args: []string{"-p", "--dangerously-skip-permissions", "--model", "sonnet", "Mend double.sh"},
		turns: []fakemodel.Turn{
			call("Read", map[string]any{"file_path": laptopProject + "/double.sh"}),
			call("Edit", map[string]any{"file_path": laptopProject + "/double.sh", "old_string": "$1 + 2", "new_string": "$1 + $1"}),
		},
	},
	{
		other: codexProgram, host: "api.openai.com", key: "OPENAI_API_KEY",
		args: []string{"exec", "--dangerously-bypass-approvals-and-sandbox", "--disable", "shell_snapshot", "Mend double.sh"},
		settings: map[string]string{".codex/config.toml": `model = "gpt-5.5"
model_provider = "key"
[model_providers.key]
name = "OpenAI"
base_url = "https://api.openai.com/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
`},
		turns: []fakemodel.Turn{{Calls: []fakemodel.Call{codexProgram.edit}}},
	},
	{
		other: geminiProgram, host: "generativelanguage.googleapis.com", key: "GEMINI_API_KEY",
		args: []string{"--approval-mode", "yolo", "--skip-trust", "--model", "gemini-2.5-flash", "--prompt", "Mend double.sh"},
		turns: []fakemodel.Turn{call("replace", map[string]any{
			"file_path": laptopProject + "/double.sh", "instruction": "add the argument", "old_string": "$1 + 2", "new_string": "$1 + $1",
		})},
	},
	{
		other: opencodeProgram, host: "api.anthropic.com", key: "ANTHROPIC_API_KEY",
		args:     []string{"run", "--model", "anthropic/claude-sonnet-4-5", "Mend double.sh"},
		settings: map[string]string{".config/opencode/opencode.json": `{"permission": {"external_directory": "allow"}}`},
		turns: []fakemodel.Turn{
			call("read", map[string]any{"filePath": laptopProject + "/double.sh"}),
			call("edit", map[string]any{"filePath": laptopProject + "/double.sh", "oldString": "$1 + 2", "newString": "$1 + $1"}),
		},
	},
}

// TestAgentProgramsRunOnALaptop does what doc/laptop.md says, for each program as it is
// installed below nvm: it starts in the project, talks to its model with the key of the
// user's environment, edits a file, and keeps its home. Its commands read neither the key
// nor the user's logins.
func TestAgentProgramsRunOnALaptop(t *testing.T) {
	for _, p := range laptopAgents {
		t.Run(p.runtime, func(t *testing.T) {
			w := newLaptop(t, p)
			for _, args := range [][]string{{"init"}, {"policy", "test", ".agentsh"}} {
				w.onLaptop(p, args...)
			}
			w.append("home/dev/project/.agentsh/policy.yaml", "\nnetwork_rules:\n  - {name: model, domains: ["+p.host+
				"], ports: [443], cidrs: [127.0.0.1/32], decision: allow}\n") // the API is on this machine
			w.onLaptop(p, "trust")
			out := w.onLaptop(p, append([]string{"exec", "--", p.runtime}, p.args...)...)
			if got := w.read("home/dev/project/double.sh"); !strings.Contains(got, "$1 + $1") {
				t.Errorf("double.sh was not mended:\n%s\n%s", got, out)
			}
			n := len(p.turns)
			if got := w.answer(n).Text; !strings.Contains(got, "all good") || !strings.Contains(got, "looked") ||
				!strings.Contains(got, p.key+"=agentsh-placeholder-") {
				t.Errorf("its commands printed: %s", got)
			}
			if !strings.Contains(out, "It is mended.") ||
				!strings.Contains(out, p.key+" is a placeholder in the session; the key goes to "+p.host+" alone") {
				t.Errorf("it printed\n%s", out)
			}
			for _, r := range w.model.Requests() {
				if bytes.Contains(r.Body, []byte(login)) {
					t.Error("the model read a login of the user")
				}
			}
			w.checkKey()
			kept, err := os.ReadDir(w.path("home/dev/.local/state/agentsh/agents/" + p.runtime))
			if err != nil || len(kept) == 0 {
				t.Errorf("it kept nothing: %v", err)
			}
		})
	}
}

// newLaptop is the machine of a user who has a program and a project.
func newLaptop(t *testing.T, p laptopAgent) *world {
	t.Helper()
	agents := installed(t)
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"), testenv.Program("node"))
	bin := testenv.Programs(t)
	dir, err := os.MkdirTemp(filepath.Dir(agents), "laptop-") // for hard links
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	look := "./test.sh; cd /home/dev; cat " + strings.Join(logins, " ") + "; env; cat /proc/*/environ | tr '\\0' '\\n'; echo looked"
	w := &world{t: t, bin: bin, dir: dir, model: fakemodel.New(fakemodel.Turns(append(append([]fakemodel.Turn{}, p.turns...), p.run(look),
		fakemodel.Turn{Say: "It is mended."})...))}
	w.write("etc/agentsh/ca.pem", string(w.serveAt("127.0.0.1:443", p.host)), 0o644)
	w.write("etc/agentsh/config.yaml", "network: {resolvers: ['"+testenv.NameServer(t)+"'], ca_files: [/etc/agentsh/ca.pem]}\n", 0o644)
	for _, pack := range []string{"default", "agent-sandbox"} {
		w.copy("../../packaging/policies/"+pack+".yaml", "etc/agentsh/policies/"+pack+".yaml")
	}
	for _, name := range logins {
		w.write("home/dev/"+name, login, 0o600)
	}
	for name, text := range p.settings {
		w.write("home/dev/.local/state/agentsh/agents/"+p.runtime+"/"+name, text, 0o600)
	}
	w.write("home/dev/project/double.sh", "#!/bin/sh\n# Prints twice its argument.\necho $(($1 + 2))\n", 0o755)
	w.write("home/dev/project/test.sh", "#!/bin/sh\n[ \"$(./double.sh 5)\" = 10 ] && echo all good\n", 0o755)
	const install = `set -e
cd "$1"; mkdir -p home/dev/.local/bin home/dev/.nvm/versions/node/v22.1.0/bin
cp "$2/agentsh" home/dev/.local/bin/
cp -al "$3/$4/." home/dev/.nvm/versions/node/v22.1.0/lib
ln -s "../lib/node_modules/.bin/$4" home/dev/.nvm/versions/node/v22.1.0/bin/
ln -s "$(readlink -f "$(command -v node)")" home/dev/.nvm/versions/node/v22.1.0/bin/node
git init -q -b main home/dev/project
find home/dev -path home/dev/.nvm -prune -o -exec chown -h 1000:1000 {} +
chmod 700 home/dev/.local/state/agentsh 2>/dev/null || true`
	if out, err := exec.Command("sh", "-c", install, "sh", dir, bin, agents, p.runtime).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	device := w.path("fuse")
	err = errors.Join(unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))), os.Chmod(device, 0o666), os.Chmod(dir, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// onLaptop runs agentsh as the user in the project and returns what it prints.
func (w *world) onLaptop(p laptopAgent, args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "unshare", append([]string{"--mount", "sh", "-c", onLaptop, "sh", w.dir, "agentsh"}, args...)...)
	cmd.Env = []string{
		"HOME=/home/dev", "USER=dev",
		"PATH=/home/dev/.nvm/versions/node/v22.1.0/bin:/home/dev/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		p.key + "=" + realKey,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("agentsh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
