package notify

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// leaving makes an interpreter out of the program that leaves its follower, and a
// script of it.
func leaving(t *testing.T, bin, interpreter string) (script string) {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(bin, "leave"))
	if err != nil {
		t.Fatal(err)
	}
	script = filepath.Join(dir, "script")
	for name, text := range map[string]string{interpreter: string(data), "script": "#!" + filepath.Join(dir, interpreter) + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return script
}

// ended are the tries of an attack by how they ended.
func (s *session) ended() (good, won, other int) {
	s.t.Helper()
	if _, err := fmt.Sscan(s.out.String(), &good, &won, &other); err != nil {
		s.t.Fatalf("printed %q", &s.out)
	}
	s.t.Logf("%d ran, %d refused", good, other)
	return good, won, other
}

// A thread that its tracer does not see takes the process over. What it executes
// is verified, and so is what that executes.
func TestAnExecBehindAFollowerIsVerified(t *testing.T) {
	bin, _ := place(t)
	script := leaving(t, bin, "untraced")
	s := run(
		t,
		Config{Rules: Rules{Evaluate: denying("prize-b")}},
		filepath.Join(bin, "leave"),
		strconv.Itoa(tries(100)),
		script,
		filepath.Join(bin, "prize-a"),
	)
	good, won, other := s.ended()
	if won != 0 {
		t.Errorf("of %d tries %d ran the denied program", good+won+other, won)
	}
	if good == 0 || other == 0 {
		t.Errorf("the attack did not try: %s", &s.out)
	}
	if known := len(s.loop.execs.follows.threads); known != 0 {
		t.Errorf("%d threads are known as followed after the end", known)
	}
}

// Scripts that run for ever take no more threads of the supervisor than it has.
func TestScriptsThatAreFollowedAreBounded(t *testing.T) {
	bin, _ := place(t)
	script := leaving(t, bin, "hold")
	text := `exec 3< <(exec "$0") 4< <(exec "$0"); read -u 3; read -u 4
		timeout 300 "$0"; echo $?; pkill -P $$`
	s := run(t, Config{Bounds: Bounds{Threads: 2}}, "/bin/bash", "-c", text, script)
	s.fault("2 scripts of this session are followed")
	if !strings.Contains(s.out.String(), "Resource temporarily unavailable") || !strings.HasSuffix(s.out.String(), "126\n") {
		t.Errorf("printed %q", &s.out)
	}
}

// An interpreter opens its script for the last time while one of its threads
// executes another script: that one is opened as it was decided.
func TestAScriptExecutedWhileAnotherIsOpenedIsConfined(t *testing.T) {
	bin, _ := place(t)
	script := leaving(t, bin, "bash")
	e := exchanged{interpreter: "/bin/dash", how: "names"}
	argv, denied := e.prepare(t, bin)
	good, bad := argv[2], argv[3]
	out := filepath.Join(t.TempDir(), "out")
	attack := fmt.Sprintf("%s/leave %d %s %s 100 >%s", bin, tries(300), script, good, out)
	s := run(t, Config{Rules: identified(t, denied)}, filepath.Join(bin, "exchange"), "names", good, bad, "1", "/bin/sh", "-c", attack)
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	s.out.Reset()
	s.out.Write(data)
	ran, won, other := s.ended()
	if won != 0 {
		t.Errorf("of %d tries %d ran the denied script", ran+won+other, won)
	}
	if ran == 0 || other == 0 {
		t.Errorf("the attack did not try: %s", &s.out)
	}
}

// Threads of an interpreter are let go when it has opened its script. The calls that they wait
// in do not end with EINTR.
func TestAnInterpreterThatIsLetGoIsNotInterrupted(t *testing.T) {
	bin, _ := place(t)
	script := leaving(t, bin, "waits")
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s := execute(t, e.traced, Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, script)
			s.printed("Success\nResource temporarily unavailable\nResource temporarily unavailable\n")
		})
	}
}

// A process that is stopped while it opens its script stays stopped with all of its threads.
// The script is large, so that opening it takes long.
func TestAnInterpreterThatIsLetGoStaysStopped(t *testing.T) {
	bin, _ := place(t)
	script := leaving(t, bin, "dash")
	f, err := os.OpenFile(script, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 32<<20)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	stops := filepath.Join(filepath.Dir(script), "stops")
	if err := os.Link(filepath.Join(filepath.Dir(script), "dash"), stops); err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			s := execute(t, e.traced, Config{Rules: Rules{Evaluate: withoutUSR2, Prompt: e.prompt}}, stops, strconv.Itoa(tries(20)), script)
			s.printed("0\n")
		})
	}
}

// execute runs a program with one of the engines.
func execute(t *testing.T, traced bool, cfg Config, argv ...string) *session {
	t.Helper()
	s := &session{t: t, done: make(chan error, 1), traced: traced}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	s.start(cfg, CommandInfo{ID: "c1"}, cmd, judged...)
	s.end()
	return s
}
