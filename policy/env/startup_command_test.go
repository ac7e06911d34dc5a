package env

import (
	"fmt"
	"os/exec"
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
		{"enable kill; type -t kill", "builtin\n", "file\n"},
		{"command -v enable builtin", "enable\nbuiltin\n", ""},
		{"PATH=/nowhere; kill -0 $$ && echo reached", "reached\n", ""},
		{"PATH=/nowhere; command kill -0 $$ && echo reached", "reached\n", ""},
		{"ulimit -Sn 77" + limit, "limit 77\n", "limit 99\n"},
		{"ulimit -Sn77" + limit, "limit 77\n", "limit 99\n"},
		{"command ulimit -S -n 77" + limit, "limit 77\n", "limit 99\n"},
		{"unset -f ulimit; ulimit -Sn 77" + limit, "limit 77\n", "limit 99\n"},
		{"umask 077" + mask, "umask 0077\n", "umask 0022\n"},
		{"umask g=" + mask, "umask 0072\n", "umask 0022\n"},
		{"umask -- 077" + mask, "umask 0077\n", "umask 0022\n"},
		{"command umask 077" + mask, "umask 0077\n", "umask 0022\n"},
		{"unset -f umask; umask 077" + mask, "umask 0077\n", "umask 0022\n"},
	}
	for _, tt := range tests {
		words := []string{"bash", "-pc", `ulimit -Sn 99; umask 022; exec bash -c "$1" 2>/dev/null`, "bash", tt.script + "; exit 0"}
		if got, _ := shell(t, nil, nil, words...); got != tt.native {
			t.Errorf("%s: %q without the script, want %q: the test proves nothing", tt.script, got, tt.native)
		}
		if got, _ := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, words...); got != tt.held {
			t.Errorf("%s: %q, want %q", tt.script, got, tt.held)
		}
	}
}

// asBuiltin are scripts in which command, umask and ulimit print, do and return
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
	`ulimit; ulimit -n; ulimit -a; ulimit -Hn; ulimit -Sn; ulimit -aH; ulimit -c -n`,
}

func TestCommandUmaskAndUlimitAnswerAsTheBuiltins(t *testing.T) {
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

// TestUnsupportedBuiltinsAreReported holds what a person reads who tries.
func TestUnsupportedBuiltinsAreReported(t *testing.T) {
	for script, want := range map[string]string{
		"umask 077":                   "agentsh: umask: it cannot be changed here; without a value it is printed\n",
		"ulimit -n 5":                 "agentsh: ulimit: it cannot be changed here; without a value it is printed\n",
		"f() { command local x; }; f": "command: local: write it without command here\n",
		"command exec 3>&1":           "command: exec: write it without command here\n",
	} {
		if _, errs := shell(t, nil, []string{"BASH_ENV=" + startup(t)}, "bash", "-c", script+"; [ $? = 1 ]"); !strings.HasSuffix(errs, want) {
			t.Errorf("%s says %q, want %q", script, errs, want)
		}
	}
}
