package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// operatorCommands are the commands that ask the supervisor of a run for something, and
// the operation in which it does wrong.
var operatorCommands = []struct {
	at   string
	args []string
}{
	{"files.stat", []string{"exec", "--max-output", "1", "latest", "--", "true"}},
	{"exec.agent", []string{"exec", "--max-output", "1", "latest", "--", "true"}},
	{"events", []string{"exec", "--max-output", "1", "latest", "--", "true"}},
	{"files.stat", []string{"cp", "latest:/sandbox/workspace/a", "copy"}},
	{"files.copy_out", []string{"cp", "latest:/sandbox/workspace/a", "copy"}},
	{"files.stat", []string{"cp", "harness.yaml", "latest:/sandbox/workspace/a"}},
	{"files.copy_in", []string{"cp", "harness.yaml", "latest:/sandbox/workspace/a"}},
	{"events", []string{"logs", "--events", "--max-output", "1", "latest"}},
	{"events", []string{"logs", "--events", "--follow", "latest"}},
	{"files.history", []string{"snapshot", "--list", "latest"}},
	{"files.history", []string{"rollback", "latest", "1"}},
	{"files", []string{"logs", "latest"}}, // asks for nothing
}

// pestered is a run whose agent does not end and whose supervisor does wrong to operators.
type pestered struct {
	*fixture
	run     *exec.Cmd
	ended   <-chan struct{} // closed when the run has ended
	reached <-chan struct{} // closed when the supervisor begins to do wrong to an operator
}

func hostileToOperators(t *testing.T, at, does string) pestered {
	t.Helper()
	p := pestered{fixture: newFixture(t, "true", "security: {enabled: false}")}
	p.reached = p.moment("reached").began
	cmd, said, wrong := p.hostileTo(scenario{At: "exec.agent", Does: "mute", Operator: does, OperatorAt: at, Reached: p.path("reached")})
	p.run = cmd
	p.ended, _ = start(t, cmd)
	select {
	case <-wrong.began:
	case <-p.ended:
		t.Fatalf("it ended before: %s", said)
	}
	return p
}

func TestTwoSignalsEndAnOperatorsCommand(t *testing.T) {
	for _, does := range []string{"mute", "endless", "names"} {
		for _, c := range operatorCommands {
			if does != "mute" && (c.at != "files.stat" && !slices.Contains(c.args, "--follow")) {
				continue // it ends without a signal
			}
			t.Run(does+" at "+c.at+" of "+strings.Join(c.args, " "), func(t *testing.T) {
				t.Parallel()
				p := hostileToOperators(t, c.at, does)
				cmd := p.command(append([]string{"sandbox"}, c.args...)...)
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				if slices.Contains(c.args, "--follow") {
					cmd.Stdout = nil // what is printed is not stored
				}
				over, used := start(t, cmd)
				select {
				case <-p.reached:
				case <-over:
					if c.at != "files" && does == "mute" {
						t.Errorf("ended before: %s", &errs)
					}
				}
				interrupt(t, cmd, over)
				checkHostile(t, cmd, out.String()+errs.String(), used.Load())
				if n := strings.Count(errs.String(), "context canceled"); n > 0 {
					t.Errorf("it says %d times that a context was canceled", n)
				}
				interrupt(t, p.run, p.ended)
			})
		}
	}
}

func TestASupervisorThatIsHostileToOperatorsIsBounded(t *testing.T) {
	for _, does := range []string{"endless", "names", "text", "junk", "lies"} {
		for _, c := range operatorCommands {
			says := map[string]string{
				"endless at exec.agent": "more than 1 MiB", "endless at events": "more than 1 MiB", "names at files.copy_out": "names of the archive",
				"endless at files.history": "more than", "names at files.history": "the list of checkpoints has more than 16 MiB",
			}[does+" at "+c.at]
			if c.at == "events" && c.args[0] == "exec" {
				says = "agentctl: what the policy refused is not known"
			}
			switch {
			case c.at == "files", slices.Contains(c.args, "--follow"), // these end with a signal, as they do in a sound sandbox
				c.at == "exec.agent" && (does == "names" || does == "lies"),
				c.at == "files.copy_in" && does != "junk", c.at == "files.history" && does == "lies":
				continue
			}
			t.Run(does+" at "+c.at+" of "+strings.Join(c.args, " "), func(t *testing.T) {
				t.Parallel()
				p := hostileToOperators(t, c.at, does)
				cmd := p.command(append([]string{"sandbox"}, c.args...)...)
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				over, used := start(t, cmd)
				limit := time.AfterFunc(2*time.Minute, func() {
					t.Error("it did not end")
					_ = cmd.Process.Kill()
				})
				<-over
				limit.Stop()
				text := errs.String()
				if c.args[0] != "exec" { // its output is passed on as it is
					text += out.String()
				}
				checkHostile(t, cmd, text, used.Load())
				sound := (c.at == "files.stat" || c.at == "events") && c.args[0] == "exec" // it starts where it can
				if cmd.ProcessState.Success() != sound || !strings.Contains(text, says) {
					t.Errorf("it does not say %q", says)
				}
				interrupt(t, p.run, p.ended)
			})
		}
	}
}

// The supervisor stays when agentctl was killed, and answers nothing.
func TestASupervisorThatStaysIsRemoved(t *testing.T) {
	p := hostileToOperators(t, "", "mute")
	adopt(t)
	fds := watched(t, descendants(p.run.Process.Pid))
	_ = p.run.Process.Kill()
	<-p.ended
	if out, errs, code := p.try("", "gc"); code != 0 || !strings.Contains(out, "removed sandbox") {
		t.Errorf("gc: exit code %d, %s%s", code, out, errs)
	}
	if !awaitEnds(t, fds, time.Minute) {
		t.Error("the supervisor is left")
	}
	waitOrphans(t)
}
