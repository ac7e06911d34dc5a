package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

func TestTheExampleOfInitRuns(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := writeExample(filepath.Join(dir, "demo")); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir+"/state", "USER=tester", "PATH="+bin+":"+os.Getenv("PATH"),
			"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("git", "init", "-q", "-b", "main", "repo")
	run("git", "-C", "repo", "commit", "-q", "--allow-empty", "-m", "first")
	out := run("agentctl", "run", "demo/harness/hello.yaml", "--repo", "repo", "--out", "out", "--forge", "github")
	if !strings.Contains(out, "the agent greeted tester in GREETING") {
		t.Errorf("post_script did not see env.runner:\n%s", out)
	}
	branch := strings.TrimSpace(run("git", "-C", "repo", "for-each-ref", "--format=%(refname)", "refs/heads/agentctl"))
	if got := run("git", "-C", "repo", "show", branch+":GREETING"); got != "Hello from GitHub, tester\n" {
		t.Errorf("the agent wrote %q", got)
	}
}
