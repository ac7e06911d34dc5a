package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

var shellEnv = []string{"PATH=/usr/bin:/bin"}

func TestRunReportsHowACommandEnded(t *testing.T) {
	tests := []struct {
		name   string
		argv   []string
		code   int
		signal syscall.Signal
		stdout string
		errs   string // of Result.Err
	}{
		{"a success has no error", []string{"sh", "-c", "echo hello"}, 0, 0, "hello\n", ""},
		{
			"a status is kept with the last line of standard error",
			[]string{"sh", "-c", "echo one >&2; echo two >&2; exit 3"},
			3,
			0,
			"",
			"exit status 3: two",
		},
		{"a signal is told apart from a status", []string{"sh", "-c", "kill -TERM $$"}, 0, syscall.SIGTERM, "", "killed by signal 15 (SIGTERM)"},
		{"the environment is the one given", []string{"env"}, 0, 0, "PATH=/usr/bin:/bin\n", ""},
		{"the working directory defaults to the root", []string{"pwd"}, 0, 0, "/\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := Run(context.Background(), Command{Argv: tt.argv, Env: shellEnv})
			if err != nil {
				t.Fatal(err)
			}
			if res.Code != tt.code || res.Signal != tt.signal || string(res.Stdout) != tt.stdout {
				t.Errorf("got code %d signal %d stdout %q", res.Code, res.Signal, res.Stdout)
			}
			if got := errText(res.Err()); got != tt.errs {
				t.Errorf("Err() = %q, want %q", got, tt.errs)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRunRefusesWhatItCannotStart(t *testing.T) {
	tests := []struct {
		name string
		cmd  Command
		want string
	}{
		{"no program", Command{}, "no program given"},
		{"a name that is not on PATH", Command{Argv: []string{"no-such-program"}, Env: shellEnv}, "executable file not found"},
		{"a relative path", Command{Argv: []string{"./script"}, Env: shellEnv}, "relative path"},
		{"a missing file", Command{Argv: []string{"/no/such/file"}}, "no such file"},
		{"a missing directory", Command{Argv: []string{"/bin/true"}, Dir: "/no/such/dir"}, "no such file"},
		{"a PATH entry that is relative", Command{Argv: []string{"sh"}, Env: []string{"PATH=bin"}}, "executable file not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Run(context.Background(), tt.cmd)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("err = %v, want %q", err, tt.want)
			}
		})
	}
}

// tree is a script that leaves its process group and its session, and ignores
// SIGTERM. It writes its process ids to a file before it reports that it is
// ready.
const tree = `
trap '' TERM
setsid sh -c 'trap "" TERM; echo $$ >> "$0"; (echo $$ >> "$0"; exec sleep 1000) & exec sleep 1000' "$1" &
sh -c 'echo $$ >> "$0"; exec sleep 1000' "$1" &
while [ "$(wc -l < "$1")" -lt 3 ]; do :; done
echo ready
`

func TestNothingOfATreeIsLeft(t *testing.T) {
	tests := []struct {
		name string
		tail string // the commands of the script after the tree is complete
		stop func(cancel context.CancelFunc) time.Duration
		want error
	}{
		{"when the script ends", "exit 0", nil, nil},
		{"when the context ends", "sleep 1000", func(c context.CancelFunc) time.Duration { c(); return 0 }, context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pids := filepath.Join(t.TempDir(), "pids")
			writeFile(t, pids, "")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ready := writerFunc(func(p []byte) (int, error) {
				if tt.stop != nil {
					tt.stop(cancel)
				}
				return len(p), nil
			})
			_, err := Run(ctx, Command{
				Argv: []string{"sh", "-c", tree + tt.tail, "tree", pids}, Env: shellEnv,
				Stdout: ready, Grace: 50 * time.Millisecond,
			})
			if !errors.Is(err, tt.want) {
				t.Fatalf("err = %v, want %v", err, tt.want)
			}
			checkDead(t, pids)
		})
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readPIDs(t *testing.T, name string) []int {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, w := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(w)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) < 3 {
		t.Fatalf("the tree did not stand: %v", pids)
	}
	return pids
}

func checkDead(t *testing.T, name string) {
	t.Helper()
	for _, pid := range readPIDs(t, name) {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
}

func TestATimeoutIsDistinguishedFromAFailure(t *testing.T) {
	_, err := Run(context.Background(), Command{
		Argv: []string{"sleep", "1000"}, Env: shellEnv, Timeout: 100 * time.Millisecond, Grace: 50 * time.Millisecond,
	})
	if !errors.Is(err, ErrTimeout) {
		t.Fatalf("err = %v, want %v", err, ErrTimeout)
	}
}

func TestTheOutputBeforeTheEndIsKept(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	res, err := Run(ctx, Command{
		Argv: []string{"sh", "-c", "echo started; exec sleep 1000"}, Env: shellEnv, Grace: 50 * time.Millisecond,
		Stdout: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }),
	})
	if !errors.Is(err, context.Canceled) || string(res.Stdout) != "started\n" {
		t.Errorf("output before the end = %q, %v", res.Stdout, err)
	}
}

func TestOutputIsBoundedAndSaysSo(t *testing.T) {
	res, err := Run(context.Background(), Command{
		Argv: []string{"sh", "-c", "echo first; head -c 3000000 /dev/zero; echo last"}, Env: shellEnv, MaxOutput: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	out := string(res.Stdout)
	if len(out) > 1100 || !strings.HasPrefix(out, "first\n") || !strings.HasSuffix(out, "last\n") ||
		!strings.Contains(out, "[2999011 bytes dropped]") {
		t.Errorf("kept %d bytes: %.40q ... %q", len(out), out, out[max(0, len(out)-60):])
	}
}

// TestMain runs as the controller of TestAKilledControllerLeavesNothing if the
// first argument says so.
func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	if len(os.Args) == 3 && os.Args[1] == "controller" {
		_, err := Run(context.Background(), Command{
			Argv: []string{"sh", "-c", tree + "sleep 1000", "tree", os.Args[2]}, Env: shellEnv, Stdout: os.Stdout,
		})
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAKilledControllerLeavesNothing(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	writeFile(t, pids, "")
	// The orphans become children of this process, which can wait for their end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	cmd := exec.Command("/proc/self/exe", "controller", pids)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	guard, err := syscall.Wait4(-1, nil, 0, nil) // the guard, now a child of this process
	if err != nil {
		t.Fatalf("wait for the guard: %v", err)
	}
	if err := syscall.Kill(guard, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the guard %d is left: %v", guard, err)
	}
	checkDead(t, pids)
}
