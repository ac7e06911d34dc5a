package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentsh/controller"
	"agentsh/controller/record"
)

// waitsForSpace is said by a run that waits for space.
const waitsForSpace = "goes on by itself"

// stepTaken is the part of a run in which the work of the agent, which has ended, is taken out.
const stepTaken = "work is taken out"

// atEnd calls do once at open number k of a step, or a later one, as [crashFixture.at] does. The opens of stepTaken
// are those of iterations from the first file of the results after the agent has ended.
func (p *crashFixture) atEnd(steps []string, step string, k int, do func()) {
	if step != stepTaken {
		p.at(steps, step, k, do)
		return
	}
	var once sync.Once
	seen := 0
	p.opens.begin(func(o open) {
		if taken(o, seen) {
			seen++
		}
		if seen >= k || o.step == "deliver" {
			once.Do(do)
		}
	})
}

// taken reports whether an open is one of stepTaken. before are those before it.
func taken(o open, before int) bool {
	ofResults := strings.Contains(o.name, "/.agentctl-") && !strings.Contains(filepath.Base(o.name), "agent") // the agent's logs are open
	return o.step == "iterations" && (before > 0 || ofResults)
}

// free removes what [crashFixture.fill] has made.
func (p *crashFixture) free() {
	if err := os.Remove(p.path("filler")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Error(err)
	}
}

// rehearseEnd makes complete runs. It returns the number of files opened in the steps at their end.
func rehearseEnd(t *testing.T, of func(*testing.T, string) *crashFixture) (steps []string, counts map[string]int) {
	t.Helper()
	steps, counts = rehearse(t, of)
	p := of(t, "1g")
	seen := 0
	p.opens.begin(func(o open) {
		if taken(o, seen) {
			seen++
		}
	})
	cmd, said := p.start()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	p.opens.end()
	counts[stepTaken] = seen
	t.Logf("opens in each step: %v", counts)
	return steps, counts
}

// checkWhole fails the test unless a run has delivered all the work, and nothing is left.
func (p *crashFixture) checkWhole() {
	p.t.Helper()
	if _, err := os.Lstat(p.path("out/old")); err == nil || p.isPartial() {
		p.t.Error("the results are not whole")
	}
	p.checkResults()
	p.checkTarget()
	var r controller.Result
	if p.readJSON("out/result.json", &r); r.Status != controller.StatusDone || r.AuditGaps != 0 || !r.Delivered {
		p.t.Errorf("%+v", r)
	}
	p.checkLog()
	if out, err := p.command("gc").CombinedOutput(); err != nil || len(out) > 0 {
		p.t.Errorf("gc has something left to do: %v\n%s", err, out)
	}
	p.checkUnfinished()
}

// TestADiskThatIsFullAtTheEndOfARunLosesNothing fills the disk at moments after the agent has ended, and frees it
// when the run says that it waits.
func TestADiskThatIsFullAtTheEndOfARunLosesNothing(t *testing.T) {
	losesNothing(t, newCrashFixture, map[string]int{stepTaken: 3, "scan_output": 1, "deliver": 3, "post_script": 1, record.StepDelete: 1})
}

func TestADiskThatIsFullAtTheEndOfARunElsewhereLosesNothing(t *testing.T) {
	losesNothing(t, newElsewhereCrash, map[string]int{stepTaken: 2, "deliver": 2})
}

func TestADiskThatIsFullAtTheEndOfAnAgentOnTheHostLosesNothing(t *testing.T) {
	losesNothing(t, newOnHostCrash, map[string]int{"deliver": 3})
}

// newElsewhereCrash is a [crashFixture] whose sandbox is on another disk.
func newElsewhereCrash(t *testing.T, size string) *crashFixture {
	t.Helper()
	place := t.TempDir()
	p := newCrashFixture(t, size)
	p.place = []string{"--backend", "exec", "--connect", "exec:env -i HOME=" + place + " XDG_STATE_HOME=" + place + " TMPDIR=/tmp /bin/sh"}
	return p
}

// losesNothing fills the disk at moments of steps, at least so many of each.
func losesNothing(t *testing.T, of func(*testing.T, string) *crashFixture, in map[string]int) {
	t.Helper()
	steps, counts := rehearseEnd(t, of)
	for step, atLeast := range in {
		waited := false
		for _, k := range spread(counts[step], max(*moments, atLeast)) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", step, k, counts[step]), func(t *testing.T) {
				p := of(t, "80m")
				p.wait = "5m"
				p.atEnd(steps, step, k, p.fill)
				said := &watcher{want: []byte(waitsForSpace), found: func() { waited = true; p.free() }}
				cmd := p.startInto(said)
				_ = cmd.Wait()
				p.opens.end()
				t.Logf("%s\n%s", cmd.ProcessState, &said.all)
				if code := cmd.ProcessState.ExitCode(); code != controller.ExitDone {
					t.Errorf("exit code %d", code)
				}
				if n := strings.Count(said.all.String(), waitsForSpace); n > 1 {
					t.Errorf("it says %d times that it waits", n)
				}
				p.free()
				p.checkWhole()
			})
		}
		if !waited && (step == stepTaken || step == "deliver") {
			t.Errorf("no run waited in %s", step)
		}
	}
}

// TestWaitingForSpaceEnds has a disk that nobody frees while the work is taken out.
func TestWaitingForSpaceEnds(t *testing.T) {
	steps, counts := rehearseEnd(t, newCrashFixture)
	for _, step := range []string{stepTaken, "deliver"} {
		k := spread(counts[step], 1)[0]
		begin := func(t *testing.T, wait string, found func(p *crashFixture, pid int)) (*crashFixture, int, string) {
			p := newCrashFixture(t, "80m")
			adopt(t)
			p.wait = wait
			p.atEnd(steps, step, k, p.fill)
			pid := make(chan int, 1)
			said := &watcher{want: []byte(waitsForSpace), found: func() { found(p, <-pid) }}
			cmd := p.startInto(said)
			pid <- cmd.Process.Pid
			_ = cmd.Wait()
			p.opens.end()
			waitOrphans(t)
			t.Logf("%s\n%s", cmd.ProcessState, &said.all)
			p.free()
			if !strings.Contains(said.all.String(), waitsForSpace) {
				t.Error("it did not wait")
			}
			return p, cmd.ProcessState.ExitCode(), said.all.String()
		}
		t.Run(step+", by a second signal", func(t *testing.T) {
			p, code, _ := begin(t, "5m", func(_ *crashFixture, pid int) {
				_, _ = syscall.Kill(pid, syscall.SIGINT), syscall.Kill(pid, syscall.SIGTERM)
			})
			if code != 128+int(syscall.SIGINT) && code != 128+int(syscall.SIGTERM) { // either may come first
				t.Errorf("exit code %d", code)
			}
			p.collect(false)
			p.checkTarget()
		})
		if step == stepTaken { // later nobody is let in
			t.Run(step+", by an operator", func(t *testing.T) {
				deleted := make(chan string, 1)
				p, code, _ := begin(t, "5m", func(p *crashFixture, _ int) {
					go func() { // ends with the sandbox
						out, err := p.command("sandbox", "delete", "latest", "--force").CombinedOutput()
						deleted <- fmt.Sprint(err, string(out))
					}()
				})
				if said := <-deleted; code != 128+int(syscall.SIGTERM) {
					t.Errorf("exit code %d, delete: %s", code, said)
				}
				p.collect(false)
				p.checkTarget()
			})
		}
		t.Run(step+", by its time", func(t *testing.T) {
			p, code, said := begin(t, "1s", func(*crashFixture, int) {})
			p.checkFull(code, said)
			if n := strings.Count(said, waitsForSpace); n > 1 {
				t.Errorf("it says %d times that it waits", n)
			}
			p.collect(false)
			p.checkTarget()
		})
		t.Run(step+", by SIGKILL", func(t *testing.T) {
			p, code, _ := begin(t, "5m", func(_ *crashFixture, pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) })
			if code != -1 {
				t.Errorf("exit code %d", code)
			}
			p.collect(false)
			p.checkTarget()
			p.checkResults()
			p.checkUnfinished()
			p.checkNoValue()
		})
	}
}

// TestWorkThatIsLargerThanTheRoomIsNotLost has a disk with room for small files alone: after a failure it is not full.
func TestWorkThatIsLargerThanTheRoomIsNotLost(t *testing.T) {
	for name, agent := range map[string]string{
		"a commit":   "head -c 6000000 /dev/urandom > a.txt; git commit -q -a -m big",
		"a file":     "head -c 6000000 /dev/urandom > a.txt",
		"the output": `head -c 6000000 /dev/urandom > "$AGENTSH_OUTPUT_DIR/big"`,
	} {
		t.Run(name, func(t *testing.T) {
			p := &crashFixture{fixture: newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, "120m") }, agent, "")}
			p.opens = p.watchOpens()
			p.wait = "5m"
			p.atEnd(nil, stepTaken, 1, func() {
				p.fill()
				if info, err := os.Stat(p.path("filler")); err != nil || os.Truncate(p.path("filler"), info.Size()-3<<20) != nil {
					t.Error(err)
				}
			})
			said := &watcher{want: []byte(waitsForSpace), found: p.free}
			cmd := p.startInto(said)
			_ = cmd.Wait()
			p.opens.end()
			t.Logf("%s\n%s", cmd.ProcessState, &said.all)
			if !said.done || cmd.ProcessState.ExitCode() != controller.ExitDone {
				t.Error("it did not wait, or failed")
			}
			var r controller.Result
			p.readJSON("out/result.json", &r)
			big := map[string]string{"a commit": "out/files/a.txt", "a file": "out/files/a.txt", "the output": "out/output/big"}[name]
			commits := len(r.Commits) == 1
			if info, err := os.Stat(p.path(big)); err != nil || info.Size() != 6000000 || r.Partial || commits != (name == "a commit") {
				t.Errorf("%v, %+v", err, r)
			}
			if out := p.git("fsck", "--full", "--strict", "--no-dangling"); out != "" {
				t.Errorf("git fsck: %s", out)
			}
		})
	}
}

// TestADiskThatIsFullAtTheEndOfToolsLosesNothing has an agent of 'agentctl mcp'.
func TestADiskThatIsFullAtTheEndOfToolsLosesNothing(t *testing.T) {
	steps, counts := rehearseServed(t)
	for _, step := range []string{stepTaken, "deliver"} {
		k := 1
		if step == "deliver" {
			k = spread(counts[step], 1)[0]
		}
		t.Run(step, func(t *testing.T) {
			p := newServedCrash(t, "80m")
			p.wait = "5m"
			p.atEnd(steps, step, k, p.fill)
			p.said.want, p.said.found = []byte(waitsForSpace), p.free
			p.serve()
			_ = p.cmd.Wait()
			<-p.done
			p.opens.end()
			t.Logf("%s\n%s", p.cmd.ProcessState, &p.said.all)
			if !p.said.done || p.cmd.ProcessState.ExitCode() != controller.ExitDone {
				t.Error("it did not wait, or failed")
			}
			p.checkWhole()
			p.checkTemporary()
		})
	}
}

func TestADiskThatIsFullWhenARunIsTakenOverLosesNothing(t *testing.T) {
	p := &crashFixture{fixture: newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, "80m") }, workAndWait+"exec sleep 1000", "")}
	p.killAtWork(func(int) {}, "--keep-sandbox=10m", "--wait-for-space=0")
	p.opens = p.watchOpens()
	var once sync.Once
	p.opens.begin(func(o open) {
		if o.step == "take_work" {
			once.Do(p.fill)
		}
	})
	cmd := p.command("attach", "latest", "--wait-for-space", "5m")
	said := &watcher{want: []byte(waitsForSpace), found: p.free}
	cmd.Stdout, cmd.Stderr = said, said
	_ = cmd.Run()
	p.opens.end()
	t.Logf("%s\n%s", cmd.ProcessState, &said.all)
	if !said.done || cmd.ProcessState.ExitCode() != 137 {
		t.Error("it did not wait, or failed in another way")
	}
	var r controller.Result
	p.readJSON("out/result.json", &r)
	if !r.Delivered || len(r.Commits) != 1 || len(r.Changed) != 2 || r.AuditGaps != 0 {
		t.Errorf("%+v", r)
	}
	p.checkResults()
	p.checkLog()
	p.checkEnded(controller.StatusCancelled)
}

func TestARunOfABatchWaitsForSpace(t *testing.T) {
	p := newCrashFixture(t, "80m")
	p.write("batch.yaml", "runs: [{harness: harness.yaml, repo: repo}]\n", 0o644)
	var once sync.Once
	p.opens.begin(func(o open) {
		if o.step == "deliver" {
			once.Do(p.fill)
		}
	})
	cmd := p.command("batch", "batch.yaml", "--json", "--wait-for-space", "5m")
	said := &watcher{want: []byte(waitsForSpace), found: p.free}
	cmd.Stdout = said
	err := cmd.Run()
	p.opens.end()
	t.Logf("%s", &said.all)
	if err != nil || !said.done || strings.Count(said.all.String(), "run_started") > 1 {
		t.Errorf("it did not wait, or failed: %v", err)
	}
	for line := range strings.Lines(said.all.String()) {
		var e struct{ Event, Text string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || strings.Contains(line, waitsForSpace) && e.Event != "warning" {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// TestTheWorkIsDeliveredWhereTheLogOfTheAgentIsNotWhole has a disk of the results that is full while the agent prints.
func TestTheWorkIsDeliveredWhereTheLogOfTheAgentIsNotWhole(t *testing.T) {
	p := newFixture(t, `head -c 25000000 /dev/zero | tr '\0' x | fold -w 1000; echo
echo half > a.txt; git commit -q -a -m half; echo more > b.txt; echo report > "$AGENTSH_OUTPUT_DIR/report.txt"`, "")
	p.write("disk/.keep", "", 0o644)
	mountTmpfs(t, p.path("disk"), "70m")
	p.write("disk/filler", strings.Repeat("x", 32<<20), 0o644)
	cmd := p.command("run", "harness.yaml", "--repo", "repo", "--out", "disk/out", "--quiet", "--wait-for-space", "5m")
	said := &watcher{want: []byte(waitsForSpace), found: func() {
		if err := os.Remove(p.path("disk/filler")); err != nil {
			t.Error(err)
		}
	}}
	cmd.Stdout, cmd.Stderr = said, said
	_ = cmd.Run()
	t.Logf("%s\n%s", cmd.ProcessState, &said.all)
	if all := said.all.String(); cmd.ProcessState.ExitCode() != controller.ExitSandbox || !said.done ||
		!strings.Contains(all, "agentctl: deliver: the results in "+p.path("disk/out")+" are not whole: the agent's log: write ") ||
		!strings.Contains(all, "\nagentctl: hint: free some disk space") {
		t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
	}
	var r controller.Result
	p.readJSON("disk/out/result.json", &r)
	if !r.Delivered || !r.Partial || r.Error == nil || r.Error.Step != "deliver" || len(r.Commits) != 1 || len(r.Changed) != 2 ||
		p.git("show", r.Branch+":a.txt") != "half" || p.read("disk/out/output/report.txt") != "report\n" ||
		p.read("disk/out/files/b.txt") != "more\n" {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(p.read("disk/out/agent.jsonl")) {
		if !json.Valid([]byte(line)) {
			t.Errorf("the log of events has the line %.100q", line)
		}
	}
}

// TestADiskThatWasFullForAMomentLeavesTheLogOfASandboxElsewhereWhole has a full disk of the state while the agent works elsewhere.
func TestADiskThatWasFullForAMomentLeavesTheLogOfASandboxElsewhereWhole(t *testing.T) {
	place := t.TempDir()
	p := &crashFixture{fixture: newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, "80m") },
		"echo agent at work; for i in $(seq 300); do /bin/true; done; echo agent has worked; echo half > a.txt; git commit -q -a -m half",
		"")}
	p.write("state/.keep", "", 0o644)
	p.place = []string{"--backend", "exec", "--connect", "exec:env -i HOME=" + place + " XDG_STATE_HOME=" + place + " TMPDIR=/tmp /bin/sh"}
	freed := &watcher{want: []byte("| agent has worked"), found: p.free}
	filled := &watcher{want: []byte("| agent at work"), found: p.fill}
	cmd := p.command(p.runArgs("--wait-for-space", "0")...)
	cmd.Stdout = io.MultiWriter(filled, freed)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	err := cmd.Run()
	t.Logf("%s%s", &freed.all, &errs)
	if err != nil || !freed.done {
		t.Errorf("the run failed: %v", err)
	}
	p.checkLog()
}
