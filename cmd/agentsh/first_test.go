package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// nodeProject makes a project whose packages come from a registry of this machine.
func nodeProject(t *testing.T, dir string) {
	t.Helper()
	_, port, _ := strings.Cut(npmRegistry(t).URL, "127.0.0.1:")
	cloneOf(t, dir, map[string]string{
		"package.json": `{"name": "day", "version": "1.0.0", "dependencies": {"answer": "^1.0.0"}, "scripts": {"test": "node --test"}}`,
		".npmrc":       "registry=http://localhost:" + port + "/\naudit=false\nfund=false\nupdate-notifier=false\n",
		"a.test.js":    "require('node:test')('it', () => require('node:assert').equal(require('answer'), 42))\n",
		".env":         "TOKEN=not-for-commands\n",
	})
}

// cloneOf makes a git repository with files.
func cloneOf(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAPolicyOfOnesOwnTakesOneRound does what doc/laptop.md says, in a clone of a node
// project whose packages come from a registry of this machine. A round is a change of the
// policy: there is none.
func TestAPolicyOfOnesOwnTakesOneRound(t *testing.T) {
	dir := workDir(t)
	testenv.Need(t, testenv.Program("npm"), testenv.Program("node"), testenv.Program("git"))
	clone := filepath.Join(dir, "work")
	nodeProject(t, clone)
	followDocument(t, dir, clone, "project")
}

// TestProjectsOfOtherStacksTakeOneRound does the same for projects whose packages come from
// an index that the project names, and from a proxy that a variable of the user names.
func TestProjectsOfOtherStacksTakeOneRound(t *testing.T) {
	dir := workDir(t)
	testenv.Need(t, testenv.Program("python3"), testenv.Program("go"), testenv.Program("git"))
	python, module := filepath.Join(dir, "work", "python"), filepath.Join(dir, "work", "go")
	cloneOf(t, python, map[string]string{
		"requirements.txt": "--index-url " + pythonIndex(t) + "/simple\nanswer==1.0.0\n",
		"test_answer.py":   "import unittest, answer\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(answer.VALUE, 42)\n",
	})
	followDocument(t, dir, python, "python project")
	cloneOf(t, module, map[string]string{
		"go.mod": "module day\n\ngo 1.19\n\nrequire example.com/answer v1.0.0\n",
		"day_test.go": "package day\n\nimport (\n\t\"testing\"\n\n\t\"example.com/answer\"\n)\n\n" +
			"func TestAnswer(t *testing.T) {\n\tif answer.Value != 42 {\n\t\tt.Fatal()\n\t}\n}\n",
	})
	followDocument(t, dir, module, "go project", "GOPROXY="+moduleProxy(t), "GONOSUMDB=example.com")
}

// followDocument does what a part of doc/laptop.md says, in a clone.
func followDocument(t *testing.T, dir, clone, part string, vars ...string) {
	t.Helper()
	packs, err := filepath.Abs("../../packaging/policies/agent-sandbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range documented(t, "../../doc/laptop.md", part) {
		args := strings.Fields(step.line)
		if args[0] != "agentsh" {
			t.Fatalf("not a command of agentsh: %s", step.line)
		}
		if args[1] == "init" {
			args = append(args, "--pack", packs)
		}
		cmd := program(t, dir, args[1:]...)
		cmd.Dir, cmd.Env = clone, append(cmd.Env, vars...)
		out, err := cmd.CombinedOutput()
		if code := exitCode(err); code != step.code || !strings.Contains(string(out), step.prints) {
			t.Fatalf("%s: exit %d, want %d and %q\n%s", step.line, code, step.code, step.prints, out)
		}
	}
}

// TestWorkWithARegistryOfTheMachineIsLearned records work under the pack that refuses
// nothing, writes a policy from the log and does the work again under it, as it is.
func TestWorkWithARegistryOfTheMachineIsLearned(t *testing.T) {
	dir := workDir(t)
	testenv.Need(t, testenv.Program("npm"), testenv.Program("node"), testenv.Program("git"))
	observe, err := filepath.Abs("../../packaging/policies/observe.yaml")
	if err != nil {
		t.Fatal(err)
	}
	clone, learned, log := filepath.Join(dir, "work"), filepath.Join(dir, "learned.yaml"), filepath.Join(dir, "audit.jsonl")
	nodeProject(t, clone)
	// What the user has installed in the own home is found, too. Commands can write /tmp, so it is elsewhere.
	home, err := os.MkdirTemp("/var/lib", "agentsh-test-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	bin := filepath.Join(home, ".local/bin")
	if err := errors.Join(os.Chmod(home, 0o755), os.MkdirAll(bin, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "greet"), []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	do := func(want string, args ...string) string {
		t.Helper()
		cmd := program(t, dir, args...)
		cmd.Dir, cmd.Env = clone, append(cmd.Env, "HOME="+home)
		var out, problems strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &problems
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), want) {
			t.Fatalf("%q: %v, want %q\n%s%s", args, err, want, out.String(), problems.String())
		}
		return out.String()
	}
	const work = "greet && npm install && npm test; node -e 'require(`net`).connect(1, `localhost`).on(`error`, e => console.log((e.errors ?? [e])[0].code))'"
	do("ECONNREFUSED\n", "exec", "-p", observe, "--audit", log, "--", "bash", "-c", work)
	text := do("domains: [localhost]", "policy", "learn", "--workspace", clone, log)
	if err := os.WriteFile(learned, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(clone, "node_modules")); err != nil {
		t.Fatal(err)
	}
	do("pass 1", "exec", "-p", learned, "--", "bash", "-c", "npm install && npm test")
	do("hello\n", "exec", "-p", learned, "--", "bash", "-c", "greet; stat -c %a /etc/shadow 2>&1; ! cat /etc/shadow 2>&1")
}

// step is a command of a document. Behind # stands what it prints, and perhaps its exit
// status.
type step struct {
	line, prints string
	code         int
}

// documented are the commands of a part of a document.
func documented(t *testing.T, file, part string) (steps []step) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "<!-- test: "+part+" -->\n")
	text, _, ended := strings.Cut(text, "<!-- end -->")
	if !found || !ended {
		t.Fatalf("%s has no part %s", file, part)
	}
	for line := range strings.Lines(text) {
		command, prints, _ := strings.Cut(strings.TrimSpace(line), " # ")
		if command == "" {
			continue
		}
		s := step{line: strings.TrimSpace(command), prints: strings.TrimSpace(prints)}
		if rest, denied := strings.CutPrefix(s.prints, "126: "); denied {
			s.prints, s.code = rest, 126
		}
		steps = append(steps, s)
	}
	return steps
}
