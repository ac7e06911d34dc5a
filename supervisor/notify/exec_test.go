package notify

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// programs compiles the C programs once; the directory is removed by TestMain.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "notify-test-")
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"-pthread", "-o", "attack", "testdata/attack.c"},
		{"-static", "-DCODE=0", "-o", "prize-a", "testdata/prize.c"},
		{"-static", "-DCODE=42", "-o", "prize-b", "testdata/prize.c"},
		{"-pthread", "-o", "matrix", "testdata/matrix.c"},
		{"-pthread", "-o", "leave", "testdata/leave.c"},
		{"-pthread", "-o", "processes", "testdata/processes.c"},
		{"-o", "spawn", "testdata/spawn.c"},
		{"-pthread", "-o", "costs", "testdata/costs.c"},
		{"-o", "names", "testdata/names.c"},
		{"-o", "exchange", "testdata/exchange.c"},
		{"-DCODE=42", "-o", "prize-dynamic", "testdata/prize.c"},
		{"-o", "signal", "testdata/signal.c"},
		{"-static", "-o", "hello", "testdata/hello.c"},
		{"-o", "hello-dynamic", "testdata/hello.c"},
	} {
		for i, a := range args {
			if a == "-o" {
				args[i+1] = filepath.Join(dir, args[i+1])
			}
		}
		out, err := exec.Command("gcc", append([]string{"-O1", "-w"}, args...)...).CombinedOutput()
		if err != nil {
			return dir, fmt.Errorf("gcc %q: %w: %s", args, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	code := m.Run()
	if dir, err := programs(); err == nil && dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// place makes a directory with what the matrix program works on.
func place(t testing.TB) (bin, dir string) {
	t.Helper()
	testenv.Need(t, testenv.Program("gcc"), testenv.UserNotif)
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	data, err := os.ReadFile(filepath.Join(bin, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]struct {
		data string
		mode os.FileMode
	}{
		"hello":    {string(data), 0o755},
		"doomed":   {string(data), 0o755},
		"script":   {"#!" + dir + "/hello  first second \n", 0o755},
		"script2":  {"#!" + dir + "/script third\n", 0o755},
		"threaded": {"#!" + bin + "/processes ended\n", 0o755},
		"text":     {"not a program\n", 0o755},
		"plain":    {string(data), 0o644},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(f.data), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link": "hello", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin, dir
}

func TestEveryKindOfExecEndsAsItWouldWithoutSupervision(t *testing.T) {
	bin, dir := place(t)
	for _, name := range []string{"thread", "leader-gone", "race", "spinners", "errnos", "at-empty", "at-cloexec", "at-path", "at-dir",
		"at-dir-up", "at-nofollow", "at-flags", "at-bad", "at-script", "link", "relative", "relative-up", "script", "script-of-script",
		"null-argv", "self-exe", "self-fd", "dev-fd", "self-cwd", "self-root", "usr1", "kill", "stop", "many", "parallel"} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(filepath.Join(dir, "sub"))
			native, _ := exec.Command(filepath.Join(bin, "matrix"), name, dir).CombinedOutput()
			_ = os.Remove(filepath.Join(dir, "sub"))
			s := run(t, Config{}, filepath.Join(bin, "matrix"), name, dir)
			if got := s.out.String(); got != string(native) || got == "" {
				t.Errorf("printed %q, natively %q; events %+v", got, native, s.events)
			}
		})
	}
}

// The memory of an undumpable process is for a privileged supervisor only.
func TestAnUndumpableProcessExecsUnderAPrivilegedSupervisorOnly(t *testing.T) {
	bin, dir := place(t)
	s := run(t, Config{}, filepath.Join(bin, "matrix"), "undumpable", dir)
	if os.Geteuid() == 0 {
		s.printed("undumpable\n")
		return
	}
	s.printed("execveat: Permission denied\n")
	s.fault("permission denied")
}

func TestProgramsThatCannotBeBoundAreRefused(t *testing.T) {
	bin, dir := place(t)
	for _, c := range []struct{ name, want, fault string }{
		{"memfd", "execveat: Permission denied\n", "memory file"},
		{"deleted", "execveat: Permission denied\n", "deleted"},
		{"traced", "exec: Operation not permitted\n", "debugger"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := run(t, Config{}, filepath.Join(bin, "matrix"), c.name, dir)
			if c.name == "traced" && traced { // PTRACE_TRACEME fails already: it has a tracer
				s.printed("traced\n")
				return
			}
			s.printed(c.want)
			s.fault(c.fault)
		})
	}
}

// The attack flips the path and the argument between what is allowed and what
// is denied, as fast as it can. RACE_N sets the tries.
func TestFlippingThePathOrTheArgumentsNeverWins(t *testing.T) {
	bin, _ := place(t)
	tries := 500
	if n, err := strconv.Atoi(os.Getenv("RACE_N")); err == nil {
		tries = n
	}
	for _, mode := range []string{"vfork", "shared"} {
		for _, flips := range []string{"pa", "p", "a"} {
			t.Run(mode+" "+flips, func(t *testing.T) {
				s := run(
					t,
					Config{Rules: Rules{Evaluate: denying2("prize-b", "ek")}},
					filepath.Join(bin, "attack"),
					mode,
					filepath.Join(bin, "prize-a"),
					flips,
					strconv.Itoa(tries),
				)
				var ran, refused, killed, program, argument int
				var allowed, denied [5]int // without an attack
				_, err := fmt.Sscan(s.out.String(), &ran, &refused, &killed, &program, &argument,
					&allowed[0], &allowed[1], &allowed[2], &allowed[3], &allowed[4], &denied[0], &denied[1], &denied[2], &denied[3], &denied[4])
				if err != nil {
					t.Fatalf("printed %q", &s.out)
				}
				t.Logf("%d ran, %d refused, %d killed", ran, refused, killed)
				if program+argument != 0 {
					t.Errorf("of %d tries %d ran the denied program and %d had the denied argument", tries, program, argument)
				}
				if allowed != [5]int{1} || denied != [5]int{0, 1} || ran+refused+killed != tries {
					t.Errorf("the attack did not try: %s", &s.out)
				}
				switched := s.event(func(e wire.Event) bool { return e.Op == "exec_switched" })
				if (switched != nil) != (killed > 0) {
					t.Errorf("%d were killed, and the event is %+v", killed, switched)
				}
			})
		}
	}
}
