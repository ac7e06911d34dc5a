package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/record"
)

// batchFixture is a fixture with a batch of one harness.
type batchFixture struct{ *fixture }

// numbered is an agent whose work has the variable N of its run.
const numbered = `echo "$N" > n.txt; git add n.txt; git commit -q -m "$N"; echo "$N" > "$AGENTSH_OUTPUT_DIR/n"`

// posting appends the variable N to a file of the host after the results were delivered.
const posting = "#!/bin/sh\necho \"$N\" >> \"$FULLSEND_DIR/posted\"\n"

func newBatchFixture(t testing.TB, agent, more string) *batchFixture {
	t.Helper()
	return &batchFixture{newFixture(t, agent, "env: {sandbox: {N: \"${N}\"}}\n"+more)}
}

// writeBatch writes a batch of n runs, with more lines.
func (p *batchFixture) writeBatch(n int, more string) {
	var numbers []string
	for i := range n {
		numbers = append(numbers, fmt.Sprint(i))
	}
	p.write("batch.yaml", "name: b\n"+more+"\nmatrix: {harness: harness.yaml, repo: repo, vars: {N: ["+strings.Join(numbers, ", ")+"]}}\n", 0o644)
}

// view is the latest batch as batch show has it.
func (p *batchFixture) view() *batch.View {
	p.t.Helper()
	out, errs, code := p.try("", "batch", "show", "latest", "--json")
	v := &batch.View{}
	if err := json.Unmarshal([]byte(out), v); code != 0 || err != nil {
		p.t.Fatalf("batch show: %d %v\n%s%s", code, err, out, errs)
	}
	return v
}

// checkDelivered fails the test unless each run of the batch has delivered its own work once.
func (p *batchFixture) checkDelivered(n int) {
	p.t.Helper()
	v := p.view()
	if v.Counts.Done() != n || len(v.State) != n {
		p.t.Errorf("%s: %+v", v.Status, v.Counts)
	}
	branches := strings.Fields(p.git("for-each-ref", "--format=%(refname:short)", "refs/heads/agentctl/"))
	if len(branches) != n {
		p.t.Errorf("%d branches of %d runs: %s", len(branches), n, branches)
	}
	for i, one := range v.State {
		want := fmt.Sprint(i)
		if one.End == nil || !slices.Contains(branches, one.End.Branch) || p.git("show", one.End.Branch+":n.txt") != want {
			p.t.Errorf("run %s: %+v", one.Name, one.End)
			continue
		}
		var r controller.Result
		p.readJSON("out/b/"+one.Name+"/result.json", &r)
		if r.RunID != one.RunID || strings.TrimSpace(p.read("out/b/"+one.Name+"/output/n")) != want || r.Branch != one.End.Branch {
			p.t.Errorf("run %s is %s, its results are those of %s", one.Name, one.RunID, r.RunID)
		}
		rec, err := record.Read(one.End.Record)
		if err != nil || rec.Batch == nil || rec.Batch.ID != v.ID || rec.Batch.Name != one.Name || rec.Status != controller.StatusDone {
			p.t.Errorf("run %s: its record is %+v, %v", one.Name, rec, err)
		}
	}
}

func TestABatchDeliversTheWorkOfEachRun(t *testing.T) {
	t.Parallel()
	p := newBatchFixture(t, numbered, "post_script: post.sh")
	p.write("post.sh", posting, 0o755)
	p.writeBatch(4, "caps: {runs: 3}\nlabels: {team: tools}")
	out, errs, code := p.try("", "batch", "batch.yaml")
	if code != 0 || !strings.Contains(out, "4 of 4 done") || strings.Count(out, "started harness-") != 4 {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	p.checkDelivered(4)
	posted := strings.Fields(p.read("posted"))
	if slices.Sort(posted); strings.Join(posted, "") != "0123" {
		t.Errorf("posted %s", posted)
	}
	out, _, code = p.try("", "batch", "show", "latest", "--label", "run=harness-2", "--label", "team=tools")
	if code != 0 || strings.Count(out, "harness-") != 1 || !strings.Contains(out, "agentctl/tester/") {
		t.Errorf("show: %d\n%s", code, out)
	}
	if out, _, code = p.try("", "batch", "list"); code != 0 || !strings.Contains(out, "  done    b     ") || !strings.Contains(out, "4 of 4") {
		t.Errorf("list: %d\n%s", code, out)
	}
	if out, errs, code = p.try("", "batch", "report", "latest", "--out", "page.html"); code != 0 {
		t.Errorf("report: %d\n%s%s", code, out, errs)
	}
	page := p.read("page.html")
	for _, v := range p.view().State {
		if !strings.Contains(page, v.Name) || !strings.Contains(page, v.RunID) {
			t.Errorf("the page has no run %s", v.Name)
		}
	}
	if out, _, code = p.try("", "batch", "report", "latest", "-o", "markdown"); code != 0 || !strings.Contains(out, "- `harness-3`: `done`") {
		t.Errorf("report: %d\n%s", code, out)
	}
	if out, errs, code = p.try("", "batch", "resume", "latest"); code != 0 || p.view().Counts.Done() != 4 {
		t.Errorf("resumed without anything to do: %d\n%s%s", code, out, errs)
	}
	if _, errs, code = p.try("", "batch", "stop", "latest"); code != 2 || !strings.Contains(errs, "is not going on: done") {
		t.Errorf("stop: %d %s", code, errs)
	}
}

func TestABatchComesFromStandardInputAndPrintsJSON(t *testing.T) {
	t.Parallel()
	p := newBatchFixture(t, numbered, "")
	const text = `{"runs": [{"harness": "harness.yaml", "repo": "repo", "vars": {"N": "0"}, "name": "one"}]}`
	out, errs, code := p.try(text, "batch", "-", "--json", "--out", "out/b")
	var kinds []string
	var last struct{ Batch *batch.View }
	for line := range strings.Lines(out) {
		var e struct{ Event string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		kinds = append(kinds, e.Event)
		_ = json.Unmarshal([]byte(line), &last)
	}
	if code != 0 || strings.Join(kinds, " ") != "warning start end batch" && strings.Join(kinds, " ") != "start end batch" {
		t.Fatalf("%d: %s\n%s%s", code, kinds, out, errs)
	}
	if last.Batch.Status != batch.StatusDone || last.Batch.Name != "batch" {
		t.Errorf("%+v", last.Batch)
	}
	p.checkDelivered(1)
}

func TestAllMistakesOfABatchAreReportedBeforeAnyRun(t *testing.T) {
	t.Parallel()
	p := newBatchFixture(t, numbered, "")
	p.write("second.yaml", "agent: agents/tester.md\nrole: tester\nrutime: command\n", 0o644)
	p.write("batch.yaml", "cap: {runs: 1}\nruns: [{harness: harness.yaml, repo: repo}]\n", 0o644)
	_, errs, code := p.try("", "batch", "batch.yaml")
	if code != 2 || !strings.Contains(errs, `batch.yaml:1:1: error: a batch has no key "cap"`) || !strings.Contains(errs, `hint: did you mean "caps"?`) {
		t.Errorf("%d %s", code, errs)
	}
	p.write("batch.yaml", "runs: [{harness: second.yaml, repo: repo}, {harness: harness.yaml, repo: rep}]\n", 0o644)
	for _, args := range [][]string{{"batch", "batch.yaml"}, {"lint", "batch.yaml"}} {
		out, errs, code := p.try("", args...)
		all := out + errs
		if code != 2 || !strings.Contains(all, `second.yaml:3:1: error: `) || !strings.Contains(all, "batch.yaml:1:74: error: repo: rep is no directory") {
			t.Errorf("%s: %d %s", args, code, all)
		}
	}
	if left, _ := filepath.Glob(p.path("state/agentsh/*/*")); len(left) > 0 {
		t.Errorf("made: %s", left)
	}
	p.writeBatch(2, "")
	if out, _, code := p.try("", "lint", "batch.yaml"); code != 0 || !strings.Contains(out, "no problems") {
		t.Errorf("lint: %d %s", code, out)
	}
	out, errs, code := p.try("", "batch", "--dry-run", "batch.yaml")
	if code != 0 || strings.Count(out, "\nharness-") != 2 || !strings.Contains(out, "N=1") {
		t.Errorf("dry run: %d %s%s", code, out, errs)
	}
}

func TestTwoBatchesAtOnceAreSeparate(t *testing.T) {
	t.Parallel()
	p := newBatchFixture(t, numbered, "")
	p.writeBatch(2, "caps: {runs: 2}")
	var ended sync.WaitGroup
	for i := range 2 {
		ended.Go(func() {
			if out, errs, code := p.try("", "batch", "batch.yaml", "--out", fmt.Sprint("out", i)); code != 0 {
				t.Errorf("%d\n%s%s", code, out, errs)
			}
		})
	}
	ended.Wait()
	for i := range 2 {
		for n := range 2 {
			if got := strings.TrimSpace(p.read(fmt.Sprintf("out%d/harness-%d/output/n", i, n))); got != fmt.Sprint(n) {
				t.Errorf("batch %d, run %d: %q", i, n, got)
			}
		}
	}
	if branches := strings.Fields(p.git("for-each-ref", "--format=%(refname)", "refs/heads/agentctl/")); len(branches) != 4 {
		t.Errorf("branches: %s", branches)
	}
}

// startBatch starts a batch and waits until a number of its agents say that they are at work.
func (p *batchFixture) startBatch(agents int) (*exec.Cmd, *bytes.Buffer) {
	p.t.Helper()
	cmd := p.command("batch", "batch.yaml", "--json")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for seen := 0; seen < agents && lines.Scan(); {
		if strings.Contains(lines.Text(), `"event":"start"`) {
			seen++
		}
	}
	go func() {
		for lines.Scan() {
		}
	}()
	eventually(p.t, func() bool {
		working := 0
		for _, one := range p.view().State {
			log, _ := os.ReadFile(p.path("out/b/.agentctl-" + one.RunID + "/agent.log"))
			if bytes.Contains(log, []byte("at work")) {
				working++
			}
		}
		return working == agents
	})
	return cmd, &errs
}

func TestCtrlCStopsABatchWithItsWorkAndTwiceAtOnce(t *testing.T) {
	for _, times := range []int{1, 2} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			p := newBatchFixture(t, numbered+"; echo at work; sleep 1000", "")
			p.writeBatch(3, "caps: {runs: 2}")
			adopt(t)
			cmd, errs := p.startBatch(2)
			for range times {
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			waitOrphans(t)
			if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "agentctl batch resume ") {
				t.Errorf("exit code %d\n%s", code, errs)
			}
			v := p.view()
			if v.Live || !v.CanResume() || v.State[2].Attempts != 0 {
				t.Errorf("%s %+v", v.Status, v.State)
			}
			if branches := strings.Fields(p.git("for-each-ref", "--format=%(refname)", "refs/heads/agentctl/")); times == 1 && len(branches) != 2 {
				t.Errorf("what was done so far: %s", branches)
			}
			// The agents of the next attempts end.
			p.write("skills/task/run.sh", "#!/bin/bash\n"+numbered+"\n", 0o755)
			for _, b := range strings.Fields(p.git("for-each-ref", "--format=%(refname)", "refs/heads/agentctl/")) {
				p.git("update-ref", "-d", b)
			}
			if out, errs, code := p.try("", "batch", "resume", "latest"); code != 0 {
				t.Errorf("resume: %d\n%s%s", code, out, errs)
			}
			p.checkDelivered(3)
		})
	}
}

// Runs at a place whose sandboxes and carriers are killed at random: each run is done, once.
func TestABatchGetsDoneAtAPlaceThatFailsAtRandom(t *testing.T) {
	p := newBatchFixture(t, numbered, "post_script: post.sh")
	p.write("post.sh", posting, 0o755)
	p.elsewhere()
	n, kills := 5, 4
	if *moments > 1 {
		n, kills = 20, 20
	}
	adopt(t)
	p.writeBatch(n, "caps: {runs: 4}\nretries: {attempts: 50, delay: 50ms, max_delay: 1s}")
	cmd := p.command(append([]string{"batch", "batch.yaml", "--lease", "10s"}, p.place...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() { p.killAtRandom(cmd.Process.Pid, kills, stop) })
	_ = cmd.Wait()
	close(stop)
	killing.Wait()
	t.Logf("%s", said.String())
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	further := 0
	for i, one := range p.view().State {
		further += one.Attempts - 1
		if one.End.Status != controller.StatusDone || strings.TrimSpace(p.read("out/b/"+one.Name+"/output/n")) != fmt.Sprint(i) {
			t.Errorf("run %s: %+v", one.Name, one.End)
		}
	}
	t.Logf("%d further attempts", further)
	posted := strings.Fields(p.read("posted"))
	slices.Sort(posted)
	if len(slices.Compact(slices.Clone(posted))) != n || len(posted) != n {
		t.Errorf("posted: %s", posted)
	}
	if out, errs, code := p.try("", append([]string{"gc"}, p.place...)...); code != 0 {
		t.Errorf("gc: %d\n%s%s", code, out, errs)
	}
}

// killAtRandom kills supervisors of sandboxes elsewhere, and carriers, until stop is closed.
func (p *batchFixture) killAtRandom(controller, kills int, stop chan struct{}) {
	for kills > 0 {
		select {
		case <-time.After(time.Duration(300+rand.IntN(700)) * time.Millisecond):
		case <-stop:
			return
		}
		var pids []int
		labels, _ := filepath.Glob(p.path("place/agentsh/remote/*/labels.json"))
		for _, name := range labels {
			var l struct{ PID int }
			if data, err := os.ReadFile(name); err == nil && json.Unmarshal(data, &l) == nil && l.PID > 0 {
				pids = append(pids, l.PID, l.PID)
			}
		}
		// A child that has not executed its program yet may become a guard or git.
		for _, pid := range childrenOf(controller) {
			if env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); bytes.Contains(env, []byte("="+p.path("place")+"\x00")) {
				pids = append(pids, pid) // a carrier
			}
		}
		if len(pids) == 0 {
			continue
		}
		kills--
		_ = syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL)
	}
}
