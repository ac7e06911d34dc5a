package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentsh/controller"
)

// newBoxFixture is a fixture on a file system of its own, for sandboxes without runs.
func newBoxFixture(t *testing.T, size string) *crashFixture {
	t.Helper()
	p := &crashFixture{fixture: newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, size) }, "exit 1", "")}
	p.write("tmp/.keep", "", 0o600)
	p.setenv = []string{"TMPDIR=" + p.path("tmp")}
	p.opens = p.watchOpens()
	return p
}

// countBoxOpens makes and deletes a sandbox, and returns how many files each of both opens.
func countBoxOpens(t *testing.T) (create, remove int) {
	t.Helper()
	p := newBoxFixture(t, "1g")
	all := func() (n int) {
		for _, of := range p.opens.end() {
			n += of
		}
		return n
	}
	p.opens.begin(func(open) {})
	id := strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml", "--repo", "repo"))
	create = all()
	p.opens.begin(func(open) {})
	p.must("sandbox", "delete", id)
	return create, all()
}

// atOpen calls do once, when file number k is opened.
func (p *crashFixture) atOpen(k int, do func()) {
	var once sync.Once
	seen := 0
	p.opens.begin(func(open) {
		if seen++; seen >= k {
			once.Do(do)
		}
	})
}

// checkNoBox fails the test unless gc has removed all that sandboxes left.
func (p *crashFixture) checkNoBox() {
	p.t.Helper()
	if out, err := p.command("gc").CombinedOutput(); err != nil {
		p.t.Errorf("gc: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"gc"}, {"sandbox", "list"}} {
		if out, err := p.command(args...).CombinedOutput(); err != nil || len(out) > 0 {
			p.t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	for _, pattern := range []string{"state/agentsh/sandboxes/*", "tmp/agentctl-*", "state/agentsh/runs/*/work/*"} {
		if left, _ := filepath.Glob(p.path(pattern)); len(left) > 0 {
			p.t.Errorf("left behind: %s", left)
		}
	}
	p.checkUnfinished()
}

// TestAFullDiskWhileASandboxIsMadeOrDeletedIsOneClearLine fills the disk at moments of both, and frees it.
func TestAFullDiskWhileASandboxIsMadeOrDeletedIsOneClearLine(t *testing.T) {
	create, remove := countBoxOpens(t)
	for command, n := range map[string]int{"create": create, "delete": remove} {
		for _, k := range spread(n, 2**moments) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", command, k, n), func(t *testing.T) {
				p := newBoxFixture(t, "80m")
				adopt(t)
				args := []string{"sandbox", "create", "--policy", "policy.yaml", "--repo", "repo"}
				if command == "delete" {
					args = []string{"sandbox", "delete", strings.TrimSpace(p.must(args...))}
				}
				p.atOpen(k, p.fill)
				out, errs, code := p.try("", args...)
				p.opens.end()
				t.Logf("%d\n%s%s", code, out, errs)
				if code != 0 && (code != controller.ExitSandbox || !strings.Contains(errs, "no space left on device") ||
					!strings.Contains(errs, "hint: free some disk space")) {
					t.Errorf("exit code %d", code)
				}
				if err := os.Remove(p.path("filler")); err != nil {
					t.Error(err)
				}
				if code == 0 && command == "create" || code != 0 && command == "delete" {
					id := strings.TrimSpace(out)
					if command == "delete" {
						id = args[2]
					}
					if _, errs, code := p.try("", "sandbox", "delete", id); code != 0 && !strings.Contains(errs, "no such sandbox") {
						t.Errorf("delete when there is space: %d %s", code, errs)
					}
				}
				waitOrphans(t)
				p.checkNoBox()
			})
		}
	}
}

// TestASandboxWhoseProgramsAreKilledLeavesNothing kills the program in front, the one that holds the sandbox, or both, at
// moments of its making.
func TestASandboxWhoseProgramsAreKilledLeavesNothing(t *testing.T) {
	n, _ := countBoxOpens(t)
	for who, victims := range map[string]func(front int) []int{
		"the program in front": func(front int) []int { return []int{front} },
		"the holder":           childrenOf,
		// The one in front is first: it would end with an error when it sees that the other is gone.
		"both": func(front int) []int { return append([]int{front}, childrenOf(front)...) },
	} {
		for _, k := range spread(n, 2**moments) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", who, k, n), func(t *testing.T) {
				p := newBoxFixture(t, "1g")
				adopt(t)
				cmd := p.command("sandbox", "create", "--policy", "policy.yaml", "--repo", "repo")
				var name, said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &name, &said
				started := make(chan struct{})
				p.atOpen(k, func() {
					<-started
					for _, pid := range victims(cmd.Process.Pid) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				})
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				close(started)
				_ = cmd.Wait()
				switch code := cmd.ProcessState.ExitCode(); {
				case code == 0: // the moment came late
					out, errs, code := p.try("", "sandbox", "delete", strings.TrimSpace(name.String()))
					if code != 0 && !strings.Contains(errs, "no such sandbox") {
						t.Errorf("delete: %d %s%s", code, out, errs)
					}
				case who == "the holder":
					if code != controller.ExitSandbox || !strings.Contains(said.String(), "was ended: signal: killed") {
						t.Errorf("exit code %d: %s", code, &said)
					}
				case code != -1:
					t.Errorf("it was not killed: %s\n%s", cmd.ProcessState, &said)
				}
				waitOrphans(t) // no process stays
				p.opens.end()
				p.checkNoBox()
			})
		}
	}
}

// TestASandboxWhoseNameNobodyReadsEnds has the program in front end when it prints the name: by a signal, and by an error.
func TestASandboxWhoseNameNobodyReadsEnds(t *testing.T) {
	read, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	_ = read.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, tt := range []struct {
		name   string
		out    *os.File
		state  string
		stderr string
	}{
		{"by a signal", closed, "signal: broken pipe", ""},
		{"by an error", full, "exit status 2", "no space left on device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBoxFixture(t, "1g")
			adopt(t)
			cmd := p.command("sandbox", "create", "--policy", "policy.yaml", "--repo", "repo")
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = tt.out, &said
			_ = cmd.Run() // the state says it
			if got := cmd.ProcessState.String(); got != tt.state || !strings.Contains(said.String(), tt.stderr) {
				t.Errorf("%s: %s", got, &said)
			}
			waitOrphans(t)
			p.checkNoBox()
		})
	}
}

// TestACommandThatIsKilledLeavesItsSandbox kills exec and cp of a sandbox in the middle. The sandbox goes on without what they did, and
// gc has nothing left to do after it has run.
func TestACommandThatIsKilledLeavesItsSandbox(t *testing.T) {
	p := newBoxFixture(t, "1g")
	adopt(t)
	for i := range 200 {
		p.write(fmt.Sprintf("tree/%d", i), strings.Repeat("x", 10000), 0o644)
	}
	id := strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml", "--repo", "repo"))
	p.must("sandbox", "cp", p.path("tree"), id+":/sandbox/workspace/made")
	kill := func(args []string, at func(cmd *exec.Cmd)) {
		cmd := p.command(args...)
		at(cmd)
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != -1 {
			t.Errorf("%v was not killed: %v", args, err)
		}
		p.opens.end()
	}
	kill([]string{"sandbox", "exec", id, "--", "sh", "-c", "echo begun; exec sleep 98761"}, func(cmd *exec.Cmd) {
		cmd.Stdout = &watcher{want: []byte("begun"), found: func() { _ = cmd.Process.Kill() }}
	})
	eventually(t, func() bool {
		return exec.Command("pgrep", "-f", "^sleep 98761$").Run() != nil // of this machine: it finds none
	})
	for _, args := range [][]string{
		{"sandbox", "cp", id + ":/sandbox/workspace/made", p.path("came")}, {"sandbox", "cp", p.path("tree"), id + ":/sandbox/workspace/went"},
	} {
		kill(args, func(cmd *exec.Cmd) { p.atOpen(150, func() { _ = cmd.Process.Kill() }) })
	}
	if left, err := os.ReadDir(p.path("came")); err == nil {
		t.Errorf("a copy has %d of 200 files", len(left))
	}
	if out := p.must("sandbox", "exec", id, "--", "sh", "-c", "cat a.txt; ls ../made | wc -l"); out != "one\n200\n" {
		t.Errorf("the sandbox has %q", out)
	}
	if out, err := p.command("gc").CombinedOutput(); err != nil {
		t.Errorf("gc: %v %s", err, out)
	}
	if left, _ := filepath.Glob(p.path(".agent*")); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	p.must("sandbox", "delete", id)
	waitOrphans(t)
	p.checkNoBox()
}
