package supervisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// packBox is a session under a shipped policy.
func packBox(t *testing.T, pack string) *box {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, testPolicy)
	file := filepath.Join("..", "packaging", "policies", pack+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Policy, err = policy.Load(policy.Source{Name: file, Data: data}, policy.Options{ReadFile: os.ReadFile, Vars: cfg.Policy.Vars()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
}

const localWork = `set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x GIT_EDITOR=true LC_ALL=C
git init -q -b main r
cd r
echo one > a
git add a
git commit -qm one
echo two > a
git commit -qam two
git commit -q --amend -m 2
git branch x
git tag t
git stash list
echo three > a
git stash -q
git stash pop -q
git commit -qam three
git rebase -q x~1
git rebase -qi HEAD~1
git worktree add -q ../w
git worktree remove ../w
git status
`

const remoteWork = `
git config user.name A
git config user.email a@x
git clone -q --bare . ../b.git
git remote add o ../b.git
git remote set-url o "$PWD/../b.git"
git fetch -q --prune o
git clone -q . ../c
git remote rename o p
git gc -q
`

const submoduleWork = `
git -c protocol.file.allow=always submodule --quiet add ../c sub
git commit -qm sub
git -c protocol.file.allow=always submodule --quiet update --init
`

const pushWork = `
git push -qu p main
git checkout -qb y
git push -qu p y
git branch -q -m y z
git checkout -q main
git branch -q -D z
git remote remove p
`

// withoutReset is for packs that refuse git reset --hard, which git stash and git
// worktree add run.
func withoutReset(script string) string {
	return strings.NewReplacer("git stash -q\n", "", "git stash pop -q\n", "", "git worktree add -q ../w\n", "", "git worktree remove ../w\n", "").Replace(script)
}

// TestGitWorksUnderEveryPack runs what a developer does with git in a session
// under each shipped policy, as far as its command rules allow it.
func TestGitWorksUnderEveryPack(t *testing.T) {
	for pack, script := range map[string]string{
		"default":       localWork + remoteWork + submoduleWork + pushWork,
		"agent-sandbox": localWork + remoteWork + pushWork,
		"agent-strict":  withoutReset(localWork),
		"ci-strict":     localWork + "git config user.name A\ngit clone -q . ../c\n" + submoduleWork,
		"dev-safe":      withoutReset(localWork) + remoteWork,
		"observe":       localWork + remoteWork + submoduleWork + pushWork,
	} {
		t.Run(pack, func(t *testing.T) {
			b := packBox(t, pack)
			if exit, out := b.run(t, "sh", "-c", script); exit.Code != 0 {
				t.Errorf("%+v\n%s\n%+v", exit, out, b.events(t, func(e wire.Event) bool { return e.Decision == "deny" }))
			}
			mark := filepath.Join(t.TempDir(), "mark")
			exit, out := b.run(t, "sh", "-c", `cd r; printf '[core]\n\tfsmonitor = "touch `+mark+`"\n' > ../x; mv ../x .git/config; printf '#!/bin/sh\ntouch `+mark+`\n' > .git/hooks/pre-commit`)
			if exit.Code == 0 || !strings.Contains(out, "Operation not permitted") {
				t.Errorf("%+v %s", exit, out)
			}
			denied := b.events(t, func(e wire.Event) bool { return e.Rule != nil && e.Rule.Name == "git_guard" })
			if len(denied) != 2 || !strings.Contains(denied[0].Message, "/r/.git/config:2: core.fsmonitor: ") || denied[0].Hint == "" {
				t.Errorf("events: %+v", denied)
			}
			status := exec.Command("git", "-c", "safe.directory=*", "status")
			status.Dir = filepath.Join(b.workspace, "r")
			_ = status.Run() // what it says is of no interest
			if _, err := os.Stat(mark); err == nil {
				t.Error("git outside ran a program")
			}
		})
	}
}

// projectWork is in the project itself, which rules of packs name by its path.
const projectWork = `set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x GIT_EDITOR=true LC_ALL=C
git init -q -b main .
echo one > a
git add a
git commit -qm one
git branch x
git rebase -q x
`

func TestGitWorksInTheProjectItself(t *testing.T) {
	settings := "git config user.name A\ngit clone -q --bare . b.git\n"
	remotes := "git remote add o ./b.git\ngit fetch -q o\ngit branch -q -m x y\ngit branch -d y\ngit pack-refs --all\ngit gc -q\ngit remote rename o p\n"
	for pack, script := range map[string]string{
		"default":       projectWork + settings + remotes + "git push -qu p main\n",
		"agent-sandbox": projectWork + settings + remotes + "git push -qu p main\n",
		"agent-strict":  projectWork,
		"ci-strict":     projectWork + settings,
		"dev-safe":      projectWork + settings + remotes,
		"observe":       projectWork + settings + remotes + "git push -qu p main\n",
	} {
		t.Run(pack, func(t *testing.T) {
			b := packBox(t, pack)
			if exit, out := b.run(t, "sh", "-c", script); exit.Code != 0 {
				t.Errorf("%+v\n%s\n%+v", exit, out, b.events(t, func(e wire.Event) bool { return e.Decision == "deny" }))
			}
		})
	}
}

func TestTheGuardNeedsTheFileServer(t *testing.T) {
	p, err := policy.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\ngit_guard: true\n")}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{cfg: Config{Policy: p}, lost: lacks{lossFileServer: errors.New("none")}}
	if err := s.hold(); err == nil || !strings.Contains(err.Error(), "p.yaml:3:12: git_guard cannot be held here: it needs the file server") {
		t.Errorf("%v", err)
	}
	off, err := policy.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\ngit_guard: false\n")}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	on := &Session{}
	if problems := on.settled(off, p); len(problems) != 1 || !strings.Contains(problems[0].Message, "git_guard") {
		t.Errorf("turned on in a running session: %v", problems)
	}
}
