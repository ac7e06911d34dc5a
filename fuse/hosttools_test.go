package fuse

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// hostTool is a program that changes many files of a workspace. The script runs in the
// workspace of the host, with a directory outside as $1 and the number of the round as $2.
type hostTool struct {
	name   string
	before string // makes what the script needs
	script string
}

var hostTools = []hostTool{
	{"rsync", `mkdir -p "$1/src/a/b"; for i in $(seq 40); do echo $i >"$1/src/a/b/f$i"; echo $i >"$1/src/g$i"; done`,
		`for i in $(seq 1 3 40); do echo "$2 $i" >"$1/src/a/b/f$i"; done; rm -f "$1/src/g$2"; rsync -a --delete "$1/src/" out/`},
	{"git checkout", `git init -q -b one repo; cd repo
		for b in one two; do
			[ $b = one ] || git checkout -q -b two
			for i in $(seq 40); do mkdir -p d$((i % 5)); echo "$b $i" >d$((i % 5))/f$i; done; mkdir -p only-$b; echo $b >only-$b/f
			git add -A; git commit -q -m $b; git rm -rq only-$b; git commit -q -m "$b without"; git reset -q --hard HEAD~1
		done`,
		`cd repo; if [ $(($2 % 2)) = 0 ]; then git checkout -q two; else git checkout -q one; fi`},
	{"npm install", `mkdir -p "$1/pack/lib"; cd "$1/pack"; for i in $(seq 30); do echo "exports.n = $i" >lib/m$i.js; done
		echo '{"name": "pack", "version": "1.0.0"}' >package.json; npm pack --silent --offline --pack-destination "$1" >/dev/null`,
		`mkdir -p app; cd app; [ -e package.json ] || echo '{"name": "app", "version": "1.0.0"}' >package.json
		npm install --silent --offline --no-audit --no-fund --cache "$1/npm" "$1/pack-1.0.0.tgz"; [ $(($2 % 2)) = 0 ] || npm uninstall --silent --offline pack`},
	{"go build and go mod vendor", `mkdir -p "$1/lib" mod; cd "$1/lib"; printf 'module example.org/lib\n\ngo 1.20\n' >go.mod
		for i in $(seq 20); do printf 'package lib\n\nconst C%s = %s\n' $i $i >c$i.go; done
		cd "$OLDPWD/mod"
		printf 'module example.org/mod\n\ngo 1.20\n\nrequire example.org/lib v0.0.0\n\nreplace example.org/lib v0.0.0 => "%s/lib"\n' "$1" >go.mod
		printf 'package main\n\nimport "example.org/lib"\n\nfunc main() { println(lib.C1) }\n' >main.go`,
		`export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0; cd mod
		printf 'package main\n\nconst round = %s\n' "$2" >round.go; go mod vendor; go build -o bin/mod .; [ $(($2 % 2)) = 0 ] || rm -rf vendor`},
	{"cargo build", `cargo init -q --offline --vcs none --name tool crate`,
		`cd crate; echo "fn main() { println!(\"$2\"); }" >src/main.rs; cargo build -q --offline`},
}

// TestToolsOfTheHostAreSeen: tools of the host change the workspace, while eight commands
// read all of it and write files of their own. No call fails but for what is absent, no
// file has another length than it says, and afterwards all is the same inside and outside.
func TestToolsOfTheHostAreSeen(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	rounds, tools := coherenceRounds(t, 2), hostTools
	if os.Getenv("COHERENCE_ROUNDS") == "" {
		tools = tools[:2] // the others take long
	}
	for _, tool := range tools {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plain %v", tool.name, plain), func(t *testing.T) {
				useTool(t, tool, plain, rounds)
			})
		}
	}
}

func useTool(t *testing.T, tool hostTool, plain bool, rounds int) {
	s := start(t, options{plain: plain})
	s.seed(map[string]string{"own/x": "x"})
	beside := t.TempDir()
	do := func(script string, round int) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script, "sh", beside, fmt.Sprint(round))
		cmd.Dir = s.backing
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
			"GIT_COMMITTER_EMAIL=a@b")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	do(tool.before, 0)
	stop := make(chan struct{})
	var commands sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); commands.Wait() })
	defer end()
	for i := range 8 {
		commands.Go(func() { readOrWrite(t, s, i, stop) })
	}
	for round := range rounds {
		do(tool.script, round)
		if round%2 == 0 {
			continue // the next change comes at once
		}
		for began := time.Now(); ; {
			inside, outside := lookBeside(t, s.dir), lookBeside(t, s.backing)
			if inside == outside {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("inside:\n%.3000s\noutside:\n%.3000s", inside, outside)
			}
		}
	}
	end()
	if inside, outside := look(t, s.path("own")), look(t, s.back("own")); inside != outside {
		t.Errorf("written inside:\n%s\noutside:\n%s", inside, outside)
	}
}

// lookBeside describes all but what commands write.
func lookBeside(t *testing.T, dir string) string {
	var out strings.Builder
	for line := range strings.Lines(look(t, dir)) {
		if !strings.HasPrefix(line, "own") && !strings.HasPrefix(line, ". ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// readOrWrite is one command: even ones read the workspace, odd ones write.
func readOrWrite(t *testing.T, s *session, i int, stop chan struct{}) {
	own := s.path(fmt.Sprintf("own/%d", i))
	for round := 0; ; round++ {
		select {
		case <-stop:
			return
		default:
		}
		if i%2 == 1 {
			want := textOf(round)
			if err := renamed(own, want); err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(own); err != nil || string(got) != want {
				t.Errorf("own file: %v, %d bytes %.40q, want %d", err, len(got), got, len(want))
				return
			}
			continue
		}
		err := filepath.WalkDir(s.dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				_, err = readWhole(name)
			}
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				return nil // removed, or replaced by something else, a moment ago
			}
			return err
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// TestTheHostPacksWhileASessionCommits: git gc on the host moves objects and references
// of a repository in which a session commits. All commits are there afterwards.
func TestTheHostPacksWhileASessionCommits(t *testing.T) {
	commits := coherenceRounds(t, 8)
	s := start(t, options{})
	host, inside := s.back("repo"), s.path("repo")
	must(t, os.MkdirAll(host, 0o755))
	mustGit(t, host, "init", "-q", "-b", "main")
	mustGit(t, host, "commit", "-q", "--allow-empty", "-m", "first")
	stop := make(chan struct{})
	var packs sync.WaitGroup
	packs.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := gitInTurn(host, "gc", "-q"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); packs.Wait() })
	defer end()
	for i := range commits {
		must(t, os.WriteFile(filepath.Join(inside, fmt.Sprint("f", i%7)), []byte(fmt.Sprintln(i)), 0o644))
		must(t, gitInTurn(inside, "add", "-A"))
		must(t, gitInTurn(inside, "commit", "-q", "-m", fmt.Sprint(i)))
	}
	end()
	for _, dir := range []string{host, inside} {
		mustGit(t, dir, "fsck", "--strict")
		if got := mustGit(t, dir, "rev-list", "--count", "HEAD"); got != fmt.Sprint(commits+1) {
			t.Errorf("%s: %s commits, want %d", dir, got, commits+1)
		}
	}
}

// TestTwoSessionsCommitWithoutTurns: two sessions and the host commit in one worktree.
// Only git's own lock files serialise them, as in a plain directory: a commit succeeds,
// or says that another one is under way.
func TestTwoSessionsCommitWithoutTurns(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	commits := coherenceRounds(t, 6)
	a := start(t, options{})
	b := start(t, options{backing: a.backing})
	mustGit(t, a.backing, "init", "-q", "-b", "main")
	mustGit(t, a.backing, "commit", "-q", "--allow-empty", "-m", "first")
	var all sync.WaitGroup
	for i, dir := range []string{a.dir, b.dir, a.backing} {
		all.Go(func() {
			for n := range commits {
				text := fmt.Sprintln(i, n)
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte(text), 0o644); err != nil {
					t.Error(err)
					return
				}
				for _, command := range [][]string{{"add", fmt.Sprint("f", i)}, {"commit", "-q", "--allow-empty", "-m", fmt.Sprint(i, n)}} {
					if err := gitInTurn(dir, command...); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	for i, dir := range []string{a.dir, b.dir, a.backing} {
		mustGit(t, dir, "fsck", "--strict")
		if got := mustGit(t, dir, "rev-list", "--count", "HEAD"); got != fmt.Sprint(3*commits+1) {
			t.Errorf("%s: %s commits, want %d", dir, got, 3*commits+1)
		}
		if got := mustGit(t, dir, "status", "--porcelain"); got != "" {
			t.Errorf("%s is not clean: %s", dir, got)
		}
		if got := mustGit(t, a.backing, "show", fmt.Sprint("HEAD:f", i)); got != fmt.Sprint(i, " ", commits-1) {
			t.Errorf("f%d holds %s", i, got)
		}
	}
}

// gitRaces are the errors of git beside another git, in a plain directory as well: the
// locks of others, a message file that two commits share, and a directory of objects that
// gc removes when it is empty.
var gitRaces = []string{
	".lock': File exists", "cannot lock ref '", "Aborting commit due to empty commit message",
	"unable to create temporary file: No such file or directory",
}

// gitInTurn repeats a git command while it reports one of gitRaces.
func gitInTurn(dir string, args ...string) error {
	for deadline := time.Now().Add(5 * time.Minute); ; {
		_, err := gitIn(dir, args...)
		if err == nil || time.Now().After(deadline) ||
			!slices.ContainsFunc(gitRaces, func(text string) bool { return strings.Contains(err.Error(), text) }) {
			return err
		}
	}
}
