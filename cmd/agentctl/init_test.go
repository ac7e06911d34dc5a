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
	bin := testenv.Programs(t)
	dir := t.TempDir()
	files, err := exampleFiles()
	if err == nil {
		_, err = writeFiles(filepath.Join(dir, "demo"), files)
	}
	if err != nil {
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
	out := run(filepath.Join(bin, "agentctl"), "run", "demo/harness/hello.yaml", "--repo", "repo", "--out", "out", "--forge", "github")
	if !strings.Contains(out, "the agent greeted tester in GREETING") {
		t.Errorf("post_script did not see env.runner:\n%s", out)
	}
	branch := strings.TrimSpace(run("git", "-C", "repo", "for-each-ref", "--format=%(refname)", "refs/heads/agentctl"))
	if got := run("git", "-C", "repo", "show", branch+":GREETING"); got != "Hello from GitHub, tester\n" {
		t.Errorf("the agent wrote %q", got)
	}
}

// TestAHarnessOfInitForEachRuntimeIsSound checks the files of each runtime: lint
// finds nothing, and the tests of the policy hold. The programs themselves run
// in test/agents.
func TestAHarnessOfInitForEachRuntimeIsSound(t *testing.T) {
	testenv.Need(t, testenv.Root)
	bin := testenv.Programs(t)
	dir := t.TempDir()
	for _, name := range []string{"claude", "codex", "node", "home/x/node_modules/@google/gemini-cli/bundle/gemini.js"} {
		script := "#!/bin/sh\n"
		if strings.HasSuffix(name, ".js") {
			script = "#!/usr/bin/env node\n"
		}
		name = filepath.Join(dir, "bin", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gemini := dir + "/bin/home/x/node_modules/@google/gemini-cli/bundle/gemini.js"
	for runtime, want := range map[string]string{
		"claude": `command: ["` + dir + `/bin/claude"]`, "codex": `command: ["` + dir + `/bin/codex"]`,
		"gemini": `command: ["` + dir + `/bin/node","` + gemini + `"]`, "opencode": "# opencode was not found on this machine",
	} {
		t.Run(runtime, func(t *testing.T) {
			to := filepath.Join(dir, runtime)
			args := []string{"init", "--runtime", runtime, to}
			if runtime == "gemini" {
				args = append(args, "--program", gemini)
			}
			for _, c := range [][]string{append([]string{"agentctl"}, args...), {"agentctl", "lint", to},
				{"agentsh", "policy", "test", to + "/policies/mender_test.yaml"}} {
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, c[0]), c[1:]...)
				cmd.Env = []string{"PATH=" + dir + "/bin", "HOME=/nonexistent"}
				out, err := cmd.CombinedOutput()
				if err != nil || c[1] == "lint" && (strings.Contains(string(out), ": error:") || strings.Contains(string(out), ": warning:")) {
					t.Fatalf("%s: %v\n%s", strings.Join(c, " "), err, out)
				}
			}
			text, err := os.ReadFile(to + "/harness/mender.yaml")
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
	if _, err := starterFiles("claude", "/nonexistent"); err == nil || !strings.Contains(err.Error(), "no executable file /nonexistent") {
		t.Error(err)
	}
	if _, err := starterFiles("x", ""); err == nil || !strings.Contains(err.Error(), "one of command, claude, codex, gemini, opencode") {
		t.Error(err)
	}
}
