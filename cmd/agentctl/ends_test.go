package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// busy is an agent that ends by no signal, makes a file when it gets a TERM, and has children that use the processor.
const busy = `trap 'echo taken > taken' TERM
trap '' INT HUP
for i in 1 2 3; do (trap '' TERM INT HUP; while :; do :; done) & done
setsid sh -c "trap '' TERM INT HUP; while :; do sleep 1; done" &
echo x > began
echo agent at work
while :; do echo x > busy.txt; cat busy.txt > /dev/null; done`

// watched opens a descriptor for each process, see pidfd_open(2). Each becomes
// readable when its process has ended.
func watched(t *testing.T, pids []int) []unix.PollFd {
	t.Helper()
	var fds []unix.PollFd
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // a child that ended meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return fds
}

// awaitEnds waits until every process has ended. It returns false after limit.
func awaitEnds(t *testing.T, fds []unix.PollFd, limit time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(limit); len(fds) > 0; {
		_, err := unix.Poll(fds[:1], int(max(time.Until(deadline), 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			t.Fatal(err)
		case fds[0].Revents == 0:
			return false
		default:
			fds = fds[1:]
		}
	}
	return true
}

// find returns the files of a name below a directory.
func (p *fixture) find(dir, name string) (found []string) {
	p.t.Helper()
	err := filepath.WalkDir(p.path(dir), func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == name {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
	return found
}

func TestAnAgentEndsWithItsAgentctl(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for name, first := range map[string]syscall.Signal{"at work": 0, "while it is being stopped": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, busy, "")
			adopt(t)
			g := p.start("agent at work")
			pids := descendants(g.cmd.Process.Pid)
			var names []string
			for _, pid := range pids {
				name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				names = append(names, strings.TrimSpace(string(name)))
			}
			if !slices.Contains(names, "run.sh") {
				t.Errorf("the agent is not among %s", names)
			}
			fds := watched(t, pids)
			_ = g.cmd.Process.Signal(first)
			killed := time.Now()
			_ = g.cmd.Process.Kill()
			if !awaitEnds(t, fds, 2*time.Minute) {
				t.Error("processes are left")
			}
			t.Logf("%d processes ended in %s: %s", len(fds), time.Since(killed), names)
			_ = g.cmd.Wait()
			waitOrphans(t)
			if first == 0 { // nothing has removed its files
				if len(p.find("state/agentsh/sandboxes", "began")) == 0 {
					t.Error("the files of the agent are not there")
				}
				if taken := p.find("state/agentsh/sandboxes", "taken"); len(taken) > 0 {
					t.Errorf("the agent got a signal that it can take: %s", taken)
				}
			}
			if out, err := p.command("gc").CombinedOutput(); err != nil {
				t.Errorf("gc: %v\n%s", err, out)
			}
		})
	}
}

// A reader such as head(1) goes before the run ends.
func TestAClosedOutputDoesNotEndARun(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo agent at work; until [ -e /sandbox/workspace/go ]; do sleep 0.05; done; seq 100; seq 100 >&2; echo two > a.txt", "")
	cmd := p.command(p.runArgs()...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	lines := bufio.NewScanner(read)
	for lines.Scan() && !strings.Contains(lines.Text(), "agent at work") {
	}
	read.Close()
	if _, errs, code := p.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
		t.Errorf("exit code %d: %s", code, errs)
	}
	_ = cmd.Wait()
	var r controller.Result
	if err := json.Unmarshal([]byte(p.read("out/result.json")), &r); err != nil || !r.Delivered || r.Status != controller.StatusDone {
		t.Errorf("%s: %+v %v", cmd.ProcessState, r.Error, err)
	}
	if log := p.read("out/agent.log"); !strings.Contains(log, "100") {
		t.Errorf("the log has %q", log)
	}
}
