package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// userSettings are git's settings of a user. Only the name and the email may come in.
const userSettings = `[alias]
	leak = !echo of-the-user
[credential]
	helper = store --file=of-the-user
[core]
	pager = of-the-user
[user]
	name = "Day \"of\" Work"
	email = day@example.com
	signingKey = of-the-user
`

// TestGitHasTheIdentityOfTheUserAndNothingElse commits in a session of root and in one of
// a user, under policies that set git's variables and under one that does not.
func TestGitHasTheIdentityOfTheUserAndNothingElse(t *testing.T) {
	const identity = `Day "of" Work <day@example.com>` + "\n"
	tests := []struct {
		name, policy, config, script string
		env                          []string
		want                         string
	}{
		{name: "agent-sandbox", policy: "agent-sandbox", want: identity + identity},
		{name: "default", policy: "default", want: identity + identity},
		{name: "agent-strict", policy: "agent-strict", want: identity + identity},
		{
			name: "the repository's own wins", policy: "agent-sandbox", script: "git config user.name Own && git config user.email o@x && ",
			want: "Own <o@x>\nOwn <o@x>\n",
		},
		{
			name: "the environment wins", policy: "default", want: "Env <e@x>\nEnv <e@x>\n",
			env: []string{"GIT_AUTHOR_NAME=Env", "GIT_AUTHOR_EMAIL=e@x", "GIT_COMMITTER_NAME=Env", "GIT_COMMITTER_EMAIL=e@x"},
		},
		{name: "turned off", policy: "default", config: "sandbox: {git_identity: false}\n", want: "none\n"},
	}
	for _, who := range []string{"root", "1000"} {
		for _, tt := range tests {
			t.Run(who+" "+tt.name, func(t *testing.T) {
				dir := workDir(t)
				as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
				if who != "root" {
					as = asUser(t, dir)
				}
				inside := filepath.Join(dir, "agentsh")
				self, err := os.ReadFile("/proc/self/exe")
				if err != nil {
					t.Fatal(err)
				}
				packs, err := filepath.Abs("../../packaging/policies")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(filepath.Join(dir, "policies"), os.DirFS(packs)); err != nil {
					t.Fatal(err)
				}
				policy := filepath.Join(dir, "policies", tt.policy+".yaml")
				files := map[string]string{".gitconfig": userSettings, "config.yaml": "version: 1\npolicy: " + policy + "\n" + tt.config}
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(inside, self, 0o755); err != nil {
					t.Fatal(err)
				}
				script := "git init -q . && " + tt.script + `echo x >x && git add x && { git commit -qm x || echo none; }
git log -1 --format='%an <%ae>' && git log -1 --format='%cn <%ce>'
git leak; git config --get-regexp '.*'; cat ~/.gitconfig; env`
				args := []string{"exec", "--config", "config.yaml", "-w", "work"}
				for _, v := range tt.env {
					args = append(args, "--env", v)
				}
				cmd := program(t, dir, append(args, "--", "/bin/bash", "-c", script)...)
				cmd.Path = inside
				cmd = as(cmd)
				var out strings.Builder
				cmd.Stdout = &out
				runToEnd(t, cmd)
				if !strings.HasPrefix(out.String(), tt.want) || strings.Contains(out.String(), "of-the-user") {
					t.Errorf("printed\n%s", &out)
				}
			})
		}
	}
}

// TestGitHasTheIdentityWithoutNamespaces: a session that Landlock alone confines has it.
func TestGitHasTheIdentityWithoutNamespaces(t *testing.T) {
	dir := workDir(t)
	write(t, filepath.Join(dir, ".gitconfig"), userSettings)
	testenv.Need(t, testenv.Root)
	if err := os.Chown(filepath.Join(dir, "work"), 60700, 60700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "agentsh")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	pack, err := filepath.Abs("../../packaging/policies/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	like := program(t, dir)
	cmd := testenv.Without(t, []string{testenv.WithoutNamespaces}, link, "exec", "--degraded", "any", "-p", pack, "-w", "work",
		"--", "bash", "-c",
		"git init -q . && git commit -q --allow-empty -m x && git log --format='%an <%ae>, %cn <%ce>'; git leak; git config --get-regexp alias")
	cmd.Dir, cmd.Env = like.Dir, like.Env
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	const who = `Day "of" Work <day@example.com>`
	if string(out) != who+", "+who+"\n" {
		t.Errorf("%v: printed %s\n%s", err, out, &errs)
	}
}

// TestGitHasTheIdentityInAShim: the home of the user database counts there, because the
// caller chooses HOME.
func TestGitHasTheIdentityInAShim(t *testing.T) {
	root := shimmedImage(t)
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "root/.gitconfig": userSettings,
		"caller/.gitconfig": "[user]\n\tname = Caller\n\temail = caller@example.com\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, name), text)
	}
	out, code := runInImage(t, root, "", "/usr/bin/env", "-i", "HOME=/caller", "PATH=/usr/bin", "/bin/sh", "-c",
		`git init -q r && cd r && git commit -q --allow-empty -m x && git log --format='by %an <%ae>, %cn <%ce>'; git config --get-regexp alias`)
	const who = `Day "of" Work <day@example.com>`
	if code != 1 || !strings.Contains(out, "by "+who+", "+who+"\n") || strings.Contains(out, "of-the-user") {
		t.Errorf("exit %d: printed %s", code, out)
	}
}

// TestARepositoryUsedOutsideIsUpToDate: a session of root shows another owner of the files. Git
// neither takes them for changed, nor reads them all and writes its index again.
func TestARepositoryUsedOutsideIsUpToDate(t *testing.T) {
	dir := workDir(t)
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	work := filepath.Join(dir, "work")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", work, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q", ".")
	write(t, filepath.Join(work, "old"), "old\n")
	write(t, filepath.Join(work, "new"), "old\n")
	git("add", ".")
	git("commit", "-q", "-m", "x")
	pack, err := filepath.Abs("../../packaging/policies/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, dir, "exec", "-p", pack, "-w", "work", "--", "sh", "-c", "git diff-files; echo longer >new; git diff-files --name-only; git add new")
	var out strings.Builder
	cmd.Stdout = &out
	runToEnd(t, cmd)
	if out.String() != "new\n" {
		t.Errorf("changed for git inside:\n%s", &out)
	}
	if left := git("diff-files", "--name-only"); strings.Contains(left, "old") {
		t.Errorf("changed for git outside: %s", left)
	}
}
