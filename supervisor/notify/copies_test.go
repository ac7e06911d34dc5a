package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// identified are rules that deny these files and what is like them.
func identified(t testing.TB, denied ...string) Rules {
	t.Helper()
	top, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { top.Close() })
	ids, err := BuildIdentities(denied, Root{Dir: top})
	if err != nil {
		t.Fatal(err)
	}
	return Rules{Evaluate: denying("denied"), Identify: ids.Of}
}

func tries(n int) int {
	if many, err := strconv.Atoi(os.Getenv("RACE_N")); err == nil {
		return many
	}
	return n
}

// exchanged is one way to have another file run than the one that was decided.
type exchanged struct {
	name        string
	interpreter string // of both scripts; empty: they are programs, given to the loader
	how         string // names, content, links, directory
	share       int    // tries, of a hundred
}

// ending changes the byte of a program by which it ends with 0 instead of 42. Both differ in one
// byte, so that no mixture of both is a third program.
func ending(t *testing.T, program []byte) []byte {
	t.Helper()
	move := []byte("\xb8*\x00\x00\x00") // mov $42, %eax; the C library may have it, too
	for at := 0; ; at++ {
		n := bytes.Index(program[at:], move)
		testenv.Need(t, testenv.That("a program with known code", func() error {
			if n < 0 {
				return errors.New("no byte makes the difference")
			}
			return nil
		}))
		at += n
		changed := bytes.Clone(program)
		changed[at+1] = 0
		file := filepath.Join(t.TempDir(), "changed")
		if err := os.WriteFile(file, changed, 0o755); err != nil {
			t.Fatal(err)
		}
		if exec.CommandContext(t.Context(), file).Run() == nil {
			return changed
		}
	}
}

// prepare makes a file that ends with 0 and one that ends with 42, which is
// denied, and returns the arguments of the exchange program.
func (e exchanged) prepare(t *testing.T, bin string) (argv []string, denied string) {
	dir := t.TempDir()
	good, bad, denied := filepath.Join(dir, "tool"), filepath.Join(dir, "other"), filepath.Join(dir, "denied")
	exit := map[bool]string{true: "exit 0 \n", false: "exit 42\n"}
	if strings.Contains(e.interpreter, "python") {
		exit = map[bool]string{true: "raise SystemExit(0)  #\n", false: "raise SystemExit(42) #\n"}
	}
	if strings.Contains(e.interpreter, "node") {
		exit = map[bool]string{true: "process.exit(0) //\n", false: "process.exit(42)//\n"}
	}
	if e.how == "modules" { // node opens it twice
		exit = map[bool]string{true: "import p from 'process'; p.exit(0) //\n", false: "import p from 'process'; p.exit(42)//\n"}
	}
	text := func(ok bool) string {
		if e.interpreter != "" {
			return "#!" + e.interpreter + "\n" + exit[ok]
		}
		data, err := os.ReadFile(filepath.Join(bin, "prize-dynamic"))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			data = ending(t, data)
		}
		return string(data)
	}
	files := map[string]string{good: text(true), bad: text(false), denied: text(false)}
	switch e.how {
	case "links":
		delete(files, bad)
		files[filepath.Join(dir, "real")] = text(true)
		delete(files, good)
		for link, to := range map[string]string{good: "real", bad: "denied"} {
			if err := os.Symlink(to, link); err != nil {
				t.Fatal(err)
			}
		}
	case "directory":
		delete(files, bad)
		if err := os.Mkdir(bad, 0o755); err != nil {
			t.Fatal(err)
		}
		files[filepath.Join(bad, "__main__.py")] = text(false)
	}
	for name, data := range files {
		if err := os.WriteFile(name, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	how, called := "names", good
	switch e.how {
	case "content":
		how = "content"
	case "cwd":
		how, called = "cwd", "./tool"
	}
	argv = []string{filepath.Join(bin, "exchange"), how, good, bad, strconv.Itoa(max(tries(1000)*e.share/100, 1))}
	if e.interpreter == "" {
		argv = append(argv, loaderPath(t))
	}
	return append(argv, called), denied
}

func loaderPath(t testing.TB) string {
	for _, name := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	testenv.Need(t, testenv.That("the dynamic loader of glibc", func() error { return os.ErrNotExist }))
	return ""
}

// python is a Python that no shim stands in for.
func python(t testing.TB) string {
	testenv.Need(t, testenv.Program("python3"))
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// Another process exchanges, as fast as it can, what a name leads to. RACE_N sets
// the tries.
func TestExchangingAScriptOrAPayloadNeverWins(t *testing.T) {
	bin, _ := place(t)
	for _, e := range []exchanged{
		{name: "script by name", interpreter: "/bin/dash", how: "names", share: 100},
		{name: "script by content", interpreter: "/bin/dash", how: "content", share: 100},
		{name: "script by links", interpreter: "/bin/dash", how: "links", share: 100},
		{name: "script by a relative name", interpreter: "/bin/dash", how: "cwd", share: 100},
		{name: "script of node by a relative name", interpreter: "/usr/bin/node", how: "cwd", share: 3},
		{name: "script of python by a relative name", interpreter: "PYTHON -IS", how: "cwd", share: 10},
		{name: "script of bash", interpreter: "/bin/bash", how: "names", share: 30},
		{name: "script found by env", interpreter: "/usr/bin/env dash", how: "names", share: 30},
		{name: "script found by env -S and timeout", interpreter: "/usr/bin/env -S timeout 60 dash", how: "names", share: 10},
		{name: "script of an unknown interpreter", interpreter: filepath.Join(bin, "shell"), how: "names", share: 10},
		{name: "script that is opened twice", interpreter: "PYTHON -IS", how: "names", share: 10},
		{name: "script that becomes a directory", interpreter: "PYTHON -IS", how: "directory", share: 10},
		{name: "script of node", interpreter: "/usr/bin/node", how: "links", share: 1},
		{name: "module of node", interpreter: "/usr/bin/node", how: "modules", share: 1},
		{name: "script of an interpreter that is a script", interpreter: filepath.Join(bin, "shim"), how: "names", share: 10},
		{name: "script of a script that env finds", interpreter: "/usr/bin/env " + filepath.Join(bin, "shim"), how: "names", share: 10},
		{name: "payload by name", how: "names", share: 100},
		{name: "payload by content", how: "content", share: 100},
		{name: "payload by links", how: "links", share: 100},
	} {
		if e.how == "modules" && !nodeFindsModules(t) {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			if strings.HasPrefix(e.interpreter, "PYTHON") {
				e.interpreter = python(t) + strings.TrimPrefix(e.interpreter, "PYTHON")
			}
			program, _, _ := strings.Cut(e.interpreter, " ")
			if shim := filepath.Join(bin, "shim"); strings.Contains(e.interpreter, shim) {
				if err := os.WriteFile(shim, []byte("#!/bin/sh\nexec /bin/dash \"$1\"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if program == filepath.Join(bin, "shell") {
				data, err := os.ReadFile("/bin/dash")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(program, data, 0o755); err != nil {
					t.Fatal(err)
				}
			} else if program != "" {
				testenv.Need(t, testenv.Program(program))
			}
			argv, denied := e.prepare(t, bin)
			s := run(t, Config{Rules: identified(t, denied)}, argv...)
			var good, won, refused, flipping int
			var before, after [3]int // of the runs without an attack
			_, err := fmt.Sscan(s.out.String(), &good, &won, &refused, &flipping,
				&before[0], &before[1], &before[2], &after[0], &after[1], &after[2])
			if err != nil {
				t.Fatalf("printed %q", &s.out)
			}
			t.Logf("%d ran, %d refused", good, refused)
			if won != 0 || flipping != 1 {
				t.Errorf("of %d tries %d ran the denied file; flipping %d", good+won+refused, won, flipping)
			}
			if before != [3]int{1} || after != [3]int{0, 0, 1} {
				t.Errorf("the attack did not try: %s", &s.out)
			}
		})
	}
}

// An interpreter that is followed for long does not hold up the end of its loop.
func TestALoopEndsWhileAnInterpreterIsFollowed(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/usr/bin/tail -f\nfollowed\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{t: t, done: make(chan error, 1), ctx: ctx, traced: traced}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(script)
	cmd.Stdout = in
	s.start(Config{}, CommandInfo{ID: "c1"}, cmd)
	in.Close()
	if _, err := io.ReadFull(out, make([]byte, len("#!/usr/bin/tail -f\nfollowed\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	s.end()
}
