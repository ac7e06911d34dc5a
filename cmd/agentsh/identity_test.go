package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
