package env

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// TestBuiltinsCannotBeReached tries what would signal, set a limit or a umask, or
// turn a builtin on again. Each prints what it reached.
func TestBuiltinsCannotBeReached(t *testing.T) {
	const limit, mask = `; echo "limit $(bash -pc 'ulimit -Sn')"`, `; echo "umask $(bash -pc umask)"`
	tests := []struct{ script, native, held string }{
		{"builtin echo reached", "reached\n", ""},
		{"command builtin echo reached", "reached\n", ""},
		{"command -p builtin echo reached", "reached\n", ""},
		{"enable -n echo; type -t echo", "file\n", "builtin\n"},
		{"command enable -n echo; type -t echo", "file\n", "builtin\n"},
		{"unset -f command; command enable -n echo; type -t echo", "file\n", "builtin\n"},
		{"enable kill; type -t kill", "builtin\n", "function\n"},
		{"unset -f kill; type -t kill", "builtin\n", "file\n"},
		{"command -v enable builtin", "enable\nbuiltin\n", ""},
		{"PATH=/nowhere; kill -0 $$ && echo reached", "reached\n", ""},
		{"PATH=/nowhere; command kill -0 $$ && echo reached", "reached\n", ""},
		{"ulimit -Sn 100" + limit, "limit 100\n", "limit 100\n"},
		{"ulimit -Sn 77; ulimit -Sn 99" + limit, "limit 99\n", "limit 77\n"},
		{"ulimit -Sn77; ulimit -n hard" + limit, "limit 120\n", "limit 77\n"},
		{"command ulimit -S -n 77; bash -c 'ulimit -n 99; ulimit -n'", "99\n", "77\n"},
		{"umask 000" + mask, "umask 0000\n", "umask 0022\n"},
		{"umask 002" + mask, "umask 0002\n", "umask 0022\n"},
		{"umask g+w" + mask, "umask 0002\n", "umask 0022\n"},
		{"umask -- 020" + mask, "umask 0020\n", "umask 0022\n"},
		{"command umask -S a=rwx >/dev/null" + mask, "umask 0000\n", "umask 0022\n"},
		{"umask() { command umask \"$@\"; }; umask 070" + mask, "umask 0070\n", "umask 0022\n"},
		{"umask 077; umask 022; umask 000" + mask, "umask 0000\n", "umask 0022\n"},
	}
	for _, tt := range tests {
		words := []string{"bash", "-pc", `ulimit -n 120; ulimit -Sn 99; umask 022; exec bash -c "$1" 2>/dev/null`, "bash", tt.script + "; exit 0"}
		if got, _ := shell(t, nil, nil, words...); got != tt.native {
			t.Errorf("%s: %q without the script, want %q: the test proves nothing", tt.script, got, tt.native)
		}
		if got, _ := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, words...); got != tt.held {
			t.Errorf("%s: %q, want %q", tt.script, got, tt.held)
		}
	}
}

// asBuiltin are scripts in which command, kill, umask and ulimit print, do and return
// what the builtins do, byte for byte.
var asBuiltin = []string{
	`command -v ls`,
	`command -v ls cat nosuch`,
	`command -v nosuch nosuch2`,
	`command -v`,
	`command`,
	`command -v if`,
	`command -v cd`,
	`command -v command umask ulimit`,
	`f() { :; }; command -v f; command -V f`,
	`command -V ls if cd command umask ulimit`,
	`command -V nosuch`,
	`f() { command -V nosuch; }; f`,
	`command -v /bin/ls; command -v ./nosuch; command -v /etc/passwd`,
	`ls /dev/null; command -v ls; command -V ls`,
	`shopt -s expand_aliases; alias ll='ls -l'; command -v ll; command -V ll`,
	`alias ll='ls -l'; command -v ll`,
	`command -pv ls`,
	`PATH=/nowhere; command -pv ls; command -v ls; command -p ls /dev/null`,
	`PATH=/nowhere command -v ls`,
	`command -vV ls; command -Vv ls; command -p -v ls; command -v -- ls`,
	`command -- ls /dev/null`,
	`command echo a "b  c" ''`,
	`command -x`,
	`command -x ls`,
	`command nosuch; echo $?`,
	`command 'a b'; command ''; command -v ''`,
	`ls() { echo function; }; command ls /dev/null; command -v ls`,
	`cd() { echo in cd; command cd "$@"; }; cd /; pwd; cd /usr; pwd`,
	`cd() { command cd "$@" && echo moved; }; export -f cd; cd /; declare -pf cd; bash -c 'cd /usr; pwd'`,
	`echo() { command printf '%s.\n' "$*"; }; echo a b`,
	`echo() { command echo "[$*]"; }; echo a; echo b`,
	`set -u; command -v ls`,
	`set -e; command -v nosuch; echo not here`,
	`set -e; command -v nosuch || echo alternative`,
	`set -e; command -v nosuch ls; echo on`,
	`set -e; ls() { :; }; command ls /dev/null; echo on`,
	`set -e; cd() { :; }; command cd /; pwd`,
	`set -eu; if ! command -v nosuch >/dev/null; then echo none; fi; echo on`,
	`command false; echo $?; command true && echo yes`,
	`command sh -c 'exit 7'; echo $?`,
	`command eval 'x=1; echo $x'; echo $x`,
	`command export Y=2; sh -c 'echo $Y'`,
	`command readonly Z=3; echo $Z`,
	`command read a <<< word; echo $a`,
	`command declare -A m; m[a]=1; echo ${m[a]}`,
	`command set -f; echo $-`,
	`command exec echo replaced; echo not here`,
	`command cd /usr; pwd; command pwd`,
	`command trap 'echo bye' EXIT`,
	`x=$(command -v ls); echo "<$x>"`,
	`command -v ls | cat; command -v ls > /dev/null; echo $?`,
	`for c in ls cat nosuch; do command -v $c || echo no $c; done`,
	`A=b command env | grep ^A=`,
	`while getopts ab o -ab; do command -v ls; echo $o; done`,
	`bash -c 'command -v ls'; (command -v ls); command -v ls & wait`,
	`set -o posix; command -v ls; command -v cd`,
	`IFS=/; command -v ls; set -f; command -v ls`,
	`trap 'echo ERR' ERR; command -v ls; command -v nosuch`,
	`set -E; trap 'echo ERR' ERR; command -v ls nosuch`,
	`command command -v ls; command umask; command ulimit -n`,
	`umask; umask -S; umask -p; umask -pS; umask -z`,
	`(umask); x=$(umask); echo $x`,
	`umask 077; umask; umask 022; umask; umask u=rwx,g=rx,o=; umask -S; sh -c umask`,
	`(umask 077 && mktemp -d | xargs stat -c %a; umask); umask; x=$(umask 027; umask); echo $x`,
	`umask -S 077; umask -p 027; umask g-x; umask; umask 9; umask a+; umask 022 077; umask`,
	`set -eu; umask 077; umask; f() { umask 027; }; f; umask; trap 'echo bye' EXIT; umask -z; echo not here`,
	`umask 077 && : >new && stat -c %a new; umask() { command umask 027; }; umask; command umask; declare -f umask`,
	`trap 'echo ERR' ERR; set -E; umask 077; umask 9; umask`,
	`ulimit -n 64; ulimit -n; ulimit -Hn; sh -c 'ulimit -n'; ulimit -n 65`,
	`ulimit -c 0; ulimit -c -Hc; ulimit -c 0 -s 1000 -t 100; ulimit -s -t; ulimit -n20; ulimit -n`,
	`(ulimit -n 30 && ulimit -n); ulimit -Hs; x=$(ulimit -v 1000000; ulimit -v); echo $x; ulimit -v`,
	`ulimit -Hn 50; ulimit -Sn 20; ulimit -n; ulimit 100; ulimit; ulimit -n soft; ulimit -Hn; ulimit -n unlimited`,
	`ulimit -n x; ulimit -Q; ulimit -n 5 6; ulimit -Sn 9999999; echo $?; ulimit -Hn 40 -c 0; ulimit -Hn -c`,
	`ulimit -c 10 2>&1; IFS=0; ulimit -s 1000; ulimit -s; IFS=; ulimit -n 40; ulimit -n; (ulimit -n 20; ulimit -n); ulimit -S -c 5 -v; ulimit -c`,
	`set -eu; ulimit -n 64 | cat; ulimit -c 0; ulimit -c; ulimit -n x; echo not here`,
	`set -o posix; ulimit -c 10; ulimit -c; ulimit -f 10; ulimit -f; umask 077; umask`,
	`ulimit; ulimit -n; ulimit -a; ulimit -Hn; ulimit -Sn; ulimit -aH; ulimit -c -n`,
	`command -v kill; command -V kill; kill -0 $$; echo $?; command kill -0 $$; echo $?`,
	`sleep 60 & kill $! && wait $!; echo $?; sleep 60 & kill -TERM %1; wait $!; echo $?`,
	`sleep 60 & a=$!; sleep 61 & b=$!; kill %1 %2; wait $a; echo $?; wait $b; echo $?`,
	`sleep 60 & kill $(jobs -p); wait; echo $?`, // a subshell after it has numbers of jobs that differ by version
	`(sleep 60 & kill %%; wait)`,
	`x=$(sleep 60 & kill -s HUP %1; wait; echo done); echo $x`,
	`kill %9; echo $?`,
	`f() { kill %nosuch; }; f; echo $?`,
	`set -euo pipefail; IFS=0; sleep 60 & kill -TERM %1; kill %nosuch; echo not here`,
	`trap 'echo got it' USR1; kill -USR1 $$; trap 'echo bye' EXIT; kill -s TERM $BASHPID; echo not here`,
	`kill() { echo mine "$@"; }; kill 1; declare -f kill`,
}

func TestFunctionsAnswerAsTheBuiltins(t *testing.T) {
	testenv.Need(t, testenv.Program("bash"))
	run := func(script, file string) string {
		cmd := exec.Command("bash", "-c", script)
		cmd.Dir = t.TempDir()
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nowhere", "BASH_ENV=" + file}
		out, _ := cmd.CombinedOutput() // the status is compared
		return fmt.Sprintf("%sstatus %d", out, cmd.ProcessState.ExitCode())
	}
	for _, script := range asBuiltin {
		if native, held := run(script, "/dev/null"), run(script, startup(t)); held != native {
			t.Errorf("%s\n%s\nnatively\n%s", script, held, native)
		}
	}
}

// TestAJobIsKilledByItsNumber has a program kill that prints its words. Procps takes
// -TERM -17 for every process, so groups come behind --. With set -m a
// job has a process group of its own.
func TestAJobIsKilledByItsNumber(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/kill", []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"kill %1":                            "-TERM -- A",
		"kill -9 %1 %2":                      "-9 -- A B",
		"command kill -s INT -- %- %+ 1":     "-INT -- A B 1",
		`kill -n 9 %sleep\ 60 %?61`:          "-9 -- A B",
		"kill":                               "",
		"kill -l TERM":                       "-l TERM",
		"kill -1 1":                          "-1 1",
		"kill -- 17":                         "-- 17",
		"kill -s":                            "-s",
		"kill --table":                       "--table",
		"kill -TERM -17 -18":                 "-TERM -- -17 -18",
		"kill -- -17":                        "-TERM -- -17",
		"kill -s HUP -1":                     "-HUP -- -1",
		"set -m; kill -9 $$":                 "-9 $$",
		"IFS=0123456789; kill %1; unset IFS": "-TERM -- A",
	} {
		const jobs = `sleep 60 & A=$!; sleep 61 & B=$!; trap 'exec 2>/dev/null; "$0" -9 $A $B' EXIT; `
		out, errs := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, "bash", "-c",
			"PATH="+dir+":$PATH; "+jobs+words+"; A=A$A B=B$B; echo \"$A $B $$\"; A=${A#A} B=${B#B}", "/usr/bin/kill")
		compareJobs(t, words, out+errs, want)
	}
	out, errs := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, "bash", "-c",
		"PATH="+dir+":$PATH; set -m; sleep 60 & kill -9 %1; kill -- %1; echo $!; /usr/bin/kill -9 $!", "bash")
	if want := regexp.MustCompile(`^-9 -- -(\d+)\n-TERM -- -(\d+)\n(\d+)\n$`).FindStringSubmatch(out); want == nil || want[1] != want[3] || want[2] != want[3] {
		t.Errorf("with set -m: %q, on stderr %q", out, errs)
	}
}

// compareJobs compares the first line of out, in which the last line names the numbers.
func compareJobs(t *testing.T, words, out, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	numbers := strings.Fields(lines[len(lines)-1])
	if len(lines) != 2 || len(numbers) != 3 {
		t.Fatalf("%s: %q", words, out)
	}
	want = strings.NewReplacer("A", numbers[0][1:], "B", numbers[1][1:], "$$", numbers[2]).Replace(want)
	if lines[0] != want {
		t.Errorf("%s: kill is called with %q, want %q", words, lines[0], want)
	}
}

// TestUnsupportedBuiltinsAreReported holds what a person reads who tries.
func TestUnsupportedBuiltinsAreReported(t *testing.T) {
	for script, want := range map[string]string{
		"umask 002":                   "agentsh: umask: 0002 lets group or others write new files: keep the bits of 022, as 022, 027 and 077 do\n",
		"f() { command local x; }; f": "command: local: write it without command here\n",
		"command exec 3>&1":           "command: exec: write it without command here\n",
	} {
		if _, errs := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, "bash", "-c", script+"; [ $? = 1 ]"); !strings.HasSuffix(errs, want) {
			t.Errorf("%s says %q, want %q", script, errs, want)
		}
	}
}
