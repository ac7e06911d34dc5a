package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// execs is a script that runs commands in a session as scripts of a user do. Its output does not depend on
// whether the C client or the Go program does the work.
const execs = `cd work
kind() { echo "== $*"; }
both() { agentsh exec --session one -- "$@" 2>&1; echo "status $?"; }
kind ends
both sh -c 'exit 7'; both sh -c 'kill -TERM $$'; both no-such-program; both ./missing; both /; both bash -c 'echo "$0" "$@"' zero 'a b' '' c
both -x; agentsh exec -s one sh -c 'echo short'; agentsh exec --session=one -- sh -c 'echo equal'; agentsh exec -s one 2>&1; echo $?
agentsh exec -s one -e A=b -- sh -c 'echo "$A"'; agentsh exec -s one --cwd /tmp -- pwd; agentsh exec -s none -- true 2>&1; echo $?
agentsh exec -s ../one -- true 2>&1; agentsh exec -s '' -- true 2>&1; agentsh exec -s one -- '' 2>&1; echo $?
kind refusals
both kill -9 1; both sh -c 'kill -9 1; echo after >&2'; agentsh exec -s one -- kill -9 1 2>/dev/null; echo $?
kind inputs
printf 'a\nb' | both sh -c 'cat; echo " end"'
both sh -c 'cat; echo empty' </dev/null; both sh -c 'cat; echo "closed $?"' <&-
head -c 3000000 /dev/zero | both sh -c 'cat | wc -c'; head -c 3000000 /dev/zero | both sh -c 'exit 5'
kind outputs
agentsh exec -s one -- head -c 3000000 /dev/zero | wc -c
agentsh exec -s one -- sh -c 'echo x' 2>&1 >/dev/full; echo $?; agentsh exec -s one -- sh -c 'echo x >&2' 2>/dev/full; echo $?
agentsh exec -s one -- sh -c 'while echo y; do :; done' | head -n 1; echo ${PIPESTATUS[0]}
agentsh exec -s one -- sh -c 'echo x >&2; exit 3' 2>&-; echo $?; both sh -c 'exit 4' <&- >&- 2>&-
kind directories
mkdir -p sub; ln -sfn sub link; (cd sub; both pwd); (cd link; both sh -c 'pwd; pwd -P'); (cd /usr; both pwd)
(mkdir gone; cd gone; rmdir ../gone; both pwd); (cd sub; PWD=/usr both pwd)
kind environments
PASSED=1 SECRET=2 HOME=/nowhere LD_PRELOAD=/nowhere both sh -c 'env | grep -v -e ^PWD= -e ^_= -e ^AGENTSH_ | sort'
printf -v long '%100000s' x; both sh -c 'echo ${#1}' sh "$long"; (umask 077; both sh -c umask)
kind signals
(trap '' INT; both sh -c 'kill -INT $$; echo ignored')
for s in TERM INT HUP QUIT; do
	coproc agentsh exec -s one -- sh -c "exec 2>/dev/null; trap 'echo got $s; exit 3' $s; echo ready; while :; do read x <hold; done"
	pid=$COPROC_PID; exec 7<&${COPROC[0]}
	read -r _ <&7; kill -$s $pid; cat <&7; wait $pid; echo $?
done
coproc agentsh exec -s one -- sh -c "exec 2>/dev/null; trap 'echo first' TERM; echo ready; while :; do read x <hold; done"
pid=$COPROC_PID; exec 7<&${COPROC[0]}
read -r _ <&7; kill -TERM $pid; read -r line <&7; echo $line; kill -TERM $pid; wait $pid; echo $?
kind others
both sh -c 'exec sleep 1000 &'; both sh -c 'sleep 1000 >&2 & echo "its output is open"' | cat
`

// TestTheClientOfANamedSessionDoesWhatTheGoProgramDoes runs commands in a session with both.
func TestTheClientOfANamedSessionDoesWhatTheGoProgramDoes(t *testing.T) {
	dir := workDir(t)
	session(t, dir, "one")
	copyProgram(t, dir)
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "work/hold")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	socket := filepath.Join(dir, "run/agentsh/one/shells")
	run := func(script string, env ...string) string {
		model := program(t, dir)
		cmd := exec.Command("setsid", "--wait", "bash", "-c", script) // without a terminal nobody is asked
		cmd.Dir = dir
		cmd.Env = append(slices.Clone(model.Env), env...)
		for i, e := range cmd.Env {
			if path, is := strings.CutPrefix(e, "PATH="); is {
				cmd.Env[i] = "PATH=" + dir + ":" + path
			}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return string(out)
	}
	started := func() bool { // GODEBUG tells whether the Go runtime starts
		out := run("agentsh exec --session one -- sh -c 'echo ran'", "GODEBUG=inittrace=1")
		if !strings.Contains(out, "ran\n") {
			t.Errorf("%s", out)
		}
		return strings.Contains(out, "init ")
	}
	if started() {
		t.Error("the Go runtime starts")
	}
	got := run(execs)
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	if !started() {
		t.Error("the Go runtime does not start where the session has no socket for the client")
	}
	want := run(execs)
	alike(t, got, want,
		"status 7", "status 143", "zero a b  c", "agentsh: denied: kill -9 1", "a", "b end", "empty", "3000000", "status 5", "short", "equal",
		"agentsh: standard output could not be written: no space left on device", "141", "got QUIT", "137",
		"agentsh: session none: no such session", "100000", "0022", "status 0", "its output is open",
	)
	if strings.Contains(got, "SECRET") {
		t.Errorf("the caller's environment reaches the command:\n%s", got)
	}
}
