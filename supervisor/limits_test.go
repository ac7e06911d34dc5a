package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/probe"
)

// enforcedByGroups is what sessions need for limits that a control group holds.
var enforcedByGroups = testenv.That("control groups that can be limited", func() error { return probe.Try("cgroup") })

// answers fails the test unless another command of the session starts, runs and
// ends.
func (b *box) answers(t *testing.T) {
	t.Helper()
	exit, out := b.request(t, wire.ExecRequest{ID: t.Name() + "-answer", DeadlineMS: 120_000, Argv: []string{"echo", "here"}})
	if exit.Kind != wire.ExitExited || out != "here\n" {
		t.Errorf("exit %+v, printed %q", exit, out)
	}
}

// announced is a writer that tells when a line was written.
type announced struct{ lines chan string }

func (a announced) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		select {
		case a.lines <- strings.TrimSpace(line):
		default:
		}
	}
	return len(p), nil
}

// background starts a command, waits for its first line and returns what ends
// it and gives its exit.
func (b *box) background(t testing.TB, argv ...string) (end func() wire.Exit) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	said := announced{make(chan string, 1)}
	done := make(chan wire.Exit, 1)
	go func() {
		exit, _, err := b.Exec(ctx, wire.ExecRequest{ID: t.Name(), Argv: argv}, wire.Streams{Stdout: said})
		if err != nil {
			t.Error(err)
		}
		done <- exit
	}()
	select {
	case <-said.lines:
	case exit := <-done:
		t.Fatalf("%q ended: %+v", argv, exit)
	}
	return func() wire.Exit {
		cancel()
		return <-done
	}
}

// forkBomb says when it can fork no more, and goes on trying.
const forkBomb = `
import os
told = False
while True:
    try:
        os.fork()
    except OSError:
        if not told: print("full", flush=True)
        told = True
`

func TestAForkBombStaysInside(t *testing.T) {
	testenv.Need(t, enforcedByGroups, testenv.Program("python3"))
	b := openBox(t, testPolicy+"resource_limits: {pids_max: 40, cpu_quota_percent: 50}\n")
	end := b.background(t, "python3", "-c", forkBomb)
	for range 5 {
		b.answers(t)
	}
	seen := 0
	for _, path := range b.groups.session.Paths() {
		if text, err := os.ReadFile(filepath.Join(path, "pids.max")); err == nil && string(text) == "40\n" {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("%d groups of %q hold the limit", seen, b.groups.session.Paths())
	}
	if exit := end(); exit.Kind != wire.ExitSignaled {
		t.Errorf("exit %+v", exit)
	}
	b.answers(t)
}

func TestAMemoryBombStaysInside(t *testing.T) {
	testenv.Need(t, enforcedByGroups, testenv.Program("python3"))
	b := openBox(t, testPolicy+"resource_limits: {max_memory_mb: 64, memory_swap_max_mb: 0}\n")
	const bomb = "x = []\nwhile True: x.append(bytearray(1 << 20))"
	for _, c := range []struct {
		name string
		argv []string
	}{
		{"a command", []string{"python3", "-c", bomb}},
		{"a child of a shell", []string{"sh", "-c", `python3 -c "$1"; exit $?`, "sh", bomb}},
		{"memory that is a file", []string{"sh", "-c", "dd if=/dev/zero of=/dev/shm/x bs=1M count=500 2>/dev/null; e=$?; rm -f /dev/shm/x; exit $e"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			exit, _ := b.run(t, c.argv...)
			if exit.Kind != wire.ExitOOM || exit.ExitCode() != 137 || exit.Message == "" {
				t.Errorf("exit %+v", exit)
			}
			b.answers(t)
		})
	}
	t.Run("a kill by another reason is not for want of memory", func(t *testing.T) {
		exit, _ := b.run(t, "python3", "-c", "import os; os.kill(os.getpid(), 9)")
		if exit.Kind != wire.ExitSignaled || exit.Signal != 9 {
			t.Errorf("exit %+v", exit)
		}
	})
}

func TestDescriptorExhaustionStaysInside(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	b := openBox(t, testPolicy+"resource_limits: {open_files: 64}\n")
	end := b.background(t, "python3", "-c", `
import os, time
held = []
try:
    while True: held += os.pipe()
except OSError:
    print(len(held), flush=True)
time.sleep(600)`)
	b.answers(t)
	end()
}

func TestProcessorTimeIsBounded(t *testing.T) {
	testenv.Need(t, enforcedByGroups, testenv.Program("python3"))
	b := openBox(t, testPolicy+"resource_limits: {cpu_quota_percent: 20}\n")
	exit, out := b.run(t, "python3", "-c", `
import time
wall, used = time.monotonic(), time.process_time()
while time.monotonic() - wall < 1: pass
print("much" if time.process_time() - used > 0.4 else "little")`)
	if exit.Code != 0 || out != "little\n" {
		t.Errorf("exit %+v, printed %q", exit, out)
	}
}

func TestARuleLimitsItsCommands(t *testing.T) {
	testenv.Need(t, enforcedByGroups, testenv.Program("python3"))
	rule := "command_rules:\n  - {name: small, commands: ['python3*'], decision: allow, limits: {max_memory_mb: 64, pids_max: 5}}\n"
	b := openBox(t, strings.Replace(testPolicy, "command_rules:\n", rule, 1)+"resource_limits: {max_memory_mb: 1024}\n")
	if exit, _ := b.run(t, "python3", "-c", "x = b'x' * (200 << 20)"); exit.Kind != wire.ExitOOM {
		t.Errorf("with 64 MiB: %+v", exit)
	}
	if exit, _ := b.run(t, "sh", "-c", `python3 -c "x = b'x' * (200 << 20)"`); exit.Code != 0 || exit.Kind != wire.ExitExited {
		t.Errorf("with the limit of the session: %+v", exit)
	}
	exit, out := b.run(t, "python3", "-c", `
import os
n = 0
try:
    for n in range(20):
        if os.fork() == 0: os.read(os.pipe()[0], 1)
except OSError: pass
print(n, flush=True)
os.kill(0, 9)`)
	if out != "4\n" {
		t.Errorf("exit %+v, forked %q times", exit, out)
	}
}

func TestNothingOfAGroupIsLeft(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, enforcedByGroups)
	cfg, _ := testConfig(t, testPolicy+"resource_limits: {pids_max: 100, max_memory_mb: 512}\n")
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	paths := s.groups.session.Paths()
	if len(paths) == 0 {
		t.Error("there is no group")
	}
	b := &box{Session: s}
	b.run(t, "true")
	b.run(t, "./no-such-program")
	b.request(t, wire.ExecRequest{ID: "left", Argv: []string{"sh", "-c", "sleep 600 >/dev/null 2>&1 &"}})
	for _, dir := range paths {
		if entries := groupsIn(t, dir); len(entries) != 1 {
			t.Errorf("while one command has a process: %q", entries)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, dir := range paths {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func groupsIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// bareEnv makes this program run one test where no control group is mounted.
const bareEnv = "AGENTSH_TEST_WITHOUT_CGROUPS"

func TestLimitsThatCannotBeEnforcedAreRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	if os.Getenv(bareEnv) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), bareEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // private, as Go makes it
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	rule := "command_rules:\n  - {name: small, commands: [cat], decision: allow, limits: {max_memory_mb: 64}}\n"
	cfg, _ := testConfig(t, strings.Replace(testPolicy, "command_rules:\n", rule, 1)+"resource_limits: {cpu_quota_percent: 5}\n")
	_, err := Open(context.Background(), cfg)
	for _, want := range []string{
		"test.yaml:4:62: resource_limits.max_memory_mb cannot be enforced here: no control group hierarchy with the memory controller is mounted",
		"test.yaml:16:19: resource_limits.cpu_quota_percent cannot be enforced here: no control group hierarchy with the cpu controller is mounted",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	b := openBox(t, testPolicy+"resource_limits: {pids_max: 40}\n")
	if exit, out := b.run(t, "grep", "Max processes", "/proc/self/limits"); strings.Join(
		strings.Fields(out),
		" ",
	) != "Max processes 40 40 processes" {
		t.Errorf("exit %+v, printed %q", exit, out)
	}
}

func TestGroupsOfAKilledSupervisorAreRemovedByTheNext(t *testing.T) {
	testenv.Need(t, testenv.Root, enforcedByGroups)
	t.Setenv("TMPDIR", t.TempDir())
	killed, err := newState(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	group, unheld := cgroup.New(filepath.Base(killed.dir), []cgroup.Kind{cgroup.Pids, cgroup.Memory})
	if len(unheld) > 0 {
		t.Fatal(unheld)
	}
	alive, err := group.Command("1", cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := errors.Join(killed.note(append(group.Paths(), other)), os.Mkdir(other, 0o700)); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("cat")
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := alive.Add(command.Process.Pid); err != nil {
		t.Error(err)
	}
	killed.lock.Close() // as the kernel does with the descriptors of a killed process
	sweepStates(os.TempDir())
	if _, err := os.Stat(killed.dir); err != nil {
		t.Errorf("forgotten while a process of it lives: %v", err)
	}
	stdin.Close()
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
	sweepStates(os.TempDir())
	for _, name := range append(group.Paths(), killed.dir) {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("what is not its own: %v", err)
	}
}

func TestOwnLimitsAndUmaskWork(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	b := openBox(t, testPolicy+"resource_limits: {open_files: 256}\n")
	exit, out := b.run(t, "python3", "-c", `
import os, resource as r
os.umask(0)
os.close(os.open("open", os.O_CREAT | os.O_WRONLY, 0o666))
print(oct(os.stat("open").st_mode & 0o777))
r.setrlimit(r.RLIMIT_NOFILE, (100, 256)); r.setrlimit(r.RLIMIT_NOFILE, (256, 256)); r.prlimit(0, r.RLIMIT_NOFILE, (64, 200))
print(r.getrlimit(r.RLIMIT_NOFILE))
r.setrlimit(r.RLIMIT_CORE, (0, 0)); r.setrlimit(r.RLIMIT_STACK, (1 << 20, 1 << 20))
def refused(what, *args):
    try: what(*args)
    except (PermissionError, ValueError): return
    print("worked:", args)
refused(r.setrlimit, r.RLIMIT_NOFILE, (300, 300))
refused(r.setrlimit, 15, (1, 1))
never = os.pipe()
child = os.fork()
if child == 0: os.read(never[0], 1)
r.prlimit(child, r.RLIMIT_NOFILE, (3, 3)); refused(r.prlimit, child, 15, (1, 1))
for first in 1, 2, 3: refused(r.prlimit, first, r.RLIMIT_NOFILE, (3, 3))
os.kill(child, 9)`)
	if exit.Code != 0 || out != "0o666\n(64, 200)\n" {
		t.Errorf("exit %+v, printed %q", exit, out)
	}
}

func TestAnIdleSessionEnds(t *testing.T) {
	b := openBox(t, testPolicy+"resource_limits: {idle_timeout: 300ms}\n")
	select {
	case <-b.init.Dead():
	case <-time.After(time.Minute):
		t.Fatal("the session goes on")
	}
	_, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "late", Argv: []string{"true"}}, wire.Streams{})
	if !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "idle_timeout of 300ms is over") {
		t.Errorf("error %v", err)
	}
}

// A session is idle from its beginning and after its commands, not meanwhile.
func TestACommandKeepsASessionFromBeingIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan *Ended, 2)
		l := lifetime{ended: func(e *Ended) { ends <- e }}
		l.start(0, time.Minute)
		<-time.After(50 * time.Second) // of the bubble
		for range 2 {
			if err := l.enter(); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Hour)
		l.leave()
		<-time.After(time.Hour)
		l.leave()
		<-time.After(59 * time.Second)
		if err := l.enter(); err != nil {
			t.Fatal(err)
		}
		l.leave()
		<-time.After(59 * time.Second)
		synctest.Wait()
		if len(ends) != 0 {
			t.Fatalf("it ended: %v", <-ends)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if len(ends) != 1 {
			t.Fatalf("%d ends", len(ends))
		}
		if end := <-ends; end.Cause != wire.CauseIdleTimeout || l.enter() == nil {
			t.Errorf("ended: %v", end)
		}
	})
}

// When memory runs out the kernel ends commands before their supervisor.
func TestCommandsAreOfferedToTheOOMKillerFirst(t *testing.T) {
	b := openBox(t, testPolicy)
	exit, out := b.run(t, "sh", "-c", "cat /proc/self/oom_score_adj; echo 0 2>/dev/null >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
	if exit.Code != 0 || out != "500\n500\n" {
		t.Errorf("exit %+v, printed %q", exit, out)
	}
	want, err := exec.Command("sh", "-c", "echo -800 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj").Output() // where the machine allows it
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{os.Getpid(), b.files.PID()} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil || string(text) != string(want) {
			t.Errorf("process %d: %q, %v", pid, text, err)
		}
	}
}

// A limit above that of the supervisor would fail each command.
func TestALimitOfOpenFilesThatCannotBeGivenIsRefusedAtTheStart(t *testing.T) {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		t.Fatal(err)
	}
	for limit, fits := range map[uint64]bool{have.Max: true, have.Max + 1: false} {
		cfg, _ := testConfig(t, testPolicy+fmt.Sprintf("resource_limits: {open_files: %d}\n", limit))
		err := checkOpenFiles(cfg.Policy)
		if (err == nil) != fits || !fits && !strings.Contains(err.Error(), "ulimit -Hn") {
			t.Errorf("%d of %d: %v", limit, have.Max, err)
		}
	}
}

// A supervisor gets a processor before its commands, which have the nice value that it
// was started with, whichever thread starts them.
func TestCommandsHaveTheNiceValueOfTheCallerNotOfTheSupervisor(t *testing.T) {
	b := openBox(t, testPolicy)
	own, err := ownScheduling()
	if err != nil {
		t.Fatal(err)
	}
	inherited := fmt.Sprintln(own.Nice)
	for range 2 { // later threads, later commands
		exit, out := b.run(t, "sh", "-c", "nice; sh -c 'nice; true'; chrt -p $$ | head -1")
		if exit.Code != 0 || !strings.HasPrefix(out, inherited+inherited) || !strings.HasSuffix(out, "SCHED_OTHER\n") {
			t.Errorf("exit %+v, printed %q", exit, out)
		}
	}
	want := []byte(inherited)
	if own.Nice == 0 { // preferred where the machine allows it
		if want, err = exec.Command("sh", "-c", fmt.Sprintf("renice -n %d -p $$ >/dev/null 2>&1; nice", preferredNice)).Output(); err != nil {
			t.Fatal(err)
		}
	}
	for what, pid := range map[string]int{"supervisor": os.Getpid(), "file server": b.files.PID(), "session init": b.init.PID()} {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(threads) == 0 {
			t.Fatal(what, err)
		}
		for _, thread := range threads {
			tid, _ := strconv.Atoi(filepath.Base(thread))
			if value, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && strconv.Itoa(20-value) != strings.TrimSpace(string(want)) {
				t.Errorf("%s, thread %d: nice value %d", what, tid, 20-value)
			}
		}
	}
}
