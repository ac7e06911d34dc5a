package policycmd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

const packs = "../../../packaging/policies"

func TestPacksPassTheirTests(t *testing.T) {
	dir, err := filepath.Abs(packs)
	if err != nil {
		t.Fatal(err)
	}
	out, code := agentsh(t, dir, "policy", "test", "--mutate", "--min", "100", ".")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for _, name := range []string{"default", "agent-sandbox", "agent-strict", "ci-strict", "dev-safe", "observe", "plain"} {
		if !strings.Contains(out, name+".yaml: coverage 100 %") || !strings.Contains(out, name+".yaml: ") {
			t.Errorf("%s was not tested:\n%s", name, out)
		}
	}
}

// TestPacksAreTestedOneByOne: a file without tests beside it would not be seen.
func TestPacksAreTestedOneByOne(t *testing.T) {
	files, err := filepath.Glob(packs + "/*.yaml")
	if err != nil || len(files) != 14 {
		t.Fatalf("%v, files are %q", err, files)
	}
	for _, f := range files {
		if stem, isTest := strings.CutSuffix(f, "_test.yaml"); !isTest && !slices.Contains(files, strings.TrimSuffix(f, ".yaml")+"_test.yaml") {
			t.Errorf("%s has no tests", stem)
		}
	}
}

// shippedPolicies are the packs and the policies of the examples.
func shippedPolicies(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{packs + "/*.yaml", "../../../examples/*/policy.yaml", "../../../examples/policies/*.yaml",
		"../../agentctl/example/policies/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.yaml") })
}

// TestShippedPoliciesHaveNoWarnings: each warning that one accepts would else be there.
func TestShippedPoliciesHaveNoWarnings(t *testing.T) {
	for _, name := range shippedPolicies(t) {
		p, err := loadPolicy(name, policytest.Vars())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range syntax.Lint(p) {
			t.Errorf("%s", w)
		}
		type at struct {
			policy.Position
			code string
		}
		accepted := map[at]bool{}
		for _, g := range ruleGroups {
			for _, rule := range p.Rules(g) {
				for _, code := range rule.Accepted {
					accepted[at{rule.Pos, code}] = true
				}
				rule.Accepted = nil
			}
		}
		for _, w := range syntax.Lint(p) {
			delete(accepted, at{w.Pos, w.Code})
		}
		if len(accepted) > 0 {
			t.Errorf("accepted are warnings that would not be there: %v", accepted)
		}
	}
}

// TestPoliciesProtectTheDirectoriesTheyNameFilesIn: a rule on .vscode/tasks.json
// is gone around by a link named .vscode.
func TestPoliciesProtectTheDirectoriesTheyNameFilesIn(t *testing.T) {
	for _, file := range shippedPolicies(t) {
		p, err := loadPolicy(file, policytest.Vars())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range syntax.Lint(p) {
			if w.Code == "open-directory" {
				t.Error(w)
			}
		}
	}
}

// openPack opens a sandbox under a shipped policy on a project with one commit.
func openPack(t *testing.T, name string) *scratch {
	t.Helper()
	p, err := loadPolicy(filepath.Join(packs, name+".yaml"), policytest.Vars())
	if err != nil {
		t.Fatal(err)
	}
	s, err := openScratch(t.Context(), p, func(s *scratch) error { return makeProject(t, s.dir) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// makeProject makes a repository of a small program in several languages.
func makeProject(t *testing.T, dir string) error {
	t.Helper()
	files := map[string]string{
		"go.mod": "module day\n\ngo 1.19\n", "a.go": "package day\n\n// Two is 2.\nfunc Two() int { return 2 }\n",
		"hello/main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
		"c/a.c":         "#include <stdio.h>\nint main(void) { puts(\"built\"); return 0; }\n", "Makefile": "a.out: c/a.c\n\tcc -o a.out c/a.c\n",
		"test_a.py": "import unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(2, 1 + 1)\n",
		"lib.json":  `{"name": "lib", "version": "1.0.0"}`, "package.json": `{"name": "day", "version": "1.0.0"}`, ".gitlab-ci.yml": "x: 1\n",
	}
	for name, text := range files {
		if err := plant(dir, filepath.Join(dir, name), []byte(text)); err != nil {
			return err
		}
	}
	script := `git init -q . && git config user.name day && git config user.email day@example.com && git add . && git commit -qm first && chmod -R a+rwX .`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir + "/.."}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestPacksStartAndRunTypicalCommands runs what a developer runs, and what an attacker
// tries, under each policy.
func TestPacksStartAndRunTypicalCommands(t *testing.T) {
	needSandbox(t)
	testenv.Need(
		t,
		testenv.Program("git"),
		testenv.Program("go"),
		testenv.Program("node"),
		testenv.Program("npm"),
		testenv.Program("make"),
		testenv.Program("cc"),
	)
	const all = "default agent-sandbox agent-strict ci-strict dev-safe observe plain"
	const building = "default agent-sandbox ci-strict dev-safe observe plain"
	tests := []struct{ packs, script, want string }{
		{all, "git status --short && git log --oneline | wc -l", "1"},
		{all, "echo x >> a.txt && git add a.txt && git commit -qm second && git log --format=%s -1", "second"},
		{all, "git switch -qc topic && git branch --show-current", "topic"},
		{"default agent-sandbox dev-safe observe", "git stash list; git tag v1; git merge -q topic; git worktree list | wc -l", "1"},
		{
			"default agent-sandbox observe",
			"git init -q --bare sub.git && git push -q ./sub.git HEAD:refs/heads/topic && git -C sub.git log --oneline topic | wc -l",
			"2",
		},
		{all, "gofmt -l . && go list ./...", "day"},
		{"agent-sandbox", "go run ./hello 2>&1", "hello"},
		{building, "make -s && ./a.out", "built"},
		{"agent-strict", "make -s; ./a.out || echo refused", "refused"},
		{all, "python3 -m unittest -q 2>&1", "OK"},
		{all, "node -e 'console.log(6*7)'", "42"},
		{
			building,
			"mkdir lib && cp lib.json lib/package.json && npm install --offline --no-audit --no-fund ./lib >/dev/null && ls node_modules",
			"lib",
		},
		{all, "ls *.go | xargs grep -l Two | sort | head -1", "a.go"},
		{all, "tar cf x.tar a.go && tar tf x.tar", "a.go"},
		{all, "timeout 5 sh -c 'echo timed'", "timed"},
		{"default agent-sandbox ci-strict observe", "mkdir -p d/e && rm -rf d && ls -d d 2>/dev/null || echo removed", "removed"},

		{all, "python3 -c 'import subprocess; p = subprocess.Popen([\"sleep\", \"30\"]); p.terminate(); print(p.wait())'", "-15"},
		{all, "python3 -c 'import os; os.kill(1, 15)' 2>/dev/null || echo refused", "refused"},
		{"default agent-sandbox agent-strict ci-strict dev-safe", "echo x > .git/hooks/pre-commit || echo refused", "refused"},
		{"default agent-sandbox agent-strict ci-strict dev-safe", "git config core.pager x || echo refused", "refused"},
		{"default agent-sandbox agent-strict ci-strict dev-safe plain", "cat /etc/shadow || echo refused", "refused"},
		{"agent-sandbox agent-strict ci-strict dev-safe", "echo x > new && mv new .gitlab-ci.yml || echo refused", "refused"},
		{"agent-sandbox agent-strict ci-strict dev-safe", "git push -f . HEAD:main || echo refused", "refused"},
		{"agent-sandbox agent-strict ci-strict", "cp /usr/bin/pkill k && ./k -V || echo refused", "refused"},
		{"agent-sandbox ci-strict default dev-safe observe", "sleep 60 & kill $!; bash -c 'sleep 60 & kill %1; wait $! || echo ended-$?'", "ended-143"},
		{"agent-sandbox", "git; git --version --build-options", "usage:"},
		{
			"agent-sandbox agent-strict",
			"mkdir vs && echo {} > vs/tasks.json && { ln -s vs .vscode || mv vs .vscode || echo refused; }",
			"refused",
		},
		{"agent-sandbox agent-strict ci-strict", "mkdir -p gh/workflows && { ln -s gh .github || mv gh .github || echo refused; }", "refused"},
		{
			"default agent-sandbox agent-strict ci-strict dev-safe",
			"cp -r .git g && printf '[core]\n\tfsmonitor = ./x\n' > new && mv new g/config || echo refused",
			"refused",
		},
		{"agent-sandbox", "git -c alias.p='push -f' p || echo refused", "refused"},
		{"agent-sandbox", "tar cf t.tar a.go; TAR_OPTIONS='--to-command=cat' tar xf t.tar >got; [ -s got ] || echo refused", "refused"},
		{"agent-sandbox", "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=eve git config --get user.name", "day"},
		{"dev-safe agent-strict", "rm -rf d || echo refused", "refused"},
		{all, "cat /root/.bashrc || ls -d /home/* 2>/dev/null | grep -v '^/home/agent' | grep / || echo refused", "refused"},
		{all, "python3 -c 'import socket; socket.create_connection((\"169.254.169.254\", 80), 2)' 2>/dev/null || echo refused", "refused"},
	}
	for name := range strings.FieldsSeq(all) {
		t.Run(name, func(t *testing.T) {
			s := openPack(t, name)
			for _, tt := range tests {
				if !slices.Contains(strings.Fields(tt.packs), name) {
					continue
				}
				o, err := s.run(t.Context(), "bash", "-c", "exec 2>&1\n"+tt.script) // one pipe: messages and words stay apart
				if err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(strings.Fields(string(o.output)), func(w string) bool { return w == tt.want }) {
					t.Errorf("%s\nended as %s %d %s, printed\n%swant %s in it", tt.script, o.exit.Kind, o.exit.Code, o.exit.Message, o.output, tt.want)
				}
			}
		})
	}
}
