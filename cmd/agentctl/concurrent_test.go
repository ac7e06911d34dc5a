package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentsh/controller"
	"agentsh/controller/harness"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// The agents of all runs work at the same time. Meanwhile gc and the cleanup at
// the start of another run are executed.
func TestConcurrentRunsOnOneRepositoryAreSeparate(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n, " runs"), func(t *testing.T) {
			p := newFixture(
				t,
				`perl -e '$| = 1; print "agent at work\n"; sleep 1000'; echo "$AGENTSH_RUN_ID" > a.txt; git commit -q -a -m "$AGENTSH_RUN_ID"; git branch side; echo "$AGENTSH_RUN_ID" > "$AGENTSH_OUTPUT_DIR/id"`,
				"",
			)
			var atWork, ended sync.WaitGroup
			results := make([]controller.Result, n)
			for i := range n {
				atWork.Add(1)
				said := &watcher{want: []byte("| agent at work"), found: atWork.Done}
				ended.Go(func() {
					cmd := p.command(append(p.runArgs("--json"), "--out", fmt.Sprint("out", i))...)
					var out bytes.Buffer
					cmd.Stdout, cmd.Stderr = &out, said
					err := cmd.Run()
					if err = errors.Join(err, json.Unmarshal(out.Bytes(), &results[i])); err != nil {
						t.Errorf("run %d: %v\n%s", i, err, said.all.String())
					}
					if !said.done {
						atWork.Done()
					}
				})
			}
			atWork.Wait()
			if out, err := p.command("gc").CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("gc among living runs: %v\n%s", err, out)
			}
			if got := len(p.supervisors()); got != n {
				t.Errorf("%d sandboxes of %d runs", got, n)
			}
			p.wakeAgents()
			ended.Wait()
			p.checkApart(results)
		})
	}
}

// wakeAgents kills the perl process for which each agent waits. The process
// prints a line before it sleeps, so it is running by then.
func (p *fixture) wakeAgents() {
	for _, supervisor := range p.supervisors() {
		for _, pid := range descendants(supervisor) {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(name) == "perl\n" {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// checkApart fails the test if a run has other than its own results and
// branches.
func (p *fixture) checkApart(results []controller.Result) {
	p.t.Helper()
	for i, r := range results {
		out := fmt.Sprint("out", i)
		if r.Branch == "" || p.git("show", r.Branch+":a.txt") != r.RunID || strings.TrimSpace(p.read(out+"/files/a.txt")) != r.RunID ||
			strings.TrimSpace(p.read(out+"/output/id")) != r.RunID {
			p.t.Errorf("run %d: %+v", i, r)
		}
		if len(r.Commits) != 1 || r.Partial {
			p.t.Errorf("run %d: commits %v, partial %v", i, r.Commits, r.Partial)
		}
	}
	if out := p.git("fsck", "--full", "--strict", "--no-dangling"); out != "" {
		p.t.Errorf("git fsck: %s", out)
	}
	if branches := strings.Fields(p.git("for-each-ref", "--format=%(refname)", "refs/heads/agentctl/")); len(branches) != len(results) {
		p.t.Errorf("branches: %s", branches)
	}
}

// Two runs and a cleanup in one process, for the race detector.
func TestConcurrentRunsInOneProcessAreSeparate(t *testing.T) {
	p := newFixture(
		t,
		`echo "$AGENTSH_RUN_ID" > a.txt; git commit -q -a -m "$AGENTSH_RUN_ID"; echo "$AGENTSH_RUN_ID" > "$AGENTSH_OUTPUT_DIR/id"`,
		"",
	)
	state, err := statedir.Open(layout.State(p.path("state/agentsh")))
	if err != nil {
		t.Fatal(err)
	}
	backend := local.New(local.Config{State: state, Agentsh: p.bin + "/agentsh"})
	var runs sync.WaitGroup
	results := make([]controller.Result, 2)
	for i := range results {
		runs.Go(func() {
			var err error
			results[i], err = controller.Run(context.Background(), controller.Options{
				Harness: p.path(
					"harness.yaml",
				), Load: harness.Options{Root: p.dir}, Repo: p.path("repo"), Out: p.path(fmt.Sprint("out", i)), Backend: backend, State: state,
				Gateway: p.path("gateway"), Progress: func(controller.Update) {},
				Caller: controller.Caller{Environ: []string{"PATH=" + os.Getenv("PATH")}},
			})
			if err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	runs.Go(func() {
		if found, err := controller.Collect(context.Background(), state, backend,
			controller.CollectOptions{RunsOlderThan: controller.RecordAge}); err != nil ||
			len(found) > 0 {
			t.Errorf("collected %v: %v", found, err)
		}
	})
	runs.Wait()
	p.checkApart(results)
}
