package launch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
)

func TestWhatACommandSeesOfItsSession(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		if len(s.Refused()) < 10 {
			t.Errorf("only %d restrictions were proven: %v", len(s.Refused()), s.Refused())
		}
		uid := fmt.Sprint(config(t).User.UID)
		for script, want := range map[string]string{
			"id -u":         uid,
			"hostname":      "sandbox",
			"pwd":           "/tmp",
			"exit 3":        "3",
			"kill -KILL $$": "137",
			"grep Cap /proc/self/status | grep -cv 0000000000000000": "0",
			"grep NoNewPrivs /proc/self/status":                      "NoNewPrivs:\t1",
			"ls /proc/self/fd | tr '\\n' ' '":                        "0 1 2 3",
			"ls -d /proc/1 2>&1 | grep -c 'cannot access'":           "1",
			"ps -e --no-headers | wc -l | grep -xE '[1-9]' | wc -l":  "1",
			"cat /proc/net/dev | grep -c :":                          "1",
			"echo x > /proc/sys/kernel/hostname":                     "bash: line 1: /proc/sys/kernel/hostname: Read-only file system",
			"touch /usr/x 2>&1 | grep -c Read-only":                  "1",
			"touch /tmp/x && ls /tmp":                                "x",
			"stat -c %a /tmp":                                        "1777",
			"echo hello > /dev/null && head -c 3 /dev/zero | wc -c":  "3",
			"echo shared > /dev/shm/f && cat /dev/shm/f":             "shared",
			"umask":                           "0022",
			"env | sort | grep -v '^_='":      "HOME=/tmp\nPATH=/usr/local/bin:/usr/bin:/bin\nPWD=/tmp\nSHLVL=1",
			"cut -d' ' -f5-6 /proc/self/stat": strconv.Itoa(0),

			"for f in kallsyms keys; do cat /proc/$f; done 2>&1 | grep -c ': Permission denied$'": "2",
		} {
			code, out := s.run(t, script)
			if strings.HasPrefix(script, "cut ") {
				if fields := strings.Fields(out); len(fields) != 2 || fields[0] != fields[1] {
					t.Errorf("group and session are %q: not one session of its own", out)
				}
				continue
			}
			if code != 0 && out == "" {
				out = strconv.Itoa(code)
			}
			if out != want {
				t.Errorf("%s: %q instead of %q", script, out, want)
			}
		}
	})
}

func TestTheRootIsReportedOnceAndComplete(t *testing.T) {
	both(t, func(t *testing.T) {
		mounts := func(pid int) string {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		c := config(t)
		var reported []string
		c.Rooted = func(pid int) { reported = append(reported, mounts(pid)) }
		s := start(t, c)
		if now := mounts(s.PID()); len(reported) != 1 || reported[0] != now {
			t.Errorf("the root was reported with these mounts:\n%s\nnow it has these:\n%s", strings.Join(reported, "\nand "), now)
		}
	})
}

func TestStartNamesTheStepThatFailed(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		argv := []string{"x"}
		for _, c := range []struct {
			name  string
			cmd   launch.Command
			step  string
			errno error
			code  int
		}{
			{"a program that is not there", launch.Command{Path: "/no/such", Argv: argv, Dir: "/"}, "exec /no/such", unix.ENOENT, 127},
			{"a name that only PATH has", launch.Command{Path: "bash", Argv: argv, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}},
				"exec bash", unix.ENOENT, 127},
			{"a file that is no program", launch.Command{Path: "/etc/passwd", Argv: argv, Dir: "/"}, "exec /etc/passwd", unix.EACCES, 126},
			{"a directory that is not there", launch.Command{Path: "/bin/true", Argv: argv, Dir: "/no"}, "change directory to /no", unix.ENOENT,
				127},
			{"a limit above the hard one", launch.Command{Path: "/bin/true", Argv: argv, Dir: "/",
				Limits: []launch.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 1 << 40, Hard: 1 << 40}}}, "set resource limit 7", unix.EPERM, 126},
			{"an argument longer than the kernel takes", launch.Command{Path: "/bin/true", Argv: []string{"x", strings.Repeat("a", 200_000)},
				Dir: "/"}, "exec /bin/true", unix.E2BIG, 126},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := s.Start(context.Background(), c.cmd)
				var start *launch.StartError
				if !errors.As(err, &start) || start.Step != c.step || !errors.Is(err, c.errno) || start.ExitCode() != c.code {
					t.Errorf("%v, not %s: %v", err, c.step, c.errno)
				}
			})
		}
		for name, c := range map[string]launch.Command{
			"no program": {Dir: "/"}, "a relative directory": {Path: "/bin/true", Argv: argv, Dir: "x"},
			"a NUL": {Path: "/bin/true", Argv: []string{"a\x00b"}, Dir: "/"},
		} {
			if _, err := s.Start(context.Background(), c); err == nil {
				t.Errorf("%s: started", name)
			}
		}
		if code, out := s.run(t, "echo still here"); code != 0 || out != "still here" {
			t.Errorf("afterwards: %d %q", code, out)
		}
	})
}

func TestLargeArgumentsAndEnvironmentArrive(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		argv, env := []string{"bash", "-c", `printf %s "$@" | wc -c; env | wc -c`, "bash"}, []string{"PATH=/usr/bin:/bin"}
		for n := range 9 {
			argv = append(argv, strings.Repeat("a", 100_000))
			env = append(env, fmt.Sprintf("V%d=%s", n, strings.Repeat("b", 100_000)))
		}
		code, out := s.command(t, launch.Command{Path: "/bin/bash", Argv: argv, Env: env})
		counts := strings.Fields(out)
		if code != 0 || len(counts) != 2 || counts[0] != "900000" {
			t.Fatalf("%d %q", code, out)
		}
		if n, _ := strconv.Atoi(counts[1]); n < 900_000 {
			t.Errorf("the environment has %d bytes", n)
		}
	})
}

func TestLimitsReachTheCommand(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		code, out := s.command(
			t,
			launch.Command{
				Path:   "/bin/bash",
				Argv:   []string{"bash", "-c", "ulimit -n; ulimit -Hn; ulimit -n 100; ulimit -n 64; ulimit -R 5"},
				Dir:    "/",
				Limits: []launch.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 64, Hard: 64}},
			},
		)
		if !strings.HasPrefix(out, "64\n64\n") || strings.Count(out, "cannot modify limit") != 2 || code == 0 {
			t.Errorf("%d %q", code, out)
		}
	})
}

func TestOnPIDComesBeforeTheProgram(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		seen := 0
		p, err := s.Start(
			context.Background(),
			launch.Command{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/", OnPID: func(pid int) error {
				seen = pid
				if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(name), "sleep") {
					t.Error("the program runs before OnPID has returned")
				}
				return nil
			}},
		)
		if err != nil {
			t.Fatal(err)
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", seen))
		if err != nil || string(name) != "sleep\n" || seen != p.PID() {
			t.Errorf("process %d is %q, %v", seen, name, err)
		}
		if err := p.Kill(0, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestACommandThatOnPIDRefusesNeverRuns(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		no := errors.New("no")
		seen := 0
		p, err := s.Start(
			context.Background(),
			launch.Command{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/", OnPID: func(pid int) error {
				seen = pid
				return no
			}},
		)
		if !errors.Is(err, no) || p != nil {
			t.Errorf("%v %v", p, err)
		}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", seen)); err == nil {
			t.Errorf("process %d is %q", seen, name)
		}
	})
}

func TestATerminalIsTheSessionsOwn(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		master, slave, err := s.OpenPTY(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		p, err := s.Start(context.Background(), launch.Command{
			Path: "/bin/bash", Argv: []string{"bash", "-c", "tty; tty < /dev/tty; stty size"}, Dir: "/", Env: []string{"PATH=/usr/bin"},
			Stdin: slave, Stdout: slave, Stderr: slave, TTY: true})
		slave.Close()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		io.Copy(&out, master) // ends with EIO when the last slave is closed
		if status, err := p.Wait(); err != nil || status.ExitCode() != 0 {
			t.Errorf("%v %v", status, err)
		}
		if want := "/dev/pts/0\r\n/dev/tty\r\n0 0\r\n"; out.String() != want {
			t.Errorf("%q instead of %q", out.String(), want)
		}
	})
}

func TestAListenerOfTheSessionReachesTheSupervisor(t *testing.T) {
	both(t, func(t *testing.T) {
		c := config(t)
		c.Network.Sockets = []launch.Socket{{Tag: "proxy", Family: unix.AF_INET, Type: unix.SOCK_STREAM, Port: 3128}}
		s := start(t, c)
		file := s.Socket("proxy")
		defer file.Close()
		l, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, err = conn.Write([]byte("from outside\n"))
				conn.Close()
			}
			served <- err
		}()
		if code, out := s.run(t, "cat < /dev/tcp/127.0.0.1/3128"); code != 0 || out != "from outside" {
			t.Errorf("%d %q", code, out)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestRootOfAUserNamespaceIsNobodyOutside(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNS, testenv.UserNotif)
	c := config(t)
	c.User = launch.User{Namespace: true, HostUID: 65534, HostGID: 65534}
	s := start(t, c)
	_, out := s.run(t, "id -u; id -G; grep CapEff /proc/self/status; cat /etc/shadow 2>&1 | tail -1")
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || lines[0] != "0" || lines[1] != "0" || !strings.HasSuffix(lines[2], "0000000000000000") ||
		!strings.Contains(lines[3], "Permission denied") {
		t.Errorf("%q", out)
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", s.PID()), &st); err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil || !bytes.Contains(groups, []byte("\nUid:\t65534\t65534\t65534\t65534\n")) ||
		!bytes.Contains(groups, []byte("\nGroups:\t \n")) {
		t.Errorf("%v\n%s", err, groups)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for name, change := range map[string]func(*launch.Config){
		"root of the machine":      func(c *launch.Config) { c.User.UID = 0 },
		"root mapped to root":      func(c *launch.Config) { c.User = launch.User{Namespace: true} },
		"no filter":                func(c *launch.Config) { c.Filter = nil },
		"a broken filter":          func(c *launch.Config) { c.Filter = []byte{1, 2, 3} },
		"a source that is missing": func(c *launch.Config) { c.Mounts = append(c.Mounts, launch.Mount{Source: "/no/such", Target: "/x"}) },
		"a target outside":         func(c *launch.Config) { c.Mounts = append(c.Mounts, launch.Mount{Source: "/usr", Target: "/../x"}) },
		"a target in a read-only tree": func(c *launch.Config) {
			c.Mounts = append(c.Mounts, launch.Mount{Source: "/etc", Target: "/usr/nosuch"})
		},
		"a writable path said read-only":  func(c *launch.Config) { c.ReadOnly = []string{"/tmp"} },
		"a path to prove that is missing": func(c *launch.Config) { c.ReadOnly = []string{"/nosuch"} },
		"a FUSE mount without a server": func(c *launch.Config) {
			c.Mounts = append(c.Mounts, launch.Mount{Kind: launch.FUSE, Target: "/w", Tag: "w"})
		},
		"an unknown kind":               func(c *launch.Config) { c.Mounts = append(c.Mounts, launch.Mount{Kind: 99, Target: "/w"}) },
		"Landlock rights of the future": func(c *launch.Config) { c.Landlock = &launch.Landlock{Handled: 1 << 60} },
	} {
		c := config(t)
		change(&c)
		i, err := launch.NewInit(context.Background(), c, nil)
		if err == nil {
			i.Close()
			t.Errorf("%s: started", name)
			continue
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestLandlockIsTheFloor(t *testing.T) {
	testenv.Need(t, testenv.Landlock)
	both(t, func(t *testing.T) {
		c := config(t)
		rights := (launch.LandlockRead | launch.LandlockExec | launch.LandlockWrite) & launch.SupportedRights()
		c.Landlock = &launch.Landlock{Scope: true, Handled: rights, Rules: []launch.LandlockRule{
			{Path: "/usr", Access: launch.LandlockRead | launch.LandlockExec},
			{Path: "/dev", Access: launch.LandlockRead | launch.LandlockWrite},
			{Path: "/proc", Access: launch.LandlockRead},
			{Path: "/etc/ld.so.cache", Access: launch.LandlockRead},
			{Path: "/tmp", Access: rights &^ launch.LandlockExec},
			{Path: "/nosuch", Access: rights},
		}}
		c.ReadOnly = []string{"/usr"}
		s := start(t, c)
		code, out := s.run(
			t,
			`mkdir /tmp/d && echo a > /tmp/f && mv /tmp/f /tmp/d/g && cat /tmp/d/g; cat /etc/passwd 2>&1; cp /bin/true /tmp/t && /tmp/t 2>&1`,
		)
		if code != 126 || !strings.HasPrefix(out, "a\ncat: /etc/passwd: Permission denied\n") {
			t.Errorf("%d %q", code, out)
		}
	})
}

func TestSessionsDoNotReachEachOther(t *testing.T) {
	both(t, func(t *testing.T) {
		a, b := start(t, config(t)), start(t, config(t))
		p := a.begin(t, "exec sleep 60")
		_, out := b.run(t, fmt.Sprintf("kill -0 %d 2>&1; ls -d /proc/%d 2>&1", p.PID(), p.PID()))
		if !strings.Contains(out, "No such process") || !strings.Contains(out, "cannot access") {
			t.Errorf("%q", out)
		}
		if err := p.Kill(0, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestClosedSessionsLeaveNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		before := descriptors(t)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var pids []int
		for range 3 {
			s := start(t, config(t))
			p := s.begin(t, "(setsid sleep 60 &) ; sleep 60")
			pids = append(pids, s.PID(), p.PID())
			s.end()
			if _, err := p.Wait(); !errors.Is(err, launch.ErrSessionEnded) {
				t.Errorf("Wait gave %v", err)
			}
			within(t, guard, p.TreeEmpty(), "tree empty")
			if err := p.Kill(0, nil); err != nil {
				t.Errorf("Kill after the end: %v", err)
			}
			if _, err := s.Start(context.Background(), launch.Command{Path: "/bin/true", Argv: []string{"true"}, Dir: "/"}); !errors.Is(
				err,
				launch.ErrSessionEnded,
			) {
				t.Errorf("Start after the end: %v", err)
			}
			if _, _, err := s.OpenPTY(context.Background()); err == nil {
				t.Error("a terminal after the end")
			}
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("process %d is left: %v", pid, err)
			}
		}
		if after := descriptors(t); after != before {
			t.Errorf("descriptors before:\n%s\nafter:\n%s", before, after)
		}
		after, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		// One may go meanwhile: removing its directory elsewhere detaches it here.
		for line := range strings.Lines(string(after)) {
			if !strings.Contains(string(mounts), line) {
				t.Errorf("a mount is left: %s", line)
			}
		}
	})
}

// descriptors lists what this process has open, but for the poller of the
// runtime, which stays.
func descriptors(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && !strings.HasPrefix(name, "anon_inode:[event") && !strings.HasPrefix(name, "/proc/") {
			list = append(list, e.Name()+" "+name)
		}
	}
	return strings.Join(list, "\n")
}

// TestTheInitHasTheFirstNumbers of its pid namespace, and no command has one of
// them: the filter knows the session's own processes by that.
func TestTheInitHasTheFirstNumbers(t *testing.T) {
	both(t, func(t *testing.T) {
		for _, opener := range []bool{false, true} {
			c := config(t)
			if opener {
				testenv.Need(t, testenv.Landlock)
				c.Opener = []string{"/usr"}
			}
			s := start(t, c)
			tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", s.PID()))
			if err != nil || len(tasks) < 2 {
				t.Fatalf("threads of the init: %q, %v", tasks, err)
			}
			for _, name := range tasks {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				_, numbers, _ := strings.Cut(string(text), "\nNSpid:")
				numbers, _, _ = strings.Cut(numbers, "\n")
				fields := strings.Fields(numbers)
				if n, err := strconv.Atoi(fields[len(fields)-1]); err != nil || n > seccomp.FirstProcesses {
					t.Errorf("opener %v: a thread of the init has number %d, %v", opener, n, err)
				}
			}
			_, out := s.run(t, "echo $$")
			if n, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || n <= seccomp.FirstProcesses {
				t.Errorf("opener %v: the first command has number %q", opener, out)
			}
		}
	})
}
