package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/internal/testenv"
)

// TestTheBatchPageIsTrue writes the file of doc/batch.md and runs its commands.
func TestTheBatchPageIsTrue(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	commands := 0
	for _, f := range fencesOf(t, "../../doc/batch.md") {
		if name, ok := strings.CutPrefix(f.info, "file "); ok {
			p.write(name, f.text, 0o644)
			continue
		}
		commands++
		line, want, _ := strings.Cut(f.text, "\n")
		cmd := p.command()
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", strings.TrimPrefix(line, "$ ")}
		cmd.Env = append(cmd.Env, "PATH="+p.bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if got, want := p.alike(string(out)), p.alike(want); err != nil || !matches(got, want) {
			t.Errorf("doc/batch.md:%d: %v printed\n%s\nthe page says\n%s", f.line, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if commands < 5 {
		t.Errorf("%d commands", commands)
	}
	page, err := os.ReadFile("../../doc/batch.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"runs", "matrix", "vars", "labels", "caps", "retries", "deadline", "budget", "out"} {
		if !strings.Contains(string(page), "| `"+key+"` |") {
			t.Errorf("doc/batch.md does not have the key %s", key)
		}
	}
}

// TestTheExamplesOfBatchesLoad reads examples/batch and examples/batch-in-cluster.
func TestTheExamplesOfBatchesLoad(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"batch": 2, "batch-in-cluster": 4} {
		spec, _, ps := batch.Load("../../examples/"+name+"/batch.yaml", nil)
		for _, p := range ps {
			if !strings.Contains(p.Message, "is no directory") { // prepare.sh and the Job make the repository
				t.Error(p)
			}
		}
		if spec == nil || len(spec.Items) != n {
			t.Errorf("%s: %+v", name, spec)
		}
	}
	p := newFixture(t, "true", "")
	if err := os.CopyFS(p.path("examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	p.setenv = []string{"PART=api"}
	out, _, code := p.try("", "lint", "--strict", "examples/batch-in-cluster/harness.yaml")
	if code != 0 || !strings.Contains(out, "no problems") {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestTheServerOfTheExampleApproves runs an agent whose questions examples/approvals/server.py answers.
func TestTheServerOfTheExampleApproves(t *testing.T) {
	testenv.Need(t, testenv.Program("/usr/bin/python3"))
	// A command chooses its argv[0] itself: it decides nothing.
	p := newFixture(t, `bash -c 'exec -a /usr/bin/rm touch "$AGENTSH_OUTPUT_DIR/made"'`, "")
	p.asks("webhook")
	p.write("key", webhookKey+"\n", 0o600)
	for word, want := range map[string]int{"/usr/bin/rm": 1, "touch": 1, "/usr/bin/touch": 0} {
		script, err := filepath.Abs("../../examples/approvals/server.py")
		if err != nil {
			t.Fatal(err)
		}
		server := exec.CommandContext(t.Context(), "/usr/bin/python3", "-B", script, p.path("key"), "0", word)
		said, err := server.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		port, err := bufio.NewReader(said).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		p.write("config/agentsh/agentctl.yaml",
			fmt.Sprintf("approvals: {webhook: 'http://127.0.0.1:%s/', key_file: ../../key}\n", strings.TrimSpace(port)), 0o644)
		p.setenv = []string{"XDG_CONFIG_HOME=" + p.path("config")}
		if r, code := p.run(); (code == controller.ExitDone) != (want == 0) {
			t.Errorf("%s: exit code %d: %+v", word, code, r.Error)
		}
		_ = server.Process.Kill()
		_ = server.Wait()
	}
}
