package agents

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/fakemodel"
	"agentsh/internal/testenv"
)

// TestAHarnessOfInitRuns runs the harness that agentctl init writes for each
// program, with nothing set but the key. The API of the model is at its real name
// and port on this machine, which takes one more line in the policy.
func TestAHarnessOfInitRuns(t *testing.T) {
	claudeProgram := other{runtime: "claude", argv: func(t *testing.T) []string { return claude(t, "").Program }}
	claudeProgram.shell = func(c string) fakemodel.Call {
		return fakemodel.Call{Tool: "Bash", Input: map[string]any{"command": c, "description": "a step"}}
	}
	for _, c := range []struct {
		other
		host, key string
	}{
		{claudeProgram, "api.anthropic.com", "ANTHROPIC_API_KEY"},
		{codexProgram, "api.openai.com", "OPENAI_API_KEY"},
		{geminiProgram, "generativelanguage.googleapis.com", "GEMINI_API_KEY"},
		{opencodeProgram, "api.anthropic.com", "ANTHROPIC_API_KEY"},
	} {
		t.Run(c.runtime, func(t *testing.T) {
			file := c.argv(t)
			program := file[0]
			if c.runtime == "gemini" {
				program = file[1] // a script of node
			}
			testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
			bin := testenv.Programs(t)
			w := &world{t: t, bin: bin, dir: t.TempDir(), model: fakemodel.New(fakemodel.Turns(
				c.run("echo mended > a.txt && git commit -q -am 'Mend it' && echo committed"), fakemodel.Turn{Say: "It is mended."},
			))}
			w.write("ca.pem", string(w.serveAt("127.0.0.1:443", c.host)), 0o644)
			w.write("config.yaml", "network: {resolvers: ['"+testenv.NameServer(t)+"'], ca_files: ['"+w.path("ca.pem")+"']}\n", 0o644)
			w.write("repo/a.txt", "broken\n", 0o644)
			w.git("init", "-q", "-b", "main")
			w.commit("first")
			t.Cleanup(w.checkClean)
			agentctl := func(args ...string) (string, string) {
				cmd := exec.CommandContext(t.Context(), w.bin+"/agentctl", args...)
				cmd.Dir = w.dir
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_STATE_HOME=" + w.path("state"), c.key + "=" + realKey}
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				if err := cmd.Run(); err != nil && args[0] != "run" {
					t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
				}
				return out.String(), errs.String()
			}
			agentctl("init", "--runtime", c.runtime, "--program", program, "agent")
			agentctl("lint", "agent")
			policy := w.read("agent/policies/mender.yaml")
			local := strings.Replace(policy, "    ports: [443]\n", "    ports: [443]\n    cidrs: [127.0.0.1/32]\n", 1)
			if local == policy {
				t.Fatalf("the policy has no rule for the model:\n%s", policy)
			}
			w.write("agent/policies/mender.yaml", local, 0o644)
			out, errs := agentctl("run", "agent/harness/mender.yaml", "--repo", "repo", "--out", "out", "--agentsh-config", "config.yaml", "--json")
			r := w.result([]byte(out), errs)
			if r.Status != controller.StatusDone || r.Partial || len(r.Commits) != 1 {
				t.Fatalf("%s %+v, commits %+v", r.Status, r.Error, r.Commits)
			}
			if got := w.git("show", r.Branch+":a.txt"); got != "mended" {
				t.Errorf("the branch has %q", got)
			}
			if !strings.Contains(errs, "look at the branch "+r.Branch) {
				t.Errorf("post_script did not run: %s", errs)
			}
			w.checkKey()
		})
	}
}
