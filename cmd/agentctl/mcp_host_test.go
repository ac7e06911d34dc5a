package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentsh/controller"
)

// TestWorkIsKeptWhereTheHostHasChanged has what the host has changed while an agent worked refuse the commits, or the results.
func TestWorkIsKeptWhereTheHostHasChanged(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(p *fixture)
		says   string
		beside bool // the results are not at --out
	}{
		"a branch has the name that begins theirs": {
			change: func(p *fixture) { p.git("branch", "agentctl") },
			says:   "'refs/heads/agentctl' exists",
		},
		"the repository is gone": {
			change: func(p *fixture) { p.rename("repo", "moved") },
			says:   "no such file or directory",
		},
		"another repository is there": {
			change: func(p *fixture) {
				p.rename("repo", "moved")
				p.write("repo/b.txt", "another\n", 0o644)
				p.git("init", "-q")
				p.git("add", "-A")
				p.git("commit", "-q", "-m", "another")
			},
			says: "bad object",
		},
		"a file is where the results go": {
			change: func(p *fixture) { p.write("out", "mine\n", 0o644) },
			says:   "out exists and is not a directory",
			beside: true,
		},
		"files of somebody are where the results go": {
			change: func(p *fixture) { p.write("out/mine", "mine\n", 0o644) },
			says:   "out contains something other than the results of a run (mine)",
			beside: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFixture(t, "exit 1", "")
			b := serveRun(p, "harness.yaml")
			b.call("exec", args{"command": "echo two >a.txt; git commit -qam second; echo x >new.txt"}, false)
			tt.change(p)
			_ = b.session.Close() // the failure of the program
			said := b.stderr.String()
			if code := b.cmd.ProcessState.ExitCode(); code != controller.ExitSandbox || !strings.Contains(said, tt.says) {
				t.Errorf("exit code %d", code)
			}
			out := "out"
			if tt.beside {
				found, _ := filepath.Glob(p.path("out-*"))
				if len(found) != 1 {
					t.Fatalf("results beside: %s\n%s", found, said)
				}
				out = filepath.Base(found[0])
			}
			var r controller.Result
			p.readJSON(out+"/result.json", &r)
			if r.Status != controller.StatusFailed || !r.Delivered || r.Out != p.path(out) || p.read(out+"/files/new.txt") != "x\n" {
				t.Errorf("%+v", r)
			}
			if tt.beside {
				b.want(said, "agentctl: hint: the results are in "+p.path(out))
				if r.Branch == "" || p.git("show", r.Branch+":a.txt") != "two" {
					t.Errorf("branch %q", r.Branch)
				}
				return
			}
			if !r.Partial || r.Branch != "" {
				t.Errorf("%+v", r)
			}
			_, command, _ := strings.Cut(said, "agentctl: hint: the commits are in a bundle: ")
			command, _, _ = strings.Cut(command, "\n")
			if _, err := os.Stat(p.path("moved")); err == nil {
				p.write("look/.keep", "", 0o644)
				command = "git init -q && " + command
			} else {
				p.rename("repo", "look")
			}
			fetch := exec.Command("sh", "-c", command+" && git show agentctl-extracted/1:a.txt")
			fetch.Dir = p.path("look")
			if shown, err := fetch.Output(); err != nil || string(shown) != "two\n" || !strings.Contains(command, r.Bundle) {
				t.Errorf("%s: %v %s", command, err, shown)
			}
		})
	}
}

func (p *fixture) rename(from, to string) {
	p.t.Helper()
	if err := os.Rename(p.path(from), p.path(to)); err != nil {
		p.t.Fatal(err)
	}
}

// TestToolsEndWithTheirSandbox kills the supervisor: the stream ends, and the program says why.
func TestToolsEndWithTheirSandbox(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	b := serveRun(p, "harness.yaml")
	b.call("exec", args{"command": "true"}, false)
	killed := 0
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		env, _ := os.ReadFile(filepath.Join(proc, "environ"))
		line, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(proc))
		if !strings.Contains(string(env), "XDG_STATE_HOME="+p.state+"\x00") || !strings.Contains(string(line), "--again="+againWorks) {
			continue
		}
		for _, child := range childrenOf(pid) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); strings.Contains(string(line), "\x00serve\x00") {
				killed++
				_ = syscall.Kill(child, syscall.SIGKILL)
			}
		}
	}
	if killed != 1 {
		t.Errorf("%d supervisors", killed)
	}
	_ = b.session.Wait() // the end of the stream
	_ = b.session.Close()
	if code := b.cmd.ProcessState.ExitCode(); code != controller.ExitSandbox {
		t.Errorf("exit code %d", code)
	}
	b.want(b.stderr.String(), "sandbox is gone: supervisor: signal: killed")
}

// TestToolsEndWithTheirSession does so for 'agentsh mcp'.
func TestToolsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("exec", args{"command": "true"}, false)
	for _, child := range childrenOf(b.cmd.Process.Pid) {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	_ = b.session.Wait() // the end of the stream
	_ = b.session.Close()
	if code := b.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("it succeeded")
	}
	b.want(b.stderr.String(), "agentctl: the session has ended\nagentctl: hint: start the server again for another one")
	_ = b.another("-p", filepath.Join(filepath.Dir(b.dir), "policy.yaml"), "-w", b.dir).session.Close() // removes what was left
}
