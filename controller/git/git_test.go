package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsh/controller/sandbox/host"
)

// shell runs a script of the test in dir, without git's user and system
// configuration.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	g := Tool{global: "/dev/null"}
	res, err := runShell(g, dir, script)
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, res)
	}
	return strings.TrimSpace(res)
}

// newRepo makes a repository with one commit.
func newRepo(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	shell(t, dir, `git init -q -b main && echo one > a.txt && mkdir sub && echo two > sub/b.txt && git add -A && git commit -q -m first`)
	return dir
}

func newTestGit(t *testing.T) Tool {
	t.Helper()
	g, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestOpenFindsTheRepositoryOfADirectory(t *testing.T) {
	repo := newRepo(t)
	shell(t, repo, "mkdir -p .odd/x 'sub/a b'; touch .odd/x/f 'sub/a b/f'; git add -A; git commit -q -m second; mkdir sub/new")
	g := newTestGit(t)
	for _, sub := range []string{"", "sub", ".odd", ".odd/x", "sub/a b"} {
		r, err := g.Open(context.Background(), filepath.Join(repo, sub))
		if err != nil || r.Dir != repo || r.Sub != sub {
			t.Errorf("%q: %+v, %v", sub, r, err)
		}
	}
	inner := filepath.Join(repo, "sub", "inner")
	shell(t, repo, "git init -q -b main sub/inner && cd sub/inner && touch f && git add -A && git commit -q -m inner")
	if r, err := g.Open(context.Background(), inner); err != nil || r.Dir != inner || r.Sub != "" {
		t.Errorf("a repository in another: %+v, %v", r, err)
	}
}

func TestOpenRefusesADirectoryThatIsInNoRepository(t *testing.T) {
	repo := newRepo(t)
	shell(t, repo, "mkdir new")
	empty := t.TempDir()
	unborn := t.TempDir()
	shell(t, unborn, "git init -q")
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, ".git"), []byte("gitdir: /nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, dir string
		is        error
		says      string
	}{
		{"a directory without .git", empty, ErrNotRepository, "not a git repository"},
		{"a directory that HEAD does not have", filepath.Join(repo, "new"), nil, "has no directory new: commit it"},
		{"a directory inside .git", filepath.Join(repo, ".git", "refs"), nil, "has no directory .git/refs"},
		{"a directory that is not there", filepath.Join(empty, "x"), os.ErrNotExist, "no such file"},
		{"a .git that leads nowhere", broken, ErrNotRepository, "not a git repository"},
		{"a repository without a commit", unborn, nil, "has no commit yet"},
	}
	g := newTestGit(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := g.Open(context.Background(), tt.dir)
			if err == nil || (tt.is != nil && !errors.Is(err, tt.is)) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("err = %v, want %v", err, tt.says)
			}
		})
	}
}

func TestACloneHoldsTheHistoryOfHeadAndNothingElse(t *testing.T) {
	tests := []struct {
		name   string
		setup  string
		branch string
		check  string // must print nothing in the clone
	}{
		{"a branch", "", "main", ""},
		{"a branch with slashes", "git checkout -q -b feature/x", "feature/x", ""},
		{"a detached head", "git checkout -q --detach", "work", ""},
		{
			"other branches, tags, notes and stashes stay outside",
			`git tag v1 && git branch other && git notes add -m n && echo x > a.txt && git stash -q`,
			"main",
			"git for-each-ref | grep -v refs/heads/main || true",
		},
		{"remotes and their credentials stay outside", "git remote add origin https://user:secret@example.com/x.git", "main",
			"git remote; grep -r secret .git || true"},
		{
			"hooks and configuration stay outside",
			"printf '#!/bin/sh\n' > .git/hooks/pre-commit; git config alias.x '!true'; git config http.extraheader secret",
			"main",
			"ls .git/hooks 2>/dev/null || true; git config --local --get-regexp 'alias|http' || true",
		},
		{
			"unreachable objects stay outside",
			"echo secret | git hash-object -w --stdin",
			"main",
			"git cat-file -p $(echo secret | git hash-object --stdin) 2>/dev/null || true",
		},
	}
	g := newTestGit(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := newRepo(t)
			shell(t, repo, tt.setup+"\ntrue")
			target, err := g.Open(context.Background(), repo)
			if err != nil {
				t.Fatal(err)
			}
			clone := filepath.Join(t.TempDir(), "clone")
			if _, err := target.Clone(context.Background(), clone, "agent"); err != nil {
				t.Fatal(err)
			}
			if got := shell(t, clone, "git branch --show-current"); got != tt.branch {
				t.Errorf("branch = %q, want %q", got, tt.branch)
			}
			if got := shell(t, clone, "git rev-parse HEAD"); got != target.Head {
				t.Errorf("HEAD = %s, want %s", got, target.Head)
			}
			if got := shell(t, clone, "git reset -q --hard; git status --porcelain; cat a.txt"); got != "one" {
				t.Errorf("working tree: %q", got)
			}
			if got := shell(t, clone, tt.check); got != "" {
				t.Errorf("came along: %s", got)
			}
		})
	}
}

func TestAShallowTargetIsCloned(t *testing.T) {
	repo := newRepo(t)
	shell(t, repo, "echo more > a.txt && git commit -q -am second")
	shallow := filepath.Join(t.TempDir(), "shallow")
	shell(t, repo, "git clone -q --depth 1 file://"+repo+" "+shallow)
	g := newTestGit(t)
	target, err := g.Open(context.Background(), shallow)
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	c, err := target.Clone(context.Background(), clone, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, clone, "git reset -q --hard; cat a.txt; git log --oneline | wc -l"); got != "more\n1" {
		t.Errorf("clone: %q", got)
	}
	shell(t, clone, "git checkout -q -b taken && echo agent > a.txt && git commit -q -am third")
	if err := c.Deliver(context.Background(), map[string]string{"taken": "agentctl/a/1"}, filepath.Join(t.TempDir(),
		"take")); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, shallow, "git show agentctl/a/1:a.txt"); got != "agent" {
		t.Errorf("branch holds %q", got)
	}
}

func TestUncommittedSeesTrackedChangesOnly(t *testing.T) {
	tests := []struct{ name, setup, want string }{
		{"a clean tree", "", ""},
		{"a touched file", "touch -d 2001-01-01 a.txt", ""},
		{"a changed file", "echo x > a.txt", "a.txt"},
		{"a staged file", "echo x > a.txt && git add a.txt", "a.txt"},
		{"a deleted file", "rm sub/b.txt", "sub/b.txt"},
		{"a changed mode", "chmod +x a.txt", "a.txt"},
		{"an untracked file", "echo x > new", ""},
		{"a changed file and an index in two parts", "git update-index --split-index; echo x > a.txt", "a.txt"},
		{"an index that is gone", "rm .git/index", ""},
		{"a file with the size and times of the index", "touch -r a.txt ref; echo two > a.txt; touch -r ref a.txt", "a.txt"},
	}
	g := newTestGit(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := newRepo(t)
			target, err := g.Open(context.Background(), repo)
			if err != nil {
				t.Fatal(err)
			}
			shell(t, repo, tt.setup+"\ntrue")
			clone := filepath.Join(t.TempDir(), "clone")
			c, err := target.Clone(context.Background(), clone, "agent")
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Uncommitted(context.Background())
			if err != nil || strings.Join(got, " ") != tt.want {
				t.Errorf("uncommitted = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestTheTreeOfACloneIsThatOfItsCommit(t *testing.T) {
	repo := newRepo(t)
	shell(
		t,
		repo,
		`printf '#!/bin/sh\n' > run.sh; chmod +x run.sh; ln -s sub/b.txt link; ln -s /etc/passwd out; : > empty; printf 'a\0b\n' > binary
		printf x > "$(printf 'odd\n\tname')"; mkdir -p deep/er; echo y > deep/er/f; git add -A
		git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),module; git commit -q -m more`,
	)
	ctx := context.Background()
	target, err := newTestGit(t).Open(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	c, err := target.Clone(ctx, clone, "agent")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := c.Tree(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var ids []string
	for _, b := range tree {
		got = append(got, fmt.Sprintf("%s %q %o %d %s", b.Kind, b.Path, b.Mode, b.Size, b.Target))
		if b.Kind == KindFile {
			ids = append(ids, b.ID)
		}
	}
	want := []string{
		`file "a.txt" 644 4 `, `file "binary" 644 4 `, `dir "deep" 755 0 `, `dir "deep/er" 755 0 `, `file "deep/er/f" 644 2 `,
		`file "empty" 644 0 `,
		`symlink "link" 777 9 sub/b.txt`, `dir "module" 755 0 `, `file "odd\n\tname" 644 1 `, `symlink "out" 777 11 /etc/passwd`,
		`file "run.sh" 755 10 `, `dir "sub" 755 0 `, `file "sub/b.txt" 644 4 `,
	}
	if !slices.Equal(got, want) {
		t.Errorf("tree:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	out, err := c.Objects(ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(out)
	if err != nil || out.Close() != nil || !bytes.Contains(all, []byte(" blob 4\na\x00b\n\n")) {
		t.Errorf("objects: %q %v", all, err)
	}
	if _, err := io.ReadAll(target.git.Stream(ctx, clone, strings.NewReader(""), "cat-file", "blob", "HEAD:nothing")); err == nil {
		t.Error("a git that fails is no error")
	}
}

// TestNoCodeOfAHostileTargetRuns does everything that a run does with a target.
// The target has every setting that makes git start a program.
func TestNoCodeOfAHostileTargetRuns(t *testing.T) {
	tests := []struct{ name, setup, refused string }{
		{name: "fsmonitor", setup: `git config core.fsmonitor ./evil`},
		{
			name:  "hooksPath",
			setup: `mkdir h && for h in reference-transaction post-checkout pre-commit post-index-change pre-auto-gc post-merge update post-update; do cp evil h/$h; done; git config core.hooksPath h`,
		},
		{name: "hooks", setup: `for h in reference-transaction post-checkout pre-auto-gc update post-update; do cp evil .git/hooks/$h; done`},
		{
			name:  "clean and smudge filters",
			setup: `echo '*.txt filter=x' > .gitattributes; git add -A; git commit -q -m attrs; git config filter.x.clean ./evil; git config filter.x.smudge ./evil; git config filter.x.process ./evil`,
		},
		{
			name:  "textconv and external diff",
			setup: `echo '*.txt diff=x' > .git/info/attributes; git config diff.x.textconv ./evil; git config diff.x.command ./evil; git config diff.external ./evil`,
		},
		{
			name:    "transports",
			setup:   `git config core.sshCommand ./evil; git config protocol.ext.allow always; git config protocol.allow always; git config url."ext::sh -c ./evil %".insteadOf "$PWD"; git config url."ext::sh -c ./evil %".insteadOf /`,
			refused: "transport 'ext' not allowed",
		},
		{
			name:  "signatures and pagers",
			setup: `git config gpg.program ./evil; git config log.showSignature true; git config core.pager ./evil; git config pager.log ./evil; git config pager.diff ./evil`,
		},
		{
			name:  "alternates",
			setup: `mkdir alt && git init -q --bare alt/x.git && echo "$PWD/alt/x.git/objects" > .git/objects/info/alternates; git config core.alternateRefsCommand ./evil`,
		},
		{name: "uploadpack", setup: `git config uploadpack.packObjectsHook ./evil; git config remote.origin.uploadpack ./evil`},
		{
			name:  "an included file",
			setup: `printf '[core]\n\tfsmonitor = ./evil\n\thooksPath = .\n' > inc; cp evil reference-transaction; git config include.path ../inc`,
		},
		{name: "a credential helper and askpass", setup: `git config credential.helper '!./evil'; git config core.askPass ./evil`},
		{name: "a gc that is due", setup: `git config gc.auto 1; git config gc.autoDetach false; git config gc.recentObjectsHook ./evil`},
	}
	g := newTestGit(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := newRepo(t)
			mark := filepath.Join(t.TempDir(), "ran")
			evil := "#!/bin/sh\necho \"$0 $*\" >> " + mark + "\nexit 0\n"
			if err := os.WriteFile(filepath.Join(repo, "evil"), []byte(evil), 0o755); err != nil {
				t.Fatal(err)
			}
			shell(t, repo, tt.setup)
			_ = os.Remove(mark) // the setup itself may create it
			ctx := context.Background()
			target, err := g.Open(ctx, repo)
			if err != nil {
				t.Fatal(err)
			}
			clone := filepath.Join(t.TempDir(), "clone")
			c, err := target.Clone(ctx, clone, "agent")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Uncommitted(ctx); err != nil {
				t.Fatal(err)
			}
			shell(t, clone, "git checkout -q -b taken && echo agent > a.txt && git commit -q -am 'agent work'")
			commits, err := c.Commits(ctx, "taken")
			if err != nil || len(commits) != 1 || commits[0].Subject != "agent work" {
				t.Fatalf("commits = %v, %v", commits, err)
			}
			err = c.Deliver(ctx, map[string]string{"taken": "agentctl/a/1"}, filepath.Join(t.TempDir(), "take"))
			if err != nil && (tt.refused == "" || !strings.Contains(err.Error(), tt.refused)) {
				t.Fatal(err)
			}
			if ran, err := os.ReadFile(mark); err == nil {
				t.Errorf("code of the target ran: %s", ran)
			}
			if tt.refused != "" {
				return
			}
			raw, err := os.ReadFile(filepath.Join(repo, ".git/refs/heads/agentctl/a/1"))
			if err != nil || strings.TrimSpace(string(raw)) != commits[0].ID {
				t.Errorf("branch = %s, %v", raw, err)
			}
		})
	}
}

// TestCommitsAreCheckedBeforeTheyReachTheTarget delivers commits of an agent
// that writes its own objects.
func TestCommitsAreCheckedBeforeTheyReachTheTarget(t *testing.T) {
	tests := []struct{ name, make string }{
		{
			"a tree that holds .git",
			`b=$(echo x | git hash-object -w --stdin); t=$(printf '100644 blob %s\tconfig\n' $b | git mktree); t=$(printf '040000 tree %s\t.git\n' $t | git mktree --missing); git update-ref refs/heads/taken $(git commit-tree -p HEAD -m x $t)`,
		},
		{
			"a tree that holds dot-dot",
			`b=$(echo x | git hash-object -w --stdin); t=$(printf '100644 blob %s\t..\n' $b | git mktree); git update-ref refs/heads/taken $(git commit-tree -p HEAD -m x $t)`,
		},
		{
			"a .gitmodules that runs a command",
			`printf '[submodule "x"]\n\tpath = x\n\turl = -u./evil\n' > .gitmodules; git checkout -q -b taken; git add .gitmodules; git commit -q -m x`,
		},
	}
	g := newTestGit(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := context.Background()
			repo := newRepo(t)
			target, err := g.Open(ctx, repo)
			if err != nil {
				t.Fatal(err)
			}
			scratch := filepath.Join(t.TempDir(), "scratch")
			c, err := target.Clone(ctx, scratch, "agent")
			if err != nil {
				t.Fatal(err)
			}
			shell(t, scratch, tt.make)
			if err := c.Deliver(ctx, map[string]string{"taken": "agentctl/a/1"}, filepath.Join(t.TempDir(), "take")); err == nil {
				t.Error("the commits were taken")
			}
			if got := shell(t, repo, "git branch --format='%(refname:short)'; git count-objects"); !strings.HasPrefix(got, "main\n5 objects") {
				t.Errorf("the target changed: %s", got)
			}
		})
	}
}

func TestABranchOfTheTargetIsNeverReplaced(t *testing.T) {
	g := newTestGit(t)
	repo := newRepo(t)
	target, err := g.Open(context.Background(), repo)
	if err != nil {
		t.Fatal(err)
	}
	scratch := filepath.Join(t.TempDir(), "scratch")
	c, err := target.Clone(context.Background(), scratch, "agent")
	if err != nil {
		t.Fatal(err)
	}
	shell(t, scratch, "git checkout -q -b taken && git commit -q --allow-empty -m x")
	for _, name := range []string{"main", "kept"} {
		shell(t, repo, "git branch -f kept main")
		if err := c.Deliver(context.Background(), map[string]string{"taken": name}, filepath.Join(t.TempDir(), "take")); err == nil ||
			!strings.Contains(err.Error(), "exists") {
			t.Errorf("branch %s: %v", name, err)
		}
	}
}

func TestAFullDiskIsTheCauseOfAnErrorUnlessAnObjectIs(t *testing.T) {
	for said, want := range map[string]error{
		"error: write error: No space left on device\nfatal: index-pack failed": syscall.ENOSPC,
		"fatal: cannot create x: Disk quota exceeded":                           syscall.EDQUOT,
		"fatal: index-pack failed":                                              nil,
		"error: object 1234: gitmodulesUrl: disallowed submodule url: No space left on device\nfatal: fsck error in packed object": nil,
	} {
		err := failure(host.Result{Code: 128, Stderr: []byte(said)})
		if err == nil || want != nil && !errors.Is(err, want) || want == nil && errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%q is %v", said, err)
		}
	}
}
