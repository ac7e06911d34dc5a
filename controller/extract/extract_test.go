package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/controller/scan"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func paths(entries []wire.ManifestEntry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, string(e.Path))
	}
	return all
}

func TestNothingChangedIsAnEmptyResult(t *testing.T) {
	testenv.Need(t, testenv.Program("git"))
	p := newFakeSandbox(t)
	res, err := p.collect()
	if err != nil || res.Branch != "" || res.Dir != "" || res.Partial || len(res.Changed)+len(res.Deleted)+len(res.Commits) != 0 {
		t.Errorf("%+v %v", res, err)
	}
	if names, _ := os.ReadDir(p.out); len(names) != 0 {
		t.Errorf("made %v", names)
	}
}

func TestCommitsAndFilesComeOut(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.repo, `echo one > new; git add new; git commit -qm one; echo after > edit; git commit -qam two
		rm -r dir; mkdir fresh; echo u > fresh/untracked; ln -s untracked fresh/link; ln -s /etc/passwd leak; chmod +x kept`)
	res, err := p.collect()
	if err != nil {
		t.Fatal(err)
	}
	head := p.sh(p.repo, "git rev-parse HEAD")
	if res.Branch != "agent/run-1" || len(res.Commits) != 2 || res.Commits[0] != head || res.Partial {
		t.Errorf("%+v", res)
	}
	if got := p.sh(p.target, "git rev-parse agent/run-1"); got != head {
		t.Errorf("branch is at %s, the agent's HEAD at %s", got, head)
	}
	if got := paths(res.Changed); !slices.Equal(got, []string{"fresh", "fresh/link", "fresh/untracked", "new", "edit", "kept"}) {
		t.Errorf("changed %q", got)
	}
	if !slices.Equal(res.Deleted, []string{"dir", "dir/gone"}) {
		t.Errorf("deleted %q", res.Deleted)
	}
	if len(res.Skipped) != 1 || !strings.Contains(res.Skipped[0], "leak") {
		t.Errorf("skipped %q", res.Skipped)
	}
	if data, _ := os.ReadFile(filepath.Join(res.Dir, "edit")); string(data) != "after\n" {
		t.Errorf("edit holds %q", data)
	}
	if info, err := os.Stat(filepath.Join(res.Dir, "kept")); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%v %v", info, err)
	}
	if got := p.sh(p.target, "git branch --show-current; git status --porcelain"); got != "main" {
		t.Errorf("the operator's working tree: %q", got)
	}
	p.outside()
}

func TestTheShapesOfARepositoryThatAnAgentLeaves(t *testing.T) {
	tests := map[string]struct {
		script            string
		commits, branches int
		partial           bool
	}{
		"a detached head":            {"git checkout -q --detach; git commit -q --allow-empty -m d", 1, 0, false},
		"another branch checked out": {"git checkout -q -b feature/x; git commit -q --allow-empty -m f", 1, 0, false},
		"two branches with work": {
			"git checkout -q -b a; git commit -q --allow-empty -m a; git checkout -q main; git commit -q --allow-empty -m m",
			1,
			1,
			false,
		},
		"work beside an old head": {"git checkout -q -b 'we$ird/näme'; git commit -q --allow-empty -m a; git checkout -q main", 0, 1, false},
		"branches with one host name": {
			"git checkout -q -b 'a/b'; git commit -q --allow-empty -m 1; git checkout -q -b a-b main; git commit -q --allow-empty -m 2; git checkout -q main",
			0,
			2,
			false,
		},
		"a head before the base": {
			"git checkout -q --orphan o; git commit -qm o; git commit -q --allow-empty -m p; git branch -qD main",
			2,
			0,
			false,
		},
		"a branch without a commit": {"git checkout -q --orphan empty", 0, 0, false},
		"a merge": {
			"git checkout -q -b s; git commit -q --allow-empty -m s; git checkout -q main; git commit -q --allow-empty -m m; git merge -q s -m j",
			3,
			0,
			false,
		},
		"an amended base":           {"git commit -q --amend -m rewritten", 1, 0, false},
		"no repository any more":    {"rm -rf .git", 0, 0, true},
		"a repository of its own":   {"rm -rf .git; git init -q; git commit -q --allow-empty -m x", 0, 0, true},
		"a head that names nothing": {"echo nonsense > .git/HEAD", 0, 0, true},
		"more branches than are taken": {
			"for i in $(seq 40); do git checkout -q -b b$i main; git commit -q --allow-empty -m $i; done",
			0,
			0,
			true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, tt.script+"; echo x > note")
			res, err := p.collect()
			if (err != nil) != tt.partial || res.Partial != tt.partial || len(res.Commits) != tt.commits || len(res.Branches) != tt.branches {
				t.Errorf("%+v %v", res, err)
			}
			if (res.Branch != "") != (tt.commits > 0) {
				t.Errorf("branch %q", res.Branch)
			}
			if !slices.Contains(paths(res.Changed), "note") {
				t.Errorf("changed %q", paths(res.Changed))
			}
			p.outside()
		})
	}
}

func TestARepositoryWithoutCommitsIsTakenWhole(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.target, "rm -rf .git && git init -q -b main")
	p.sh(p.repo, "rm -rf .git && git init -q && git add kept && git commit -qm first")
	p.base = ""
	res, err := p.collect()
	if err != nil || len(res.Commits) != 1 {
		t.Errorf("%+v %v", res, err)
	}
}

// hostile makes x, a program that leaves a mark when it runs on the host.
const hostile = `printf '#!/bin/sh\n[ -n "$INSIDE" ] || : > '"$HIT"'\ncat 2>/dev/null\n' > ../x; chmod +x ../x; X=$(readlink -f ../x); `

func TestNoCodeOfTheAgentRunsOnTheHost(t *testing.T) {
	tests := map[string]string{
		"fsmonitor":            `git config core.fsmonitor "$X"`,
		"hooks directory":      `mkdir h; for h in post-checkout reference-transaction pre-commit post-merge; do cp "$X" h/$h; done; git config core.hooksPath "$PWD/h"`,
		"hooks":                `for h in post-checkout reference-transaction pre-commit post-index-change; do cp "$X" .git/hooks/$h; done`,
		"filter":               `git config filter.p.clean "$X"; git config filter.p.smudge "$X"; git config filter.p.required true; echo "* filter=p" > .gitattributes; git add -A`,
		"textconv":             `git config diff.p.textconv "$X"; git config diff.external "$X"; echo "* diff=p" > .gitattributes`,
		"include":              `printf '[core]\n fsmonitor = %s\n hooksPath = %s\n' "$X" "$PWD" > cfg; git config include.path ../cfg`,
		"ssh command":          `git config core.sshCommand "$X"; git remote set-url origin ssh://h/x`,
		"ext transport":        `git config protocol.ext.allow always; git remote set-url origin "ext::$X"`,
		"pager and gpg":        `git config core.pager "$X"; git config gpg.program "$X"; git config log.showSignature true`,
		"upload pack":          `git config uploadpack.packObjectsHook "$X"; git config remote.origin.uploadpack "$X"`,
		"alternate refs":       `git config core.alternateRefsCommand "$X"`,
		"credential helper":    `git config credential.helper "!$X"; git config core.askPass "$X"`,
		"git file":             `cp -r .git evil; git --git-dir=evil config core.fsmonitor "$X"; rm -rf .git; echo "gitdir: ./evil" > .git`,
		"submodule":            `git init -q sub; git -C sub commit -q --allow-empty -m s; git -C sub config core.fsmonitor "$X"; git -c advice.addEmbeddedRepo=false add sub`,
		"submodule url":        `printf '[submodule "s"]\n path = s\n url = ext::%s\n' "$X" > .gitmodules; git add .gitmodules`,
		"bare repository":      `mkdir bare; cd bare; git init -q --bare .; git config core.fsmonitor "$X"; git config core.worktree "$PWD/.."; cd ..`,
		"nested git directory": `mkdir n; git init -q n; git -C n config core.fsmonitor "$X"; cp "$X" n/.git/hooks/post-checkout`,
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, hostile+script+`; echo b > edit; git commit -qam hostile || git commit -q --allow-empty -m hostile || :`)
			res, err := p.collect()
			if err != nil && !strings.Contains(err.Error(), "gitmodules") {
				t.Errorf("an ordinary result is lost: %v", err)
			}
			if err == nil && len(res.Commits) == 0 {
				t.Errorf("no commits: %+v", res)
			}
			filepath.Walk(p.out, func(name string, _ os.FileInfo, _ error) error {
				if filepath.Base(name) == ".git" {
					t.Errorf("%s came out", name)
				}
				return nil
			})
			config, _ := os.ReadFile(filepath.Join(p.target, ".git", "config"))
			if strings.Contains(string(config), "fsmonitor") {
				t.Errorf("the operator's configuration changed: %s", config)
			}
			p.outside()
		})
	}
}

// gitInside answers the sandbox's git with something else.
func gitInside(verb string, do func(wire.Streams) wire.Exit) func(wire.ExecRequest, wire.Streams) (wire.Exit, bool) {
	return func(req wire.ExecRequest, s wire.Streams) (wire.Exit, bool) {
		if !slices.Contains(req.Argv, verb) {
			return wire.Exit{}, false
		}
		return do(s), true
	}
}

func TestALyingSandboxIsRefused(t *testing.T) {
	zero := strings.Repeat("0", 40)
	say := func(text string) func(wire.Streams) wire.Exit {
		return func(s wire.Streams) wire.Exit {
			fmt.Fprint(s.Stdout, text)
			return wire.Exit{Kind: wire.ExitExited}
		}
	}
	tests := map[string]struct {
		verb string
		do   func(wire.Streams) wire.Exit
		want string
	}{
		"a bundle that is none":     {"bundle", say("PACK"), "starts with"},
		"a bundle without end":      {"bundle", say("# v2 git bundle\n-" + zero), "header does not end"},
		"a bundle of other refs":    {"bundle", say("# v2 git bundle\n" + zero + " refs/heads/main\n\n"), "not asked for"},
		"a bundle with a filter":    {"bundle", say("# v3 git bundle\n@filter=blob:none\n"), "needs"},
		"a bundle with an odd base": {"bundle", say("# v2 git bundle\n-main\n\n"), "builds on"},
		"a bundle without refs":     {"bundle", say("# v2 git bundle\n\n"), "holds 0 of 1"},
		"an empty bundle":           {"bundle", say(""), "starts with"},
		"a bundle above the size":   {"bundle", say(strings.Repeat("x", 1<<20)), "more bytes than are taken"},
		"a head that is an option":  {"rev-parse", say("--upload-pack=x"), "names"},
		"a ref that is an option":   {"for-each-ref", say(zero + " --exec=x\n"), "names"},
		"a ref outside heads":       {"for-each-ref", say(zero + " refs/tags/x\n"), "names"},
		"a list without end":        {"for-each-ref", say(strings.Repeat("y\n", 1<<20)), "more bytes than are taken"},
		"a git that dies": {
			"bundle",
			func(wire.Streams) wire.Exit { return wire.Exit{Kind: wire.ExitSignaled, Signal: 9} },
			"signaled 137",
		},
		"a git that the policy does deny": {
			"bundle",
			func(wire.Streams) wire.Exit { return wire.Exit{Kind: wire.ExitDenied, Message: "rule x"} },
			"rule x",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, "echo b > edit; git commit -qam x")
			p.run = gitInside(tt.verb, tt.do)
			in := p.input()
			in.MaxBundle = 100_000
			res, err := Collect(context.Background(), p.client, in)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
			if !res.Partial || res.Branch != "" || len(res.Changed) != 1 {
				t.Errorf("%+v", res)
			}
			if got := p.sh(p.target, "git for-each-ref --format='%(refname)'"); got != "refs/heads/main" {
				t.Errorf("the target has %q", got)
			}
			if names, _ := os.ReadDir(p.out); len(names) != 1 {
				t.Errorf("left %v", names)
			}
		})
	}
}

func TestMalformedObjectsDoNotReachTheTarget(t *testing.T) {
	tests := map[string]struct{ rule, reason, script string }{
		"a tree that holds .git": {
			scan.RuleRepository,
			".git",
			`blob=$(echo x | git hash-object -w --stdin); sub=$(printf '100755 blob %s\tpost-checkout\n' $blob | git mktree)
			tree=$(printf '40000 .git\0'"$(printf %s $sub | sed 's/../\\x&/g')" | perl -pe 's/\\x(..)/chr(hex $1)/ge' | git hash-object -t tree -w --stdin --literally)`,
		},
		"a hostile .gitmodules": {
			scan.RuleObject,
			"gitmodulesUrl",
			`blob=$(printf '[submodule "a"]\n\tpath = a\n\turl = --upload-pack=x\n' | git hash-object -w --stdin)
			tree=$(printf '100644 blob %s\t.gitmodules\n' $blob | git mktree)`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, tt.script+`; c=$(git commit-tree -p HEAD -m x $tree); git update-ref refs/heads/main $c`)
			res, err := p.collect()
			if err != nil || !res.Partial || len(res.Refused) != 1 || res.Refused[0].Rule != tt.rule ||
				!strings.Contains(res.Refused[0].Reason, tt.reason) ||
				res.Branch != "" {
				t.Errorf("%+v %v", res, err)
			}
			if got := p.sh(p.target, "git for-each-ref --format='%(refname)'"); got != "refs/heads/main" {
				t.Errorf("the target has %q", got)
			}
		})
	}
}

// badCommit commits a tree that git's checks refuse on the current branch.
const badCommit = `
	tree=$(printf '100644 blob %s\t.gitmodules\n' $(printf '[submodule "a"]\n\tpath = a\n\turl = --upload-pack=x\n' | git hash-object -w --stdin) | git mktree)
	git reset -q --soft $(git commit-tree -p HEAD -m bad $tree)
`

func TestSoundCommitsComeOutBesideRefusedOnes(t *testing.T) {
	tests := map[string]struct {
		script  string
		commits int      // of HEAD's branch
		refused []string // branches of the agent
		others  int
	}{
		"a bad commit on top": {"for i in 1 2 3; do git commit -q --allow-empty -m $i; done" + badCommit, 3, []string{"HEAD"}, 0},
		"a bad commit in between": {
			"git commit -q --allow-empty -m 1" + badCommit + "git commit -q --allow-empty -m 3",
			1,
			[]string{"HEAD"},
			0,
		},
		"a bad commit first": {badCommit + "git commit -q --allow-empty -m 2", 0, []string{"HEAD"}, 0},
		"a bad side that is merged": {
			"git checkout -q -b side" + badCommit + "git checkout -qf main; git commit -q --allow-empty -m 1; git merge -q -s ours side -m j; git branch -D side",
			1,
			[]string{"HEAD"},
			0,
		},
		"a bad branch beside": {
			"git checkout -q -b side" + badCommit + "git checkout -qf main; git commit -q --allow-empty -m 1",
			1,
			[]string{"refs/heads/side"},
			0,
		},
		"a good branch beside": {
			"git checkout -q -b side; git commit -q --allow-empty -m s; git checkout -q main" + badCommit,
			0,
			[]string{"HEAD"},
			1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, tt.script)
			in := p.input()
			in.KeepBundle = filepath.Join(t.TempDir(), "all.bundle")
			res, err := Collect(context.Background(), p.client, in)
			if err != nil || !res.Partial || len(res.Commits) != tt.commits || len(res.Branches) != tt.others {
				t.Errorf("%+v %v", res, err)
			}
			var refused []string
			for _, r := range res.Refused {
				refused = append(refused, r.Branch)
				if !isObjectID(r.Commit) || !strings.Contains(r.Reason, "gitmodulesUrl") {
					t.Errorf("%+v", r)
				}
			}
			if !slices.Equal(refused, tt.refused) {
				t.Errorf("refused %q", refused)
			}
			if res.Bundle != in.KeepBundle {
				t.Errorf("bundle %q", res.Bundle)
			}
			p.sh(p.target, "git bundle verify -q "+in.KeepBundle)
			p.outside()
		})
	}
}

// evil makes a repository in $d that runs a program for whoever types git
// status in it.
const evil = `
	mkdir -p $d/objects $d/refs; echo 'ref: refs/heads/main' > $d/HEAD; : > $d/objects/x; : > $d/refs/x
	printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch $HIT;"\n' > $d/config
`

// Neither the files nor the commits that come out hold a repository that runs
// code of the agent on the host.
func TestRepositoriesInTheWorkComeOutInert(t *testing.T) {
	tests := map[string]string{
		"a repository":           "d=sub/evil;" + evil,
		"one below another name": "d=a/b/c;" + evil,
		"in the root":            "d=.;" + evil,
		"hooks":                  "d=evil;" + evil + "rm $d/config; mkdir $d/hooks; printf '#!/bin/sh\\ntouch $HIT' > $d/hooks/post-index-change; chmod +x $d/hooks/*",
		"a common directory":     "d=far;" + evil + "mkdir near; cp far/HEAD near; echo ../far > near/commondir",
		"another case":           "d=evil;" + evil + "mv $d/HEAD $d/Head; mv $d/config $d/CONFIG",
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFakeSandbox(t)
			p.sh(p.repo, script+"\ngit add -f .; git commit -qm evil; echo fine > fine; git add fine; git commit -qm later; echo x > kept")
			res, err := p.collect()
			if err != nil || !res.Partial || len(res.Refused) != 1 || res.Refused[0].Rule != scan.RuleRepository || res.Branch != "" {
				t.Errorf("%+v %v", res, err)
			}
			if len(res.Unsafe) == 0 || len(res.Skipped) != len(res.Unsafe) {
				t.Errorf("removed %v, skipped %q", res.Unsafe, res.Skipped)
			}
			if !slices.Contains(paths(res.Changed), "kept") {
				t.Errorf("changed %q", paths(res.Changed))
			}
			for _, e := range res.Changed {
				if _, err := os.Lstat(filepath.Join(res.Dir, string(e.Path))); err != nil {
					t.Errorf("listed and not there: %v", err)
				}
				if e.Type == "dir" {
					p.status(filepath.Join(res.Dir, string(e.Path)))
				}
			}
			p.outside()
		})
	}
}

// status is what an operator does in a directory of the results.
func (p *fakeSandbox) status(dir string) {
	for _, args := range [][]string{{"status"}, {"log"}, {"diff"}, {"gc"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, append(gitEnv(), "HIT="+p.hit)
		cmd.Run()
	}
}

// A part of a repository that the base has is judged with the rest of it.
func TestARepositoryOfTheBaseIsJudgedWithWhatChanged(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.target, "d=fixture;"+evil+"rm $d/config; git add -f .; git commit -qm fixture")
	p.base = p.sh(p.target, "git rev-parse HEAD")
	p.sh(p.repo, "git pull -q")
	p.before = p.snapshot()
	p.sh(p.repo, "d=fixture;"+evil+"echo x > fixture/refs/y")
	res, err := p.collect()
	if err != nil || len(res.Unsafe) != 2 || res.Unsafe[1].File != "fixture/config" ||
		!slices.Equal(paths(res.Changed), []string{"fixture/refs/y"}) {
		t.Errorf("%+v %v", res, err)
	}
	p.sh(p.repo, "rm fixture/config fixture/HEAD; git add -A; git commit -qm gone; echo x > fixture/config; git add -A; git commit -qm config")
	os.RemoveAll(res.Dir)
	res, err = p.collect()
	if err != nil || len(res.Refused) != 0 || len(res.Commits) != 2 {
		t.Errorf("%+v %v", res, err)
	}
}

// What the base has may stay, whatever git makes of it.
func TestARepositoryOfTheBaseMayStay(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.target, "d=fixture;"+evil+"git add -f .; git commit -qm fixture")
	p.base = p.sh(p.target, "git rev-parse HEAD")
	p.sh(p.repo, "git pull -q")
	p.before = p.snapshot()
	p.sh(p.repo, "echo x > fixture/HEAD2; echo x > fixture/refs/y; git add -A; git commit -qm more")
	res, err := p.collect()
	if err != nil || res.Partial || len(res.Commits) != 1 {
		t.Errorf("%+v %v", res, err)
	}
}

func TestAnExistingBranchOrDirectoryIsNotTouched(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.repo, "echo b > edit; git commit -qam x")
	p.sh(p.target, "git branch agent/run-1")
	os.Mkdir(filepath.Join(p.out, "files"), 0o755)
	res, err := p.collect()
	if err == nil || !res.Partial || !strings.Contains(err.Error(), "agent/run-1 exists") || !strings.Contains(err.Error(), "file") {
		t.Errorf("%+v %v", res, err)
	}
	if got := p.sh(p.target, "git rev-parse agent/run-1"); got != p.base {
		t.Errorf("branch moved to %s", got)
	}
}

func TestAChangeRecordIsReplayed(t *testing.T) {
	change := func(kind wire.ChangeKind, path wire.Name) wire.Change { return wire.Change{Kind: kind, Path: path} }
	move := func(from, to wire.Name) wire.Change { return wire.Change{Kind: wire.Renamed, From: from, Path: to} }
	tests := map[string]struct {
		changes               []wire.Change
		trees, names, deleted []string
	}{
		"what is modified travels alone": {
			[]wire.Change{change("modified", "w/a"), change("modified", "w/a")},
			nil,
			[]string{"a"},
			nil,
		},
		"what is new travels whole": {
			[]wire.Change{change("created", "w/d"), change("created", "w/d/e"), change("modified", "w/d/e")},
			[]string{"d"},
			nil,
			nil,
		},
		"what is gone is deleted": {[]wire.Change{change("modified", "w/a"), change("deleted", "w/a")}, nil, nil, []string{"a"}},
		"below a directory that is gone": {
			[]wire.Change{change("modified", "w/d/a"), change("deleted", "w/d")},
			nil,
			nil,
			[]string{"d"},
		},
		"a directory made again": {
			[]wire.Change{change("deleted", "w/d"), change("created", "w/d"), change("created", "w/d/n")},
			[]string{"d"},
			nil,
			[]string{"d"},
		},
		"a rename is both": {
			[]wire.Change{change("modified", "w/a"), move("w/a", "w/b")},
			[]string{"b"},
			nil,
			[]string{"a"},
		},
		"a rename out of the repository": {[]wire.Change{move("w/a", "elsewhere")}, nil, nil, []string{"a"}},
		"a rename into the repository":   {[]wire.Change{move("elsewhere", "w/a")}, []string{"a"}, nil, nil},
		"git's own and what is beside do not come": {
			[]wire.Change{change("created", "w/.git/x"), change("modified", "w/s/.GIT/config"), change("created", "other"), change("created", "wx")},
			nil,
			nil,
			nil,
		},
		"what only the host changed does not come": {
			[]wire.Change{
				{Kind: "created", Path: "w/h", By: wire.ByHost}, {Kind: "modified", Path: "w/e", By: wire.ByHost},
				{Kind: "deleted", Path: "w/g", By: wire.ByHost}, {Kind: "modified", Path: "w/b", By: wire.ByBoth},
			},
			nil,
			[]string{"b"},
			nil,
		},
		"nonsense does not come": {
			[]wire.Change{change("created", "w/../x"), change("created", "/w/x"), change("created", "w/"), change("created", "w")},
			nil,
			nil,
			nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newReplay("w")
			for _, c := range tt.changes {
				if err := r.add(c); err != nil {
					t.Fatal(err)
				}
			}
			w := r.net()
			if !slices.Equal(w.trees, tt.trees) || !slices.Equal(w.names, tt.names) || !slices.Equal(w.deleted, tt.deleted) {
				t.Errorf("%+v", w)
			}
		})
	}
}

// TestWhatTheHostChangedIsLeft extracts after an editor of the host changed files too.
func TestWhatTheHostChangedIsLeft(t *testing.T) {
	p := newFakeSandbox(t)
	for _, name := range []string{"edit", "hosts", "made/agents", "made/hosts"} {
		file := filepath.Join(p.repo, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	p.replay = []wire.Change{
		{Path: "workspace/app/edit", Kind: "modified", By: wire.ByBoth},
		{Path: "workspace/app/hosts", Kind: "created", By: wire.ByHost},
		{Path: "workspace/app/removed", Kind: "deleted", By: wire.ByHost},
		{Path: "workspace/app/gone", Kind: "deleted", By: wire.ByBoth},
		{Path: "workspace/app/made", Kind: "created"},
		{Path: "workspace/app/made/hosts", Kind: "created", By: wire.ByHost},
	}
	res, err := p.collect()
	if err != nil || !slices.Equal(paths(res.Changed), []string{"made", "made/agents", "made/hosts", "edit"}) ||
		!slices.Equal(res.Deleted, []string{"gone"}) || len(res.Skipped) != 0 {
		t.Errorf("%+v %v", res, err)
	}
	for name, by := range map[string]wire.ChangedBy{"edit": wire.ByBoth, "gone": wire.ByBoth, "made/hosts": wire.ByHost, "made/agents": ""} {
		if res.By[name] != by {
			t.Errorf("%s: by %q", name, res.By[name])
		}
	}
	if _, err := os.Lstat(filepath.Join(res.Dir, "hosts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of the host came out: %v", err)
	}
}

func TestARecordThatIsAheadOfTheTreeIsNoError(t *testing.T) {
	p := newFakeSandbox(t)
	p.replay = []wire.Change{{Path: "workspace/app/edit", Kind: "modified"}, {Path: "workspace/app/never", Kind: "created"}}
	res, err := p.collect()
	if err != nil || !slices.Equal(paths(res.Changed), []string{"edit"}) || len(res.Skipped) != 1 {
		t.Errorf("%+v %v", res, err)
	}
}

func TestAPartialTreeIsKeptAndMarked(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.repo, "for i in 1 2 3 4; do head -c 1000 /dev/zero > f$i; done")
	in := p.input()
	in.Limits.Bytes = 2500
	res, err := Collect(context.Background(), p.client, in)
	if err == nil || !res.Partial || !strings.HasSuffix(res.Dir, "files.partial") || len(res.Changed) != 2 {
		t.Errorf("%+v %v", res, err)
	}
	if _, err := os.Stat(filepath.Join(p.out, "files")); err == nil {
		t.Error("an incomplete tree was published")
	}
	if _, err := os.Stat(filepath.Join(res.Dir, "f1")); err != nil {
		t.Error(err)
	}
}

func TestInputThatNamesSomethingElseIsRefused(t *testing.T) {
	p := newFakeSandbox(t)
	for name, change := range map[string]func(*Input){
		"repository outside":   func(in *Input) { in.Repo = "/etc" },
		"repository beside":    func(in *Input) { in.Repo = p.dir + "x" },
		"relative":             func(in *Input) { in.Governed, in.Repo = "a", "a/b" },
		"base is a name":       func(in *Input) { in.Base = "main" },
		"base is an option":    func(in *Input) { in.Base = "--all" },
		"branch is an option":  func(in *Input) { in.Branch = "--force" },
		"branch with dots":     func(in *Input) { in.Branch = "a..b" },
		"branch with a colon":  func(in *Input) { in.Branch = "a:b" },
		"branch is a lock":     func(in *Input) { in.Branch = "a.lock" },
		"no git":               func(in *Input) { in.Git = nil },
		"name with a slash":    func(in *Input) { in.Name = "a/b" },
		"name above":           func(in *Input) { in.Name = ".." },
		"name empty":           func(in *Input) { in.Name = "" },
		"base not in target":   func(in *Input) { in.Base = strings.Repeat("1", 40) },
		"out does not exist":   func(in *Input) { in.Out = "/nonexistent" },
		"target is no repo":    func(in *Input) { in.Target = p.out },
		"target is not there":  func(in *Input) { in.Target = "/nonexistent" },
		"branch starts hidden": func(in *Input) { in.Branch = ".a" },
	} {
		t.Run(name, func(t *testing.T) {
			p.sh(p.repo, "echo $$ >> edit; git commit -qam x")
			in := p.input()
			change(&in)
			if res, err := Collect(context.Background(), p.client, in); err == nil {
				t.Errorf("collected %+v", res)
			}
			os.RemoveAll(filepath.Join(p.out, "files"))
		})
	}
}

// manyCommits makes n commits, each of which changes a file called config, over
// a tree of a thousand files for each of files.
func (p *fakeSandbox) manyCommits(n, files int) {
	p.sh(p.repo, fmt.Sprintf(`{
		echo 'commit refs/heads/main'; echo 'committer a <a@x> 1700000000 +0000'; echo 'data 1'; echo x; echo "from $(git rev-parse HEAD)"
		for i in $(seq %d); do for j in $(seq 1000); do echo "M 100644 inline d$i/f$j"; echo 'data 1'; echo x; done; done
		for i in $(seq %d); do
			echo 'commit refs/heads/main'; echo 'committer a <a@x> 1700000000 +0000'; echo 'data 1'; echo x
			echo 'M 100644 inline config'; echo "data ${#i}"; echo $i
		done; } | git fast-import --quiet; git reset -q --hard`, files, n))
}

// Ordinary names that repositories have, too, do not cost a look at whole trees.
func TestManyCommitsOfAFileCalledConfigComeOutSoon(t *testing.T) {
	p := newFakeSandbox(t)
	p.manyCommits(100, 1)
	in := p.input()
	var listed int
	stream := in.Stream
	in.Stream = func(ctx context.Context, dir string, args ...string) io.ReadCloser {
		if slices.Contains(args, "ls-tree") {
			listed++
		}
		return stream(ctx, dir, args...)
	}
	res, err := Collect(t.Context(), p.client, in)
	if err != nil || res.Partial || len(res.Commits) != 101 {
		t.Errorf("%d commits, %+v %v", len(res.Commits), res.Refused, err)
	}
	if listed > 3 {
		t.Errorf("%d trees were listed", listed)
	}
}

// A commit may build on one that the base does not show: what that has counts.
func TestCommitsOnAnOlderBaseAreJudgedWithItsFiles(t *testing.T) {
	p := newFakeSandbox(t)
	p.sh(p.target, "d=b;"+evil+"rm b/config; git add -f .; git commit -qm parts; git rm -rq b; git commit -qm gone")
	p.base = p.sh(p.target, "git rev-parse HEAD")
	p.sh(p.repo, "git pull -q")
	p.before = p.snapshot()
	p.sh(p.repo, "git checkout -q -B main HEAD~1; d=b;"+evil+"git add -f b/config; git commit -qm evil")
	res, err := p.collect()
	if err != nil || len(res.Refused) != 1 || res.Refused[0].Rule != scan.RuleRepository {
		t.Errorf("%+v %v", res, err)
	}
}
