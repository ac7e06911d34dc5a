package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// coherenceRounds is how often each saver saves and how many commits are made;
// COHERENCE_ROUNDS sets another number ("make coherence").
func coherenceRounds(t *testing.T, short int) int {
	text := os.Getenv("COHERENCE_ROUNDS")
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// saver stores a text, which is one line, as a program does.
type saver struct {
	name string
	// replaces says that a reader sees the old or the new text at any time
	replaces bool
	save     func(name, text string) error
}

// run runs a program, and returns what it printed if it fails.
func run(program string, args ...string) error {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", program, args, err, out)
	}
	return nil
}

// script writes the commands of an editor to a file outside the workspace.
func script(name, text string) (string, error) {
	file := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(name))), "script")
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// vim saves with the editor itself.
func vim(set string) func(name, text string) error {
	return func(name, text string) error {
		file, err := script(name, text)
		return errors.Join(err, run("vim", "-u", "NONE", "-i", "NONE", "-n", "-es", "-c", "set "+set,
			"-c", "call setline(1, readfile('"+file+"'))", "-c", "wq!", name))
	}
}

// renamed writes another file and renames it: rsync, git, and many editors.
func renamed(name, text string) error {
	dir, base := filepath.Split(name)
	f, err := os.CreateTemp(dir, "."+base+".")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	return errors.Join(err, os.Rename(f.Name(), name))
}

var savers = []saver{
	{"rename", true, renamed},
	{"vim, backupcopy=no", false, vim("backupcopy=no writebackup")}, // the name is absent for a moment
	{"vim, backupcopy=yes", false, vim("backupcopy=yes writebackup")},
	{"vim, nowritebackup", false, vim("nowritebackup nobackup")},
	{"VS Code", false, func(name, text string) error { // opens without O_TRUNC, truncates, writes, syncs
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		err = f.Truncate(0)
		_, werr := f.WriteString(text)
		return errors.Join(err, werr, unix.Fdatasync(int(f.Fd())), f.Close())
	}},
	{"sed -i", true, func(name, text string) error {
		file, err := script(name, "s/.*/"+strings.TrimSuffix(text, "\n")+"/\n")
		return errors.Join(err, run("sed", "-i", "-f", file, name))
	}},
	{"patch", true, func(name, text string) error {
		old, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		cmd := exec.Command("patch", "-s", "--no-backup-if-mismatch", name)
		cmd.Stdin = strings.NewReader("--- a\n+++ b\n@@ -1 +1 @@\n-" + string(old) + "+" + text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("patch: %w: %s", err, out)
		}
		return nil
	}},
	{"cargo", false, func(name, text string) error { // writes below deps and links the result
		dir, base := filepath.Split(name)
		deps := filepath.Join(dir, ".deps", base)
		return errors.Join(os.MkdirAll(filepath.Dir(deps), 0o755), os.RemoveAll(deps), os.WriteFile(deps, []byte(text), 0o644),
			os.RemoveAll(name), os.Link(deps, name))
	}},
	{"go build -o", false, func(name, text string) error { // removes what is there, then writes
		return errors.Join(os.RemoveAll(name), os.WriteFile(name, []byte(text), 0o755))
	}},
	{"cp", false, func(name, text string) error { return os.WriteFile(name, []byte(text), 0o644) }},
}

// textOf is a text that says of itself whether it is whole.
func textOf(generation int) string {
	size := []int{10, 3000, 9000, 200_000, 0}[generation%5]
	return fmt.Sprintf("%d %d %s\n", generation, size, strings.Repeat(strconv.Itoa(generation%10), size))
}

// whole returns the generation of a text, or an error if it mixes two.
func whole(text []byte) (int, error) {
	var generation, size int
	if _, err := fmt.Sscanf(string(text[:min(len(text), 60)]), "%d %d ", &generation, &size); err != nil {
		return 0, fmt.Errorf("%d bytes %.40q: %w", len(text), text, err)
	}
	if string(text) != textOf(generation) {
		return 0, fmt.Errorf("%d bytes %.40q are not generation %d", len(text), text, generation)
	}
	return generation, nil
}

// TestSavesOfTheHostAreSeenAtOnce: the host saves as editors and tools do, while
// commands read and write. The next open has the saved text, and what commands write
// is what the host has.
func TestSavesOfTheHostAreSeenAtOnce(t *testing.T) {
	rounds := coherenceRounds(t, 6)
	for _, sv := range savers {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plain %v", sv.name, plain), func(t *testing.T) {
				s := start(t, options{plain: plain})
				s.seed(map[string]string{"d/f": textOf(0)})
				var saved atomic.Int64
				stop := make(chan struct{})
				var commands sync.WaitGroup
				defer commands.Wait()
				defer close(stop)
				for i := range 8 {
					commands.Go(func() { command(t, s, i, sv.replaces, &saved, stop) })
				}
				for g := 1; g <= rounds; g++ {
					if err := sv.save(s.back("d/f"), textOf(g)); err != nil {
						t.Fatal(err)
					}
					saved.Store(int64(g))
					for range 3 {
						got, err := os.ReadFile(s.path("d/f"))
						for end := time.Now().Add(30 * time.Second); !sv.replaces && errors.Is(err, unix.ENOENT) && time.Now().Before(end); {
							got, err = os.ReadFile(s.path("d/f")) // it was absent, which is noticed a moment later
						}
						if want := textOf(g); err != nil || string(got) != want {
							t.Fatalf("save %d: %v, inside %d bytes %.40q, want %d bytes %.40q", g, err, len(got), got, len(want), want)
						}
					}
					inside := fmt.Sprintf("d/by-session-%d", g%3)
					must(t, renamed(s.path(inside), textOf(g)))
					if got, err := os.ReadFile(s.back(inside)); err != nil || string(got) != textOf(g) {
						t.Fatalf("written inside: %v, %.40q", err, got)
					}
				}
			})
		}
	}
}

// command is one of the commands that work while the host saves. Even ones read what
// the host saves; odd ones write and read files of their own.
func command(t *testing.T, s *session, i int, replaces bool, saved *atomic.Int64, stop chan struct{}) {
	own := s.path(fmt.Sprintf("d/own-%d", i))
	for round := 0; ; round++ {
		select {
		case <-stop:
			return
		default:
		}
		if i%2 == 1 {
			want := textOf(round)
			if err := savers[(i/2+round)%2*9].save(own, want); err != nil {
				t.Error(err)
				return
			}
			got, err := os.ReadFile(own)
			if err != nil || string(got) != want {
				t.Errorf("own file: %v, %d bytes %.40q, want %d", err, len(got), got, len(want))
				return
			}
			continue
		}
		least := saved.Load()
		got, err := os.ReadFile(s.path("d/f"))
		if !replaces { // a reader may see a half written file, as in any directory, but no foreign error
			if err != nil && !errors.Is(err, unix.ENOENT) {
				t.Error(err)
				return
			}
			continue
		}
		generation, werr := whole(got)
		if err != nil || werr != nil || int64(generation) < least {
			t.Errorf("a command read generation %d after %d was saved: %v %v", generation, least, err, werr)
			return
		}
	}
}

// git runs git in dir, without the configuration of the machine.
func gitIn(dir string, args ...string) (string, error) {
	settings := []string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0", "-c", "safe.directory=*"}
	cmd := exec.Command("git", append(settings, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("git %q in %s: %w: %s%s", args, dir, err, out.String(), problems.String())
	}
	return strings.TrimSpace(out.String()), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := gitIn(dir, args...)
	must(t, err)
	return out
}

// TestTheHostAndASessionCommitInOneRepository: on different worktrees, while a third
// command asks for the status. Every commit is there afterwards.
func TestTheHostAndASessionCommitInOneRepository(t *testing.T) {
	commits := coherenceRounds(t, 8)
	s := start(t, options{})
	host := s.back("repo")
	must(t, os.MkdirAll(host, 0o755))
	mustGit(t, host, "init", "-q", "-b", "main")
	for i := range 30 {
		must(t, os.WriteFile(filepath.Join(host, fmt.Sprint("f", i)), []byte("x\n"), 0o644))
	}
	mustGit(t, host, "add", "-A")
	mustGit(t, host, "commit", "-q", "-m", "first")
	mustGit(t, host, "worktree", "add", "-q", "../tree", "-b", "side")
	must(t, os.WriteFile(s.back("tree/.git"), []byte("gitdir: ../repo/.git/worktrees/tree\n"), 0o644)) // the mount has another path
	inside := s.path("tree")
	var all sync.WaitGroup
	stop := make(chan struct{})
	work := func(dir, who string) {
		for i := range commits {
			if err := os.WriteFile(filepath.Join(dir, "f0"), []byte(fmt.Sprintln(who, i)), 0o644); err != nil {
				t.Error(err)
				return
			}
			if _, err := gitIn(dir, "commit", "-q", "-a", "-m", fmt.Sprint(who, i)); err != nil {
				t.Error(err)
				return
			}
		}
	}
	var status sync.WaitGroup
	for _, dir := range []string{s.path("repo"), inside} {
		status.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := gitIn(dir, "--no-optional-locks", "status", "--porcelain"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Go(func() { work(host, "host") })
	all.Go(func() { work(inside, "inside") })
	all.Wait()
	close(stop)
	status.Wait()
	for _, dir := range []string{host, s.path("repo"), inside} {
		if got := mustGit(t, dir, "log", "--format=%s", "main", "side"); strings.Count(got, "\n") != 2*commits {
			t.Errorf("%s: %d commits, want %d", dir, strings.Count(got, "\n"), 2*commits)
		}
		mustGit(t, dir, "fsck", "--strict")
		if got := mustGit(t, dir, "status", "--porcelain"); got != "" {
			t.Errorf("%s is not clean: %s", dir, got)
		}
	}
}

// TestACommitAfterTheHostSwitchedTheBranch: the commit lands on the branch that the
// host checked out, and contains its files.
func TestACommitAfterTheHostSwitchedTheBranch(t *testing.T) {
	s := start(t, options{})
	host, inside := s.back("repo"), s.path("repo")
	must(t, os.MkdirAll(host, 0o755))
	mustGit(t, host, "init", "-q", "-b", "main")
	for _, branch := range []string{"main", "other"} {
		if branch != "main" {
			mustGit(t, host, "checkout", "-q", "-b", branch)
		}
		for i := range 20 {
			dir := filepath.Join(host, fmt.Sprint("d", i%4, branch[:i%2]))
			must(t, os.MkdirAll(dir, 0o755))
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte(branch+"\n"), 0o644))
		}
		mustGit(t, host, "add", "-A")
		mustGit(t, host, "commit", "-q", "-m", branch)
	}
	for i := range coherenceRounds(t, 6) {
		branch := []string{"main", "other"}[i%2]
		mustGit(t, inside, "status")
		mustGit(t, host, "checkout", "-q", branch)
		must(t, os.WriteFile(filepath.Join(inside, "new"), []byte(fmt.Sprintln(i, branch)), 0o644))
		mustGit(t, inside, "add", "-A")
		mustGit(t, inside, "commit", "-q", "-m", fmt.Sprint("inside ", i))
		if got := mustGit(t, host, "log", "-1", "--format=%s %D"); !strings.HasPrefix(got, fmt.Sprint("inside ", i, " HEAD -> ", branch)) {
			t.Fatalf("round %d: the commit is %s, want it on %s", i, got, branch)
		}
		got := strings.TrimSpace(mustGit(t, host, "show", "--name-only", "--format=", "HEAD"))
		if got != "new" {
			t.Fatalf("round %d: the commit has %s", i, got)
		}
		for _, dir := range []string{host, inside} {
			if got := mustGit(t, dir, "status", "--porcelain"); got != "" {
				t.Fatalf("round %d: %s is not clean: %s", i, dir, got)
			}
		}
	}
	mustGit(t, host, "fsck", "--strict")
}
