package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/batch"
)

// crashBatch is the number of runs of the batches that are killed.
const crashBatch = 3

// newCrashBatch makes a batch on a file system of its own, whose opens are watched.
func newCrashBatch(t *testing.T, size string) (*batchFixture, *opens) {
	t.Helper()
	p := &batchFixture{
		newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, size) }, numbered, "env: {sandbox: {N: \"${N}\"}}\npost_script: post.sh"),
	}
	p.write("post.sh", posting, 0o755)
	p.write("posted", "", 0o644)
	p.writeBatch(crashBatch, "caps: {runs: 2}\nretries: {attempts: 9, delay: 1s, max_delay: 1s}")
	return p, p.watchOpens()
}

// countOpens counts the opens of files of a whole batch.
func countOpens(t *testing.T) int {
	t.Helper()
	p, o := newCrashBatch(t, "1g")
	n := 0
	o.begin(func(open) { n++ })
	if out, errs, code := p.try("", "batch", "batch.yaml"); code != 0 {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	o.end()
	p.checkDelivered(crashBatch)
	return n
}

func TestABatchThatIsKilledAtAnyMomentIsResumed(t *testing.T) {
	n := countOpens(t)
	t.Logf("%d opens", n)
	for i, k := range spread(n, 2**moments) {
		t.Run(fmt.Sprintf("at open %d of %d", k, n), func(t *testing.T) {
			p, o := newCrashBatch(t, "1g")
			adopt(t)
			cmd := p.command("batch", "batch.yaml")
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			started := make(chan bool)
			var once sync.Once
			seen := 0
			o.begin(func(open) {
				if seen++; seen >= k {
					once.Do(func() { <-started; _ = cmd.Process.Kill() })
				}
			})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			_ = cmd.Wait()
			waitOrphans(t)
			o.end()
			if cmd.ProcessState.ExitCode() != -1 {
				t.Logf("it was not killed: %s\n%s", cmd.ProcessState, &said) // it had fewer opens than the first one
			}
			if i%2 == 1 { // what cleans up in between changes nothing
				if out, err := p.command("gc").CombinedOutput(); err != nil {
					t.Errorf("gc: %v\n%s", err, out)
				}
			}
			p.finishBatch()
			p.checkOnce()
		})
	}
}

// finishBatch resumes the batch, or starts it if it has no record yet.
func (p *batchFixture) finishBatch() {
	p.t.Helper()
	out, errs, code := p.try("", "batch", "--once", "batch.yaml")
	if code != 0 && code != controller.ExitAgentFailed { // a run may be post_script_failed
		p.t.Errorf("resume: %d\n%s%s", code, out, errs)
	}
	if out, err := p.command("gc").CombinedOutput(); err != nil || len(out) > 0 {
		p.t.Errorf("gc has something left to do: %v\n%s", err, out)
	}
}

// checkOnce fails the test unless each run has delivered once, and no post_script ran twice.
// A run may have failed with one of the texts.
func (p *batchFixture) checkOnce(texts ...string) {
	p.t.Helper()
	posted := strings.Fields(p.read("posted"))
	branches := strings.Fields(p.git("for-each-ref", "--format=%(refname:short)", "refs/heads/agentctl/"))
	failed := 0
	for i, one := range p.view().State {
		n := fmt.Sprint(i)
		times := len(slices.DeleteFunc(slices.Clone(posted), func(s string) bool { return s != n }))
		cut := one.End != nil && one.End.Status == controller.StatusPostScriptFailed && strings.Contains(one.End.Message, "agentctl was killed")
		if one.End != nil && one.End.ExitCode != 0 &&
			slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(one.End.Step+one.End.Message, s) }) {
			p.t.Logf("run %s: %s: %s", one.Name, one.End.Status, one.End.Message)
			failed++
			continue
		}
		if one.State != batch.StateEnded || one.End.Status != controller.StatusDone && !cut || times > 1 || times == 0 && !cut {
			p.t.Errorf("run %s is %s, %+v, and was posted %d times", one.Name, one.State, one.End, times)
			continue
		}
		var r controller.Result
		p.readJSON("out/b/"+one.Name+"/result.json", &r)
		if r.RunID != one.RunID || !slices.Contains(branches, r.Branch) || p.git("show", r.Branch+":n.txt") != n {
			p.t.Errorf("run %s is %s, its results are those of %s on %s", one.Name, one.RunID, r.RunID, r.Branch)
		}
	}
	if len(branches) != crashBatch && failed == 0 {
		p.t.Errorf("%d branches of %d runs: %s", len(branches), crashBatch, branches)
	}
}

// The sandbox of a run has ended when its branch is made: nobody can take it over then.
func TestABatchElsewhereThatIsKilledBeforeItsResultsAreThereIsDoneOnce(t *testing.T) {
	p, o := newCrashBatch(t, "1g")
	p.elsewhere()
	adopt(t)
	cmd := p.command(append([]string{"batch", "batch.yaml", "--lease", "10s"}, p.place...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	started := make(chan bool)
	var once sync.Once
	o.begin(func(one open) {
		if strings.Contains(one.name, "/.agentctl-") && strings.Contains(one.name, "result.json") {
			once.Do(func() { <-started; _ = cmd.Process.Kill() })
		}
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	_ = cmd.Wait()
	waitOrphans(t)
	o.end()
	if cmd.ProcessState.ExitCode() != -1 || p.git("for-each-ref", "refs/heads/agentctl/") == "" {
		t.Fatalf("it was not killed when a branch was there: %s\n%s", cmd.ProcessState, &said)
	}
	if out, errs, code := p.try("", append([]string{"batch", "--once", "batch.yaml", "--lease", "10s"}, p.place...)...); code != 0 {
		t.Errorf("resume: %d\n%s%s", code, out, errs)
	}
	p.checkOnce()
}

func TestABatchOnAFullDiskIsResumed(t *testing.T) {
	t.Parallel()
	n := countOpens(t)
	for _, k := range spread(n, 2**moments) {
		t.Run(fmt.Sprintf("at open %d of %d", k, n), func(t *testing.T) {
			p, o := newCrashBatch(t, "120m")
			crash := &crashFixture{fixture: p.fixture}
			var once sync.Once
			seen := 0
			o.begin(func(open) {
				if seen++; seen >= k {
					once.Do(crash.fill)
				}
			})
			cmd := p.command("batch", "batch.yaml")
			full := make(chan struct{})
			said := &watcher{want: []byte("no space left"), found: func() { close(full) }}
			cmd.Stdout, cmd.Stderr = said, said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			select {
			case <-full:
			case <-ended:
			}
			if err := os.Remove(p.path("filler")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			<-ended
			o.end()
			code := cmd.ProcessState.ExitCode()
			t.Logf("%d\n%s", code, said.all.String())
			if code == controller.ExitSandbox && !strings.Contains(said.all.String(), "hint: free some disk space") {
				t.Errorf("exit code %d", code)
			}
			_ = os.Remove(p.path("filler"))
			p.finishBatch()
			p.checkOnce("no space left", "post_script", "exited with status")
		})
	}
}

// TestAReadOnlyStateDirectoryIsOneClearLine has runs, batches and sandboxes of a state directory that cannot be made, or be written.
func TestAReadOnlyStateDirectoryIsOneClearLine(t *testing.T) {
	t.Parallel()
	p := newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, "16m") }, "exit 1", "")
	p.write("batch.yaml", "runs: [{harness: harness.yaml, repo: repo}]\n", 0o644)
	readOnly := func(flags uintptr) {
		if err := unix.Mount("", p.dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, made := range []string{"", "state/agentsh", "state/agentsh/runs", "state/agentsh/sandboxes"} {
		readOnly(0)
		if err := os.MkdirAll(p.path(made), 0o700); err != nil {
			t.Fatal(err)
		}
		readOnly(unix.MS_RDONLY)
		for _, args := range [][]string{p.runArgs(), {"batch", "batch.yaml"}, {"sandbox", "create", "--policy", "policy.yaml"}} {
			_, errs, code := p.try("", args...)
			if code != controller.ExitSandbox || !strings.Contains(errs, "read-only file system") ||
				!strings.Contains(errs, "set XDG_STATE_HOME to ") {
				t.Errorf("with %q: %v: %d %s", made, args, code, errs)
			}
		}
	}
}
