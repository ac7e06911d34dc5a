package notify

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// untilFree ends when nobody traces the process.
const untilFree = "until grep -q '^TracerPid:.0$' /proc/$$/status; do :; done; echo free\n"

// An interpreter is traced until it has its script, and no longer.
func TestAnInterpreterIsLetGoWhenItHasItsScript(t *testing.T) {
	const tracer = "/^TracerPid:\\s*0$/m"
	const node = "const fs = require('fs'); const free = () => " + tracer + ".test(fs.readFileSync('/proc/self/status'));\n"
	for name, text := range map[string]string{
		"dash":   "#!/bin/dash\n" + untilFree,
		"bash":   "#!/bin/bash\n" + untilFree,
		"zsh":    "#!/usr/bin/zsh\n" + untilFree,
		"perl":   "#!/usr/bin/perl\ndo { open F, '/proc/self/status'; $_ = join '', <F> } until /^TracerPid:\\s*0$/m; print \"free\\n\";\n",
		"ruby":   "#!/usr/bin/ruby\nnil until File.read('/proc/self/status') =~ " + tracer + "\nputs 'free'\n",
		"node":   "#!/usr/bin/node\n" + node + "while (!free());\nconsole.log('free')\n",
		"words":  "#!/usr/bin/node\n// import\n" + node + "while (!free());\nconsole.log('free')\n",
		"module": "#!/usr/bin/node\nimport fs from 'fs'; while (!" + tracer + ".test(fs.readFileSync('/proc/self/status')));\nconsole.log('free')\n",
		"env":    "#!/usr/bin/env node\n" + node + "while (!free());\nconsole.log('free')\n",
		"other":  "#!DIR/shell\n" + untilFree,
	} {
		if name == "module" && !nodeFindsModules(t) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			testenv.Need(t, testenv.Program("/bin/dash"))
			shell, err := os.ReadFile("/bin/dash")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "shell"), shell, 0o755); err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(text, "DIR", dir)
			line, _, _ := strings.Cut(strings.TrimPrefix(text, "#!"), "\n")
			for program := range strings.FieldsSeq(line) {
				testenv.Need(t, testenv.Program(program))
			}
			script := filepath.Join(dir, "script")
			if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, Config{}, script).printed("free\n")
		})
	}
}

// What a program loads before its entry may start threads and processes.
func TestAProcessThatIsMadeBeforeTheEntryRuns(t *testing.T) {
	testenv.Need(t, testenv.Program("gcc"))
	dir := t.TempDir()
	source, library := filepath.Join(dir, "early.c"), filepath.Join(dir, "early.so")
	const text = `
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *nothing(void *x) { return x; }
static void handle(int s) { write(1, "trap\n", 5); }
__attribute__((constructor)) static void early(void) {
	pthread_t t; int status;
	unsetenv("LD_PRELOAD");
	signal(SIGTRAP, handle); raise(SIGTRAP);
	if (getenv("THREAD") && !pthread_create(&t, 0, nothing, 0)) pthread_join(t, 0);
	if (getenv("FORK")) { pid_t p = fork(); if (p) { waitpid(p, &status, 0); if (status) write(1, "died\n", 5); } }
	if (getenv("VFORK") && !vfork()) _exit(0);
	signal(SIGTRAP, SIG_DFL);
}`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, source, "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/dash\necho $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"NONE", "THREAD", "FORK", "VFORK"} {
		argv := []string{"/usr/bin/env", what + "=1", "LD_PRELOAD=" + library, script}
		native, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, native)
		}
		run(t, Config{}, argv...).printed(string(native))
	}
}

// A program that does not come to its script is killed, and one that has come to
// it is let go.
func TestTheCallsOfAFollowedProgramAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		progress progress
		err      bool
		ending   bool
	}{
		"known, before":       {progress{left: 1, budget: 1}, true, false},
		"unknown, before":     {progress{left: -1, budget: 1}, true, false},
		"unknown, between":    {progress{left: -1, seen: 1, budget: 1}, false, true},
		"known, between":      {progress{left: 1, seen: 1, budget: 1}, true, false},
		"given to a script":   {progress{left: -1, budget: 1, optional: true}, false, true},
		"with calls to spare": {progress{left: -1, seen: 1, budget: 2}, false, false},
	} {
		f := &follower{execs: &execs{follows: newFollows()}, a: &attempt{}, progress: test.progress}
		if err := f.count(unix.SYS_MMAP); err != nil || f.ending {
			t.Errorf("%s: memory counts: %v", name, err)
		}
		if err := f.count(unix.SYS_WRITE); errors.Is(err, errNeverOpened) != test.err || f.ending != test.ending {
			t.Errorf("%s: %v, ending %v", name, err, f.ending)
		}
	}
}

// The copies of a session have a bound, and those that nobody has open do not count.
func TestTheMemoryOfCopiesIsBounded(t *testing.T) {
	var m copyBudget
	var parts []*copyUse
	for range 4 {
		p, err := m.reserve(maxCopied)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if _, err := m.reserve(1); err == nil || !strings.Contains(err.Error(), "end some of them") {
		t.Errorf("beyond the bound: %v", err)
	}
	file, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &s); err != nil {
		t.Fatal(err)
	}
	self, err := target.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	parts[0].by, parts[0].dev, parts[0].ino = self.Process, s.Dev, s.Ino
	parts[0].release()
	if _, err := m.reserve(1); err == nil {
		t.Error("a copy that its process has open counts no more")
	}
	file.Close()
	if p, err := m.reserve(maxCopied); err != nil {
		t.Errorf("nobody has it open: %v", err)
	} else {
		p.release()
	}
	for _, p := range parts[1:] {
		p.release()
	}
	if m.used != 0 {
		t.Errorf("%d bytes are left", m.used)
	}
}

// Scripts that together are too large are refused with an event.
func TestScriptsBeyondTheMemoryAreRefused(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "large")
	text := "#!/bin/bash\nif [ \"${1:-0}\" -lt 6 ]; then \"$0\" $((${1:-0} + 1)); else echo all; fi; exit\n" + strings.Repeat("#\n", 30<<20)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	s := run(t, Config{}, script)
	if strings.Contains(s.out.String(), "all") {
		t.Errorf("printed %q", &s.out)
	}
	if e := s.event(func(e wire.Event) bool { return e.Type == wire.EventFault && strings.Contains(e.Message, "use 2") }); e == nil {
		t.Errorf("no event of the refusal: %+v", s.events)
	}
}
