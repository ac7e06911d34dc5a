package notify

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// injected is what every program below must have.
var injected = []string{"BASH_ENV=/opt/start.sh", "TEAM=blue green"}

// envOf runs argv, which ends in a program that prints its environment.
func envOf(t *testing.T, argv ...string) []string {
	t.Helper()
	s := run(t, Config{Rules: Rules{Inject: injected}}, argv...)
	lines := strings.Split(strings.TrimSuffix(s.out.String(), "\n"), "\n")
	if e := s.events; len(e) == 0 {
		t.Errorf("no events; printed %q", lines)
	}
	return lines
}

func TestInjectedVariablesSurviveEveryAttemptToDropThem(t *testing.T) {
	bin, dir := place(t)
	hello, dynamic := filepath.Join(dir, "hello"), filepath.Join(bin, "hello-dynamic")
	long := strings.Repeat("x", 100_000)
	for name, argv := range map[string][]string{
		"an empty environment":               {"/usr/bin/env", "-i", hello, "env"},
		"an empty one, dynamically linked":   {"/usr/bin/env", "-i", dynamic, "env"},
		"posix_spawn with none at all":       {filepath.Join(bin, "spawn"), hello, "1", "env"},
		"the same, dynamically linked":       {filepath.Join(bin, "spawn"), dynamic, "1", "env"},
		"three levels":                       {"/usr/bin/env", "-i", "/bin/sh", "-c", "exec env -i /bin/bash -c 'exec env -i " + hello + " env'"},
		"another value":                      {"/usr/bin/env", "-i", "BASH_ENV=/tmp/mine", "TEAM=", hello, "env"},
		"one of two missing":                 {"/usr/bin/env", "-u", "TEAM", hello, "env"},
		"a variable with a similar name":     {"/usr/bin/env", "-i", "BASH_ENVIRON=1", "TEA=2", hello, "env"},
		"a big environment":                  {"/usr/bin/env", "-i", "BIG=" + long, hello, "env"},
		"long arguments":                     {"/usr/bin/env", "-i", hello, "env", long},
		"a script":                           {"/usr/bin/env", "-i", "/bin/sh", "-c", "exec env -i " + hello + " env"},
		"the environment as it was injected": {hello, "env"},
	} {
		t.Run(name, func(t *testing.T) {
			env := envOf(t, argv...)
			for _, want := range injected {
				key, _, _ := strings.Cut(want, "=")
				var found []string
				for _, e := range env {
					if strings.HasPrefix(e, key+"=") {
						found = append(found, e)
					}
				}
				if !slices.Equal(found, []string{want}) {
					t.Errorf("%s is %.200q, want %q", key, found, want)
				}
			}
		})
	}
}

func TestOtherVariablesAndArgumentsSurviveTheRebuild(t *testing.T) {
	_, dir := place(t)
	env := envOf(t, "/usr/bin/env", "-i", "A=1", "TEAM=old", "B=two words", "EMPTY=", filepath.Join(dir, "hello"), "env")
	for _, want := range []string{"A=1", "B=two words", "EMPTY="} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is missing in %q", want, env)
		}
	}
	s := run(t, Config{Rules: Rules{Inject: injected}}, "/usr/bin/env", "-i", filepath.Join(dir, "hello"), "one", "", "three")
	s.printed("one  three\n")
}

// Programs of all kinds start with a stack that was rebuilt.
func TestProgramsRunWithARebuiltStack(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	tried := 0
	for _, argv := range [][]string{
		{"/bin/busybox", "sh", "-c", "echo $TEAM"},
		{"/bin/bash", "-c", "echo $TEAM"},
		{"/bin/dash", "-c", "echo $TEAM"},
		{"/usr/bin/python3", "-c", "import os; print(os.environ['TEAM'])"},
		{"/usr/bin/perl", "-e", "print qq($ENV{TEAM}\n)"},
	} {
		if _, err := os.Stat(argv[0]); err != nil {
			continue
		}
		tried++
		s := run(t, Config{Rules: Rules{Inject: injected}}, append([]string{"/usr/bin/env", "-i"}, argv...)...)
		s.printed("blue green\n")
	}
	if tried < 2 {
		t.Errorf("only %d of the programs exist", tried)
	}
}

func TestManyArgumentsSurviveTheRebuild(t *testing.T) {
	bin, dir := place(t)
	native, err := exec.Command(filepath.Join(bin, "matrix"), "many", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	s := run(t, Config{Rules: Rules{Inject: injected}}, "/usr/bin/env", "-i", filepath.Join(bin, "matrix"), "many", dir)
	s.printed(string(native))
}

func TestReplacedValuesAreGoneFromProcEnviron(t *testing.T) {
	s := run(t, Config{Rules: Rules{Inject: injected}}, "/usr/bin/env", "-i", "TEAM=secretvalue", "/bin/cat", "/proc/self/environ")
	if strings.Contains(s.out.String(), "secretvalue") {
		t.Errorf("/proc/self/environ shows %q", &s.out)
	}
}
