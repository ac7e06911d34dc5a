package launch_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/supervisor/launch"
)

// scripts that leave processes behind in every way a shell knows.
var leavers = map[string]string{
	"a background job":        "sleep 60 & exit 4",
	"a session of its own":    "setsid sleep 60 & exit 4",
	"a double fork":           "(setsid bash -c 'sleep 60 & sleep 60' &) & wait; exit 4",
	"a job that ignores TERM": "(trap '' TERM HUP; while :; do sleep 60; done) & exit 4",
	"a job that is stopped":   "sleep 60 & kill -STOP $!; exit 4",
	"a subreaper of its own":  python(`ctypes.CDLL(None).prctl(36,1); os.fork() or os.fork() or time.sleep(60); say(); time.sleep(60)`),
	"undumpable processes":    python(`ctypes.CDLL(None).prctl(4,0); os.fork(); say(); time.sleep(60)`),
	"a fork in every instant": python(`n=0
while True:
  n+=1
  if n==50: say()
  if os.fork(): os._exit(0)`),
	"many of them": "for i in {1..200}; do sleep 60 & done; exit 4",
}

// python is a shell script that exits when a background Python program has said
// so.
func python(text string) string {
	return "exec 3< <(exec python3 -c 'import ctypes,os,time\nsay=lambda: os.write(1,b\"x\\n\")\n" + text + "'); read -u3 x; exit 4"
}

func TestATreeIsKnownAndKilledWhole(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		other := s.begin(t, "exec sleep 60")
		for name, script := range leavers {
			t.Run(name, func(t *testing.T) {
				p := s.begin(t, script)
				status, err := p.Wait()
				if err != nil || status.ExitCode() != 4 {
					t.Fatalf("%v %v", status, err)
				}
				select {
				case <-p.TreeEmpty():
					t.Error("the tree is said to be empty")
				default:
				}
				if err := p.Kill(time.Millisecond, nil); err != nil {
					t.Fatal(err)
				}
				within(t, 0, p.TreeEmpty(), "tree empty")
				if len(p.Leftover()) == 0 {
					t.Error("nothing was left over")
				}
			})
		}
		if code, out := s.run(t, "ps -e -o comm= | sort | uniq -c | tr -s ' \\n' ' '"); code != 0 || !strings.Contains(out, " 1 sleep") ||
			strings.Contains(out, "python") {
			t.Errorf("left: %q", out)
		}
		select {
		case <-other.Exited():
			t.Error("another command was killed")
		default:
		}
		if err := other.Kill(time.Second, nil); err != nil {
			t.Error(err)
		}
		if status, err := other.Wait(); err != nil || status.Signal() != unix.SIGTERM {
			t.Errorf("%v %v", status, err)
		}
	})
}

func TestATreeThatEndsByItselfIsNoticed(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		p := s.begin(t, "(setsid bash -c 'sleep 0.2; (sleep 0.2 &)' &)")
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		within(t, guard, p.TreeEmpty(), "tree empty")
		if n := len(p.Leftover()); n == 0 {
			t.Error("nothing was left over")
		}
		p = s.begin(t, "true")
		within(t, guard, p.TreeEmpty(), "tree empty")
		if len(p.Leftover()) != 0 {
			t.Errorf("left over: %v", p.Leftover())
		}
	})
}

// What a command tries against the init and against its own mark.
func TestACommandCannotReachTheInit(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		for _, script := range []string{
			"kill -9 1", "kill -STOP 1", "kill -9 -- -1", "for i in {1..64}; do kill -$i 1; done",
			"renice 19 1", "taskset -p 1 1", "chrt -i -p 0 1", "ionice -c3 -p 1", "prlimit --pid 1 --nofile=1",
			"ulimit -R 7; ulimit -HR 7", "cat /proc/1/environ /proc/1/maps", "ls /proc/1/fd",
			"python3 -c 'import ctypes; c=ctypes.CDLL(None); c.setpriority(2,0,19); print(c.syscall(251,3,0,3<<13))'",
		} {
			s.run(t, script)
			if code, out := s.run(t, "echo here; exec sleep 0"); code != 0 || out != "here" {
				t.Fatalf("after %q: %d %q", script, code, out)
			}
		}
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, s.PID())
		if own, mine := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || mine != nil || nice != own {
			t.Errorf("the init has priority %d, who started it %d, %v", nice, own, errors.Join(err, mine))
		}
		select {
		case <-s.Dead():
			t.Error("the init is dead")
		default:
		}
	})
}

func TestCommandsRunSideBySide(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		var all sync.WaitGroup
		for n := range 8 {
			all.Add(1)
			go func() {
				defer all.Done()
				for m := range 10 {
					if code, out := s.run(t, fmt.Sprintf("echo %d.%d; exit %d", n, m, n)); code != n || out != fmt.Sprintf("%d.%d", n, m) {
						t.Errorf("%d.%d: %d %q", n, m, code, out)
					}
				}
			}()
		}
		all.Wait()
	})
}

// Short, for -count=100 under the race detector.
func TestStartKillAndCloseInAnyOrder(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	s := start(t, config(t))
	var all sync.WaitGroup
	for n := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			p, err := s.Start(context.Background(), launch.Command{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/"})
			if errors.Is(err, launch.ErrSessionEnded) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if n%2 == 0 {
				if err := p.Kill(time.Second, nil); err != nil {
					t.Error(err)
				}
			}
			if n == 1 {
				s.Close()
			}
			p.Wait()
			<-p.TreeEmpty()
		}()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Start(ctx, launch.Command{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/"}); err == nil {
		t.Error("started under a context that is done")
	}
	all.Wait()
}

// A start that is given up while the child is at the gate ends the child.
func TestAStartThatIsGivenUpIsKilled(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		ctx, cancel := context.WithCancel(context.Background())
		pid := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := s.Start(ctx, launch.Command{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/", OnPID: func(p int) error {
				pid = p
				cancel()
				return nil
			}})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Start gave %v", err)
			}
		}()
		within(t, guard, done, "the end of the start")
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	})
}

// taker tries for as long as it lives to get a listener: one of its own, and one
// that a process it sees holds. It tells of each on descriptor 3, and once on its
// output that it has begun.
const taker = `open(my $tell, ">&=3"); my $allow = pack("SCCL", 6, 0, 0, 0x7fff0000); my $program = pack("Sx6P", 1, $allow); my $begun;
while (1) {
	syswrite $tell, "installed a listener\n" if syscall(%d, 1, 8, $program) >= 0;
	for (glob "/proc/[0-9]*/fd/*") { syswrite $tell, "found a listener\n" if (readlink || "") =~ /seccomp/ && open(my $f, "+<", $_) }
	syswrite STDOUT, "ready\n" unless $begun++;
}`

// supervise is a supervisor to be killed: it starts a session with processes of
// every kind, prints their ids and waits.
func supervise() int {
	t := &testing.B{}
	s := start(t, config(t))
	r, w, err := os.Pipe()
	if err != nil {
		return 1
	}
	p, err := s.Start(
		context.Background(),
		launch.Command{Path: "/bin/bash", Dir: "/", Env: []string{"PATH=/usr/bin"}, Stdout: w, Stderr: os.Stdout, Argv: []string{"bash", "-c",
			`exec 3>&2 2>/dev/null; setsid sleep 60 & (trap '' TERM HUP INT; (echo ready; exec sleep 60) & sleep 60) & exec perl -e "$0"`, fmt.Sprintf(taker, unix.SYS_SECCOMP)}},
	)
	if err != nil {
		return 1
	}
	if _, err := io.ReadFull(r, make([]byte, 2*len("ready\n"))); err != nil {
		return 1
	}
	fmt.Fprintln(os.Stdout, s.PID(), p.PID())
	select {}
}

// Nor does a command get hold of a listener while that happens.
func TestAKilledSupervisorEndsItsCommands(t *testing.T) {
	testenv.Need(t, testenv.Program("perl"))
	both(t, func(t *testing.T) {
		times := 100
		if testing.Short() {
			times = 3
		}
		var longest time.Duration
		for range times {
			longest = max(longest, killSupervisor(t))
		}
		t.Logf("the last process ended at most %s after its supervisor", longest)
	})
}

// killSupervisor returns how long its processes lived on. That they end within a
// second is for a machine that runs them at once; here they end, whatever else it does.
func killSupervisor(t *testing.T) time.Duration {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_SUPERVISOR=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(line)
	for n := 1; n < len(pids); n++ {
		pids = append(pids, children(t, pids[n])...)
	}
	var fds []int
	for _, word := range pids {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if len(fds) < 4 {
		t.Fatalf("only %d processes", len(fds))
	}
	begin := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(poll, int(guard.Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if n != 1 {
				t.Fatalf("a process lives %s after its supervisor (%v)", time.Since(begin), err)
			}
			break
		}
	}
	took := time.Since(begin)
	// The pipe ends with the last process that holds it, known here or not.
	if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 {
		t.Errorf("a command %s (%v)", rest, err)
	}
	return took
}

// children are the processes whose parent is pid.
func children(t *testing.T, pid string) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == pid {
			list = append(list, filepath.Base(filepath.Dir(file)))
		}
	}
	return list
}
