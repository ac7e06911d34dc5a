package supervisor

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/streams"
)

// screen is what a terminal showed; see waits for a text.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // one token when something came
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) see(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("%q never showed: %q", text, s.String())
		}
	}
}

// sitting is a running command with a terminal and somebody at it.
type sitting struct {
	screen  *screen
	keys    *io.PipeWriter
	control chan wire.Control
	hangUp  func()
	ended   chan wire.Exit
}

func (b *box) sit(t testing.TB, tty wire.TTY, argv ...string) *sitting {
	t.Helper()
	in, keys := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	s := &sitting{screen: newScreen(), keys: keys, control: make(chan wire.Control, 8), hangUp: cancel, ended: make(chan wire.Exit, 1)}
	go func() {
		exit, _, err := b.Exec(
			ctx,
			wire.ExecRequest{ID: t.Name(), Argv: argv, TTY: &tty},
			wire.Streams{Stdin: in, Stdout: s.screen, Control: s.control},
		)
		if err != nil {
			t.Errorf("%q: %v", argv, err)
		}
		s.ended <- exit
	}()
	t.Cleanup(func() { cancel(); keys.Close() })
	return s
}

func (s *sitting) end(t testing.TB) wire.Exit {
	t.Helper()
	select {
	case exit := <-s.ended:
		return exit
	case <-time.After(2 * time.Minute):
		t.Fatalf("it does not end: %q", s.screen)
		return wire.Exit{}
	}
}

func TestACommandOnATerminal(t *testing.T) {
	b := openBox(t, strings.Replace(testPolicy, "SHLVL, LANG]", "SHLVL, LANG, TERM]", 1))
	tty := wire.TTY{Term: "vt100", Rows: 31, Cols: 97}
	tests := []struct {
		name   string
		script string
		typed  string
		want   string
		code   int
	}{
		{"all three streams are the terminal", "test -t 0 && test -t 1 && test -t 2 && echo all", "", "all\r\n", 0},
		{"it is the controlling one", "echo there >/dev/tty", "", "there\r\n", 0},
		{"it has a name inside", "tty", "", "/dev/pts/", 0},
		{"it has the size that was asked for", "stty size", "", "31 97\r\n", 0},
		{"its type is in the environment", "echo $TERM", "", "vt100\r\n", 0},
		{"standard error is in the same stream", "echo e >&2", "", "e\r\n", 0},
		{"what is typed arrives and is echoed", "read x; echo got $x", "word\n", "word\r\ngot word\r\n", 0},
		{"the end of the input is typed too", "cat; echo done", "line\n", "line\r\nline\r\ndone\r\n", 0},
		{"also in the middle of a line", "cat; echo .done", "li", "lili.done\r\n", 0},
		{"the status is the command's own", "exit 7", "", "", 7},
		{"the last output before the end is delivered", "seq 5000", "", "\r\n5000\r\n", 0},
		{"output is delivered while no process has the terminal open", "exec </dev/null >/dev/null 2>&1; sleep 0.1; echo again >/dev/tty", "", "again\r\n", 0},
		{"a denied program is denied", "/usr/bin/kill 1; echo $?", "", "126\r\n", 0},
		{"nothing is typed for others", `python3 -c 'import fcntl,termios
try: fcntl.ioctl(0, termios.TIOCSTI, b"x")
except OSError as e: print("errno", e.errno)'`, "", "errno 1\r\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := b.sit(t, tty, "sh", "-c", tt.script)
			if _, err := io.WriteString(s.keys, tt.typed); err != nil && tt.typed != "" {
				t.Fatal(err)
			}
			s.keys.Close()
			if exit := s.end(t); exit.ExitCode() != tt.code {
				t.Errorf("exit %+v", exit)
			}
			if !strings.Contains(s.screen.String(), tt.want) {
				t.Errorf("showed %q, want %q", s.screen, tt.want)
			}
		})
	}
}

func TestATerminalIsResized(t *testing.T) {
	b := openBox(t, testPolicy)
	s := b.sit(t, wire.TTY{Rows: 24, Cols: 80}, "bash", "-c", `trap 'stty size; exit 3' WINCH; echo ready; while :; do read -t 0.05; done`)
	s.screen.see(t, "ready")
	s.control <- wire.Control{TTY: &wire.TTY{Rows: 40, Cols: 132}}
	s.screen.see(t, "40 132")
	if exit := s.end(t); exit.Code != 3 {
		t.Errorf("exit %+v", exit)
	}
}

func TestCtrlCReachesTheForeground(t *testing.T) {
	b := openBox(t, testPolicy)
	s := b.sit(t, wire.TTY{}, "bash", "--norc", "-i")
	for _, step := range []struct{ typed, want string }{
		{"echo re''ady\n", "ready"},
		{"sleep 9; echo status $?\n", "sleep 9"},
		{"", ""},
		{"\x03", "^C"},
		{"echo still he''re $?\n", "still here 130"},
	} {
		if step.typed == "" {
			b.waitFor(t, "sleep")
			continue
		}
		if _, err := io.WriteString(s.keys, step.typed); err != nil {
			t.Fatal(err)
		}
		s.screen.see(t, step.want)
	}
	if _, err := io.WriteString(s.keys, "exit 5\n"); err != nil {
		t.Fatal(err)
	}
	if exit := s.end(t); exit.Code != 5 {
		t.Errorf("exit %+v", exit)
	}
}

// waitFor waits until a program of that name runs in the session.
func (b *box) waitFor(t testing.TB, name string) {
	t.Helper()
	exit, out := b.request(t, wire.ExecRequest{ID: "wait-" + name, DeadlineMS: 120_000,
		Argv: []string{"sh", "-c", "until pgrep -x " + name + "; do :; done"}})
	if exit.Code != 0 || exit.Kind != wire.ExitExited {
		t.Fatalf("%s does not run: %+v %s", name, exit, out)
	}
}

func TestAHangUpEndsEverything(t *testing.T) {
	b := openBox(t, testPolicy)
	for _, tt := range []struct {
		name, script string
	}{
		{"an interactive shell with jobs", "sleep 1000 &\nsleep 1000\n"},
		{"what left the terminal's session", "setsid sleep 1000 &\nsleep 1000\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := b.sit(t, wire.TTY{}, "bash", "--norc", "-i")
			if _, err := io.WriteString(s.keys, tt.script); err != nil {
				t.Fatal(err)
			}
			b.waitFor(t, "sleep")
			s.hangUp()
			s.end(t)
			if _, out := b.run(t, "ps", "ax", "-o", "comm"); strings.Contains(out, "sleep") || strings.Contains(out, "bash") {
				t.Errorf("left over: %s", out)
			}
		})
	}
}

func TestATerminalTypeThatIsNoNameIsRefused(t *testing.T) {
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n")}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	prepared := preparation{rules: &rules{policy: p}}
	for _, term := range []string{"a b", "../x", "x\n", strings.Repeat("x", 65), "-x"} {
		_, exit := prepared.command(wire.ExecRequest{Argv: []string{"true"}, TTY: &wire.TTY{Term: term}})
		if exit == nil || exit.Code != 125 {
			t.Errorf("%q: %+v", term, exit)
		}
	}
	if err := streams.CheckTTY(&wire.TTY{Term: "xterm-256color"}); err != nil {
		t.Error(err)
	}
}

func TestRulesKnowATerminal(t *testing.T) {
	b := openBox(t, strings.Replace(testPolicy, "command_rules:", `command_rules:
  - {name: seen, commands: [hostname], when: {interactive: true}, decision: deny}`, 1))
	if exit, _ := b.run(t, "hostname"); exit.Kind != wire.ExitExited {
		t.Errorf("without: %+v", exit)
	}
	s := b.sit(t, wire.TTY{}, "hostname")
	if exit := s.end(t); exit.Kind != wire.ExitDenied || exit.Rule.Name != "seen" {
		t.Errorf("with: %+v", exit)
	}
	s = b.sit(t, wire.TTY{}, "sh", "-c", "hostname; echo $?")
	s.screen.see(t, "126")
	s.end(t)
}
