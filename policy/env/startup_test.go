package env

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// startup is the absolute path of bash_startup.sh.
func startup(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bash_startup.sh")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shell runs words with BASH_ENV and the given variables, and nothing else.
func shell(t *testing.T, stdin *os.File, vars []string, words ...string) (stdout, stderr string) {
	t.Helper()
	testenv.Need(t, testenv.Program("bash"))
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nowhere"}, vars...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v: %s", words, err, errs.Bytes())
	}
	return out.String(), errs.String()
}

const builtins = "kill ulimit umask builtin command enable"

func TestStartupTurnsTheBuiltinsOff(t *testing.T) {
	for _, name := range strings.Fields(builtins) {
		vars := []string{"BASH_ENV=" + startup(t)}
		if out, _ := shell(t, nil, nil, "bash", "-c", "type -t "+name); out != "builtin\n" {
			t.Errorf("without the script %s is %q: the test proves nothing", name, out)
		}
		out, errs := shell(t, nil, vars, "bash", "-c", "type -t "+name+" || :")
		if out == "builtin\n" || errs != "" {
			t.Errorf("%s is still a %q, on stderr %q", name, out, errs)
		}
	}
}

// functions are those that the script defines.
const functions = `command kill umask ulimit __agentsh_kill __agentsh_plan __agentsh_describe __agentsh_fail
	__agentsh_caller __agentsh_send __agentsh_umask __agentsh_ulimit __agentsh_soft __agentsh_lower __agentsh_inherited __agentsh_uncovered`

func TestStartupPrintsNothingAndChangesNothingElse(t *testing.T) {
	report := `printf '%s|%s|%s\n' "$?" "$-" "$_"; set -o; shopt; declare -F; unset BASH_ENV BASHPID SECONDS EPOCHSECONDS EPOCHREALTIME RANDOM SRANDOM; declare -p; trap`
	for _, flags := range []string{"-c", "-xc", "-ec", "-uc", "-euc", "-Tc", "-euxo pipefail -c"} {
		words := append(append([]string{"bash"}, strings.Fields(flags)...), report)
		plain, plainErr := shell(t, nil, []string{"BASH_ENV=/dev/null"}, words...)
		got, gotErr := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, words...)
		for _, name := range strings.Fields(functions) {
			got = strings.Replace(got, "declare -f "+name+"\n", "", 1)
		}
		if got != plain {
			t.Errorf("bash %s prints\n%s\nwithout the script\n%s", flags, got, plain)
		}
		if gotErr != plainErr {
			t.Errorf("bash %s writes\n%s\nto stderr, without the script\n%s", flags, gotErr, plainErr)
		}
	}
}

func TestStartupWorksWhenItRanBefore(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "twice.sh")
	for _, before := range []string{". " + startup(t), "enable -n kill builtin", "enable -n enable", "set -e; enable -n umask"} {
		if err := os.WriteFile(file, []byte(before+"\n. "+startup(t)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out, errs := shell(t, nil, []string{"BASH_ENV=" + file}, "bash", "-c", `echo "st=$?"; type -t kill || :`)
		if errs != "" || !strings.HasPrefix(out, "st=0\n") || strings.Contains(out, "kill is a shell builtin") {
			t.Errorf("after %q: %q, on stderr %q", before, out, errs)
		}
	}
}

// socket gives one end of a connected stream pair; Claude Code's shell tool
// gives bash one as standard input.
func socket(t *testing.T) *os.File {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(pair[0]), "stdin"), os.NewFile(uintptr(pair[1]), "peer")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a
}

// tcp gives one end of a TCP connection.
func tcp(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestWhenBashReadsItsStartupFile holds what bash does, and that the
// environment Build makes keeps it reading.
func TestWhenBashReadsItsStartupFile(t *testing.T) {
	script := filepath.Join(t.TempDir(), "s.sh")
	if err := os.WriteFile(script, []byte("type -t kill\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const ask = "type -t kill"
	tests := []struct {
		name  string
		stdin func(*testing.T) *os.File
		vars  []string
		words []string
		raw   bool // the file is read with these variables alone
		built bool // the file is read with what Build makes of them
	}{
		{"-c with an empty stdin", nil, nil, []string{"bash", "-c", ask}, true, true},
		{"-c with a Unix socket as stdin", socket, nil, []string{"bash", "-c", ask}, false, true},
		{"-c with a TCP connection as stdin", tcp, nil, []string{"bash", "-c", ask}, false, true},
		{"-c with SSH_CLIENT", nil, []string{"SSH_CLIENT=1.2.3.4 5 6"}, []string{"bash", "-c", ask}, false, true},
		{"-c with SSH2_CLIENT", nil, []string{"SSH2_CLIENT=1.2.3.4 5 6"}, []string{"bash", "-c", ask}, false, true},
		{"-c with a socket and SHLVL=1", socket, []string{"SHLVL=1"}, []string{"bash", "-c", ask}, true, true},
		{"-c with SSH_CLIENT and SHLVL=1", nil, []string{"SSH_CLIENT=1.2.3.4 5 6", "SHLVL=1"}, []string{"bash", "-c", ask}, true, true},
		{"-c with a socket and SHLVL=0", socket, []string{"SHLVL=0"}, []string{"bash", "-c", ask}, false, true},
		{"-c with a socket and SHLVL=999", socket, []string{"SHLVL=999"}, []string{"bash", "-c", ask}, false, true},
		{"a script with a socket as stdin", socket, nil, []string{"bash", script}, true, true},
		{"a login shell with -c", nil, nil, []string{"bash", "-l", "-c", ask}, true, true},
		{"--posix", nil, nil, []string{"bash", "--posix", "-c", ask}, false, false},
		{"POSIXLY_CORRECT", nil, []string{"POSIXLY_CORRECT=1"}, []string{"bash", "-c", ask}, false, true},
		{"called as sh", nil, nil, []string{"bash", "-c", `exec -a sh bash -c "type -t kill"`}, false, false},
		{"-p", nil, nil, []string{"bash", "-p", "-c", ask}, false, false},
		{"-i", nil, nil, []string{"bash", "-i", "-c", ask}, false, false},
		{
			"a bash below a bash that an ssh daemon started",
			socket,
			[]string{"SSH_CLIENT=1.2.3.4 5 6"},
			[]string{"bash", "-c", `bash -c "type -t kill"`},
			false,
			true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			result := build1(t, Layers{
				Baseline: Baseline(Environment{Path: "/usr/local/bin:/usr/bin:/bin", Home: "/nowhere"}), Request: tt.vars,
				Inject: []Inject{{"config", map[string]string{"BASH_ENV": startup(t)}}},
			})
			for _, c := range []struct {
				what string
				vars []string
				read bool
			}{
				{"its own variables", append([]string{"BASH_ENV=" + startup(t)}, tt.vars...), tt.raw},
				{"a built environment", result.Env, tt.built},
			} {
				var stdin *os.File
				if tt.stdin != nil {
					stdin = tt.stdin(t)
				}
				out, _ := shell(t, stdin, c.vars, tt.words...)
				if read := out != "builtin\n"; read != c.read {
					t.Errorf("with %s the startup file was read: %v, want %v", c.what, read, c.read)
				}
			}
		})
	}
}
