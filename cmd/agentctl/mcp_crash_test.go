package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agentsh/controller"
)

// servedCrash is a [crashFixture] whose agent works by 'agentctl mcp'.
type servedCrash struct {
	*crashFixture
	cmd    *exec.Cmd
	said   watcher
	done   chan struct{} // closed when the client has ended
	answer string        // of its call; set before done is closed
}

// servedWork is what the agent does, by one call.
const servedWork = "echo half > a.txt; git commit -q -a -m half; echo more > b.txt; echo report > ../output/report.txt; echo agent at work"

func newServedCrash(t *testing.T, size string) *servedCrash {
	t.Helper()
	p := &servedCrash{crashFixture: newCrashFixture(t, size)}
	p.quiet = true
	p.write("tmp/.keep", "", 0o600)
	p.setenv = append(p.setenv, "TMPDIR="+p.path("tmp"))
	return p
}

// serve starts 'agentctl mcp' with a client, which makes one call and closes the stream after its answer.
func (p *servedCrash) serve() {
	p.t.Helper()
	p.cmd = p.command("mcp", "harness.yaml", "--repo", "repo", "--out", "out", "--wait-for-space", cmp.Or(p.wait, "0"))
	p.cmd.Env = append(p.cmd.Env, "HOST_TOKEN="+string(p.value))
	p.cmd.Stderr = &p.said
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Stdout, p.done = write, make(chan struct{})
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	_ = write.Close()
	go func() {
		defer close(p.done)
		defer read.Close()
		defer stdin.Close()
		_, _ = io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",`+
			`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`+"\n"+
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
		call, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 2, "method": "tools/call",
			"params": args{"name": "exec", "arguments": args{"command": servedWork}}})
		if err != nil {
			p.t.Error(err)
		}
		_, _ = stdin.Write(append(call, '\n'))
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"id":2,`) {
				p.answer = lines.Text()
				break
			}
		}
	}()
}

// behindFront are the programs behind the one in front.
func (p *servedCrash) behindFront() (pids []int) {
	for _, pid := range append(descendants(p.cmd.Process.Pid), children()...) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(line, []byte("\x00--again=")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// rehearseServed makes one complete run.
func rehearseServed(t *testing.T) (steps []string, counts map[string]int) {
	t.Helper()
	p := newServedCrash(t, "1g")
	p.opens.begin(func(open) {})
	p.serve()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &p.said.all)
	}
	<-p.done
	counts = p.opens.end()
	steps = p.recorded()
	p.checkResults()
	return steps, counts
}

// checkEnded fails the test unless a run whose client was killed has delivered what there was.
func (p *servedCrash) checkEnded() {
	p.t.Helper()
	var r controller.Result
	p.readJSON("out/result.json", &r)
	if !r.Delivered || r.Status != controller.StatusDone {
		p.t.Errorf("%+v", r)
	}
}

// TestToolsWhoseProgramsAreKilledAtAnyMomentLeaveNothing kills the program behind, or both. The end of the one in
// front alone is that of its client: the work is taken out.
func TestToolsWhoseProgramsAreKilledAtAnyMomentLeaveNothing(t *testing.T) {
	steps, counts := rehearseServed(t)
	t.Logf("opens in each step: %v", counts)
	for i, step := range steps {
		if *moments == 1 && i%2 == 1 {
			continue // half of them take ten seconds
		}
		for j, k := range spread(counts[step], *moments) {
			who := []string{"the program behind", "both", "the program in front"}[(i/2+j)%3]
			t.Run(fmt.Sprintf("%s, %s, at open %d of %d", who, step, k, counts[step]), func(t *testing.T) {
				p := newServedCrash(t, "1g")
				adopt(t)
				started := make(chan struct{})
				p.at(steps, step, k, func() {
					<-started
					var victims []int
					if who != "the program in front" {
						victims = p.behindFront()
					}
					if who != "the program behind" { // first: it would end with an error when it sees that the other is gone
						victims = append([]int{p.cmd.Process.Pid}, victims...)
					}
					for _, pid := range victims {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				})
				p.serve()
				close(started)
				_ = p.cmd.Wait()
				waitOrphans(t)
				<-p.done
				p.opens.end()
				t.Logf("%s\n%s", p.cmd.ProcessState, &p.said.all)
				switch code := p.cmd.ProcessState.ExitCode(); {
				case who != "the program behind" && code != -1:
					t.Errorf("it was not killed: %s", p.cmd.ProcessState)
				case who == "the program behind" && (code != controller.ExitSandbox ||
					!strings.Contains(p.said.all.String(), "was killed, and what was not taken out is lost\nagentctl: hint: ")):
					t.Errorf("exit code %d", code)
				}
				if who == "the program in front" {
					p.checkEnded()
				} else {
					p.checkResults()
				}
				p.collect(j%2 == 1)
				p.checkTarget()
				p.checkUnfinished()
				p.checkNoValue()
				p.checkTemporary()
			})
		}
	}
}

// checkTemporary fails the test if something is left in the directory for temporary files.
func (p *servedCrash) checkTemporary() {
	p.t.Helper()
	if left, err := os.ReadDir(p.path("tmp")); err != nil || len(left) > 1 {
		p.t.Errorf("left behind: %v %v", left, err)
	}
}

// TestAFullDiskAtAStepOfToolsIsOneClearLine has the steps that differ from those of a run with an agent inside: the call, too, finds
// a full disk.
func TestAFullDiskAtAStepOfToolsIsOneClearLine(t *testing.T) {
	steps, counts := rehearseServed(t)
	for _, step := range []string{beforeSteps, "scan_sandbox", "iterations", "deliver"} {
		for _, k := range spread(counts[step], *moments) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", step, k, counts[step]), func(t *testing.T) {
				p := newServedCrash(t, "80m")
				p.at(steps, step, k, p.fill)
				p.serve()
				_ = p.cmd.Wait()
				<-p.done
				p.opens.end()
				t.Logf("%s\n%s", p.cmd.ProcessState, &p.said.all)
				if step == "scan_sandbox" && !strings.Contains(p.answer, "no space left on device") {
					t.Errorf("the call is answered with %s", p.answer)
				}
				p.checkFull(p.cmd.ProcessState.ExitCode(), p.said.all.String())
				p.checkFreed()
				p.checkTemporary()
			})
		}
	}
}

// TestAFullDiskBeforeASandboxIsOneClearLine has the directory for temporary files, or that of the state, be full before
// there is a harness of --policy.
func TestAFullDiskBeforeASandboxIsOneClearLine(t *testing.T) {
	for _, variable := range []string{"TMPDIR", "XDG_STATE_HOME"} {
		for _, command := range [][]string{
			{"mcp", "--policy", "policy.yaml", "--repo", "repo"}, {"sandbox", "create", "--policy", "policy.yaml"},
		} {
			p := newFixture(t, "exit 1", "")
			p.write("full/.keep", "", 0o644)
			mountTmpfs(t, p.path("full"), "1m")
			if err := os.WriteFile(p.path("full/filler"), make([]byte, 2<<20), 0o600); err == nil {
				t.Fatal("the disk is not full")
			}
			p.setenv = append(p.setenv, variable+"="+p.path("full"))
			out, said, code := p.try("", command...)
			if code != controller.ExitSandbox || out != "" || !strings.Contains(said, "no space left on device") ||
				!strings.HasPrefix(said, "agentctl: ") || strings.Count(said, "\n") != 2 ||
				!strings.Contains(said, "agentctl: hint: free some disk space") {
				t.Errorf("%s, %s: %d %s%s", variable, command, code, out, said)
			}
		}
	}
}
