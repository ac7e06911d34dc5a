package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// packBox is a session under a shipped policy. A person who allows everything
// answers its questions.
func packBox(t *testing.T, pack string) *box {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git-lfs"))
	cfg, log := testConfig(t, testPolicy)
	file, err := filepath.Abs(filepath.Join("..", "packaging", "policies", pack+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := "version: 1\nname: asked\nextends: [" + file + "]\napprovals: {via: channel}\n"
	cfg.Policy, err = syntax.Load(
		policy.Source{Name: "/asked.yaml", Data: []byte(text)},
		syntax.Options{ReadFile: os.ReadFile, Vars: cfg.Policy.Vars()},
	)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Channel = true
	return openAnswered(t, cfg, log, func(wire.Pending) bool { return true })
}

const localWork = `set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x GIT_EDITOR=true GIT_ALLOW_PROTOCOL=file LC_ALL=C
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
git pull -q --rebase o main
git clone -q . ../c
git remote rename o p
git remote prune p
git branch m
git branch -q -d m
git gc -q --prune=now
git prune
`

const submoduleWork = `
git submodule --quiet add "$PWD/../c" sub
git commit -qm sub
git submodule --quiet update --init
git clone -q --recurse-submodules . ../d
test -f ../d/sub/a
`

const pushWork = `
git push -qu p main
git checkout -qb y
git push -qu p y
git branch -q -m y z
git checkout -q main
git branch -q -d z
`

// lfsWork uses HOOKS, an option of git lfs install.
const lfsWork = `
git lfs install --local HOOKS
git lfs track '*.bin'
echo large > x.bin
git add .gitattributes x.bin
git commit -qm lfs
git cat-file -p HEAD:x.bin | grep -q oid
git lfs ls-files | grep -q x.bin
`

const lfsPush = `
git lfs push p main
git push -q p main
git lfs fetch p main
git clone -q ../b.git ../l
cd ../l
git lfs install --local HOOKS
git lfs pull
grep -q large x.bin
cd ../r
git remote remove p
`

const lfsPull = `
git clone -q . ../l
cd ../l
git lfs install --local HOOKS
git lfs pull
grep -q large x.bin
cd ../r
git remote remove p
`

// TestGitWorksUnderEveryPack runs what a developer does with git in a session
// under each shipped policy. Of all that, ci-strict refuses to push.
func TestGitWorksUnderEveryPack(t *testing.T) {
	const all = localWork + remoteWork + submoduleWork + pushWork + lfsWork + lfsPush
	for pack, script := range map[string]string{
		"default":       all,
		"agent-sandbox": all,
		"agent-strict":  strings.ReplaceAll(all, "HOOKS", "--skip-repo"), // no program of the project runs
		"ci-strict":     localWork + remoteWork + submoduleWork + lfsWork + lfsPull + "! git push -q ../b.git main\n",
		"dev-safe":      all,
		"observe":       all,
	} {
		t.Run(pack, func(t *testing.T) {
			b := packBox(t, pack)
			if exit, out := b.run(t, "sh", "-c", strings.ReplaceAll(script, "HOOKS", "")); exit.Code != 0 {
				t.Errorf("%+v\n%s\n%+v", exit, out, b.events(t, func(e wire.Event) bool { return e.Decision == "deny" }))
			}
			wantAsked(t, b, pack)
			wantGuarded(t, b)
		})
	}
}

// wantAsked checks that a person was asked about what the caller typed, and not
// about what git started for it.
func wantAsked(t *testing.T, b *box, pack string) {
	t.Helper()
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventApproval && e.Phase == "begin" }) {
		if pack != "dev-safe" || len(e.Argv) < 2 || e.Argv[1] != "push" {
			t.Errorf("asked about %q", e.Argv)
		}
	}
}

// wantGuarded checks that git_guard refuses what would run a program of the
// agent when somebody uses git in the repository later.
func wantGuarded(t *testing.T, b *box) {
	t.Helper()
	mark := filepath.Join(t.TempDir(), "mark")
	exit, out := b.run(
		t,
		"sh",
		"-c",
		`cd r; printf '[core]\n\tfsmonitor = "touch `+mark+`"\n' > ../x; mv ../x .git/config; printf '#!/bin/sh\ntouch `+mark+`\n' > .git/hooks/pre-commit`,
	)
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
}

// projectWork is in the project itself, which rules of packs name by its path.
const projectWork = `set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x GIT_EDITOR=true GIT_ALLOW_PROTOCOL=file LC_ALL=C
git init -q -b main .
echo one > a
git add a
git commit -qm one
git branch x
echo two > a
git stash -q
git stash pop -q
git commit -qam two
git rebase -q x
git config user.name A
git clone -q --bare . b.git
git remote add o ./b.git
git fetch -q o
git branch -q -m x y
git branch -q -d y
git pack-refs --all
git gc -q --prune=now
git remote rename o p
git submodule --quiet add ./b.git sub
git commit -qm sub
git submodule --quiet update --init
git worktree add -q w
git worktree remove w
git branch -q -d w
`

func TestGitWorksInTheProjectItself(t *testing.T) {
	for _, pack := range []string{"default", "agent-sandbox", "agent-strict", "ci-strict", "dev-safe", "observe"} {
		t.Run(pack, func(t *testing.T) {
			b := packBox(t, pack)
			script := projectWork + "git push -qu p main\n"
			if pack == "ci-strict" {
				script = projectWork
			}
			if exit, out := b.run(t, "sh", "-c", script); exit.Code != 0 {
				t.Errorf("%+v\n%s\n%+v", exit, out, b.events(t, func(e wire.Event) bool { return e.Decision == "deny" }))
			}
		})
	}
}

func TestTheGuardNeedsTheFileServer(t *testing.T) {
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\ngit_guard: true\n")}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openGroups(p, nil, probe.Missing{probe.FileServer: errors.New("none")}); err == nil || !strings.Contains(err.Error(), "p.yaml:3:12: git_guard cannot be enforced here: it needs the file server") {
		t.Errorf("%v", err)
	}
	off, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\ngit_guard: false\n")}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	running := fixed{old: off, confined: confined{Confinement: view.New(view.Options{})}}
	if problems := running.changedBy(p); len(problems) != 1 || !strings.Contains(problems[0].Message, "git_guard") {
		t.Errorf("turned on in a running session: %v", problems)
	}
}
