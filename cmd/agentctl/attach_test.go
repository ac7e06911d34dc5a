package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/supervisor/audit"
)

// workAndWait does all that an agent can do, and says so. Then it waits.
const workAndWait = `echo half > a.txt; git commit -q -a -m half; echo more > b.txt; echo report > "$AGENTSH_OUTPUT_DIR/report.txt"
echo agent at work; `

// listening has the runs of a fixture in sandboxes of agentsh serve --listen.
func (p *fixture) listening() *fixture { return p.listeningWith() }

// listeningWith is listening with more flags.
func (p *fixture) listeningWith(more ...string) *fixture {
	p.t.Helper()
	cmd := p.command()
	cmd.Path, cmd.Args = p.bin+"/agentsh", append([]string{"agentsh", "serve", "--listen", "unix:" + p.path("place.sock")}, more...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+p.path("place"))
	errs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	said := bufio.NewReader(errs)
	for line := ""; !strings.Contains(line, "serving controllers"); {
		if line, err = said.ReadString('\n'); err != nil {
			p.t.Fatal(err)
		}
		p.counts = cmp.Or(p.counts, metricsURL.FindString(line))
	}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(io.Discard, said) })
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait()
	})
	p.place = []string{"--backend", "socket", "--connect", "unix://" + p.path("place.sock")}
	return p
}

// killAtWork starts a run, and kills agentctl when its agent says that it is at work, after a call.
func (p *fixture) killAtWork(before func(pid int), more ...string) {
	p.t.Helper()
	cmd := p.command(p.runArgs(more...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	killed := false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		p.t.Log(lines.Text())
		if !killed && strings.Contains(lines.Text(), "agent at work") {
			killed = true
			before(cmd.Process.Pid)
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	if !killed {
		p.t.Fatal("the agent did not start")
	}
}

// checkEnded fails the test unless nothing is left of a run but its record, which has a status.
func (p *fixture) checkEnded(status string) {
	p.t.Helper()
	checkPlace(p.t, p.dir)
	if out, err := p.command(append([]string{"gc"}, p.place...)...).CombinedOutput(); err != nil || len(out) > 0 {
		p.t.Errorf("gc has something left to do: %v\n%s", err, out)
	}
	if left, _ := filepath.Glob(p.path("state/agentsh/sandboxes/*")); len(left) > 0 {
		p.t.Errorf("left behind: %s", left)
	}
	if left, _ := filepath.Glob(p.path(".agentctl-*")); len(left) > 0 {
		p.t.Errorf("left behind: %s", left)
	}
	records, _ := filepath.Glob(p.path("state/agentsh/runs/*/record.json"))
	var r record.Record
	p.readJSON(strings.TrimPrefix(records[0], p.dir+"/"), &r)
	if r.Status != status || r.Ended == nil {
		p.t.Errorf("the record has status %s", r.Status)
	}
}

// checkLog fails the test unless the audit log of the results is whole and ends with the session.
func (p *fixture) checkLog() {
	p.t.Helper()
	f, err := os.Open(p.path("out/audit.jsonl"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if head, err := audit.Verify(f); err != nil || head.Seq == 0 {
		p.t.Errorf("audit log: %+v, %v", head, err)
	}
	log := strings.TrimSpace(p.read("out/audit.jsonl"))
	if last := log[strings.LastIndex(log, "\n")+1:]; !strings.Contains(last, `"phase":"end"`) || !strings.Contains(log, `"phase":"begin"`) {
		p.t.Errorf("the last event is %s", last)
	}
}

func TestARunWhoseControllerWasKilledIsTakenOver(t *testing.T) {
	t.Parallel()
	here := func(p *fixture) *fixture { return p }
	for name, at := range map[string]func(*fixture) *fixture{"exec": (*fixture).elsewhere, "socket": (*fixture).listening, "local": here} {
		t.Run(name, func(t *testing.T) {
			p := at(newFixture(t, workAndWait+"exec sleep 1000", "post_script: post.sh\nsecurity: {enabled: false}"))
			p.write("post.sh", "#!/bin/sh\nexit 0\n", 0o755)
			var more []string
			if name == "local" {
				more = []string{"--keep-sandbox=10m"}
			}
			p.killAtWork(func(int) {}, more...)
			if out, _, _ := p.try("", "runs", "list"); !strings.Contains(out, record.StatusAbandoned) {
				t.Errorf("runs list: %s", out)
			}
			out, errs, code := p.try("", "attach", "latest", "--json")
			t.Log(errs)
			if code != 137 {
				t.Errorf("exit code %d", code)
			}
			checkResult(t, "--json", []byte(out))
			var r controller.Result
			p.readJSON("out/result.json", &r)
			if r.Status != controller.StatusCancelled || !r.Delivered || !r.Partial || len(r.Commits) != 1 || len(r.Changed) != 2 ||
				len(r.Iterations) != 1 || r.AuditGaps != 0 || r.Commands == 0 || r.Backend != name {
				t.Errorf("%+v", r)
			}
			if p.read("out/output/report.txt") != "report\n" || p.read("out/files/b.txt") != "more\n" ||
				!strings.Contains(p.read("out/agent.log"), "agent at work") {
				t.Error("the results are not those of the agent")
			}
			if p.git("log", "-1", "--format=%s", r.Branch) != "half" {
				t.Errorf("branch %q", r.Branch)
			}
			p.checkLog()
			p.checkEnded(controller.StatusCancelled)
			_, errs, code = p.try("", "attach", "latest")
			if code != controller.ExitConfiguration || !strings.Contains(errs, "has ended: cancelled") {
				t.Errorf("a second time: %d %s", code, errs)
			}
		})
	}
}

// What becomes of a run depends on the step in which its controller was killed.
func TestARunIsTakenOverFromEachStep(t *testing.T) {
	t.Parallel()
	all := append([]string{beforeSteps}, controller.StepNames()...)
	for step, tt := range map[string]struct {
		code   int
		says   string
		status string // of the record; after gc, if the run was not taken over
	}{
		"preflight":       {controller.ExitSandbox, "killed before it had a sandbox", record.StatusAbandoned},
		"wait_ready":      {137, "the controller of the run was killed", controller.StatusCancelled},
		"bootstrap":       {137, "the controller of the run was killed", controller.StatusCancelled},
		"scan_sandbox":    {137, "the controller of the run was killed", controller.StatusCancelled},
		"scan_output":     {0, "", controller.StatusDone},
		"deliver":         {controller.ExitSandbox, "its sandbox had ended when its controller was killed", record.StatusAbandoned},
		"post_script":     {controller.ExitSandbox, "its results were delivered to", record.StatusAbandoned},
		record.StepDelete: {controller.ExitSandbox, "its results were delivered to", record.StatusAbandoned},
	} {
		t.Run(step, func(t *testing.T) {
			p := newCrashFixture(t, "1g")
			p.elsewhere()
			started := make(chan func(), 1)
			p.at(all, step, 1, func() { (<-started)() })
			cmd, said := p.start()
			started <- func() { _ = cmd.Process.Kill() }
			_ = cmd.Wait()
			p.opens.end()
			if cmd.ProcessState.ExitCode() != -1 {
				t.Fatalf("it was not killed: %s\n%s", cmd.ProcessState, said)
			}
			again := p.command("attach", "latest")
			again.Env = append(again.Env, "HOST_TOKEN="+string(p.value))
			out, err := again.CombinedOutput()
			t.Logf("%v\n%s", err, out)
			if code := again.ProcessState.ExitCode(); code != tt.code || !strings.Contains(string(out), tt.says) {
				t.Errorf("exit code %d, want %d and %q", code, tt.code, tt.says)
			}
			if tt.status == record.StatusAbandoned {
				if out, err := p.command(append([]string{"gc"}, p.place...)...).CombinedOutput(); err != nil {
					t.Errorf("gc: %v\n%s", err, out)
				}
			}
			if tt.status == controller.StatusDone {
				p.checkLog()
			}
			p.checkEnded(tt.status)
			p.checkTarget()
			p.checkNoValue()
		})
	}
}

// One of two controllers ends the run. The other one says who does.
func TestOneOfTwoControllersTakesARunOver(t *testing.T) {
	t.Parallel()
	p := newFixture(t, workAndWait+"exec sleep 1000", "security: {enabled: false}").elsewhere()
	p.killAtWork(func(pid int) {
		_, errs, code := p.try("", "attach", "latest")
		if code != controller.ExitSandbox || !strings.Contains(errs, fmt.Sprintf("process %d controls it", pid)) {
			t.Errorf("its controller is alive: %d %s", code, errs)
		}
	})
	var both sync.WaitGroup
	codes, texts := [2]int{}, [2]string{}
	for i := range codes {
		both.Go(func() { _, texts[i], codes[i] = p.try("", "attach", "latest") })
	}
	both.Wait()
	t.Logf("%q", texts)
	won := 0
	for i, code := range codes {
		switch {
		case code == 137:
			won++
		case !strings.Contains(texts[i], "controls it") && !strings.Contains(texts[i], "has ended: cancelled"):
			t.Errorf("exit code %d: %s", code, texts[i])
		}
	}
	if won != 1 {
		t.Errorf("%d controllers ended the run", won)
	}
	p.checkEnded(controller.StatusCancelled)
}

func TestALocalRunIsNotTakenOverUnlessItsSandboxIsKept(t *testing.T) {
	t.Parallel()
	p := newFixture(t, workAndWait+"exec sleep 1000", "security: {enabled: false}")
	p.killAtWork(func(int) {})
	_, errs, code := p.try("", "attach", "latest")
	if code != controller.ExitSandbox || !strings.Contains(errs, "cannot be taken over") || !strings.Contains(errs, "'agentctl gc'") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if out, err := p.command("gc").CombinedOutput(); err != nil {
		t.Errorf("gc: %v\n%s", err, out)
	}
	p.checkEnded(record.StatusAbandoned)
}
