package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/channel"
	"agentsh/internal/shellsocket"
)

// uses is a script of an original shell that uses shells of the shared session as a
// platform does. Its output does not depend on which program of the shim does the work.
const uses = `PATH=/usr/bin:/bin; cd /work
kind() { echo "== $*"; }
both() { "$@" 2>&1; echo "status $?"; }
kind ends
both sh -c 'exit 7'; both sh -c 'kill -TERM $$'; both sh -c 'no-such-program'; both bash -c 'echo "$0" "$@"' zero 'a b' '' c
kind refusals
both sh -c id; both sh -c 'id; id -u; echo after >&2'; sh -c id 2>/dev/null; echo $?
kind inputs
printf 'a\nb' | both sh -c 'cat; echo " end"'
both sh -c 'cat; echo empty' </dev/null
both sh -c 'cat; echo "closed $?"' <&-
both sh -c 'cat; echo a directory' </work
both sh -c 'read x; echo $x' </work/lines
head -c 3000000 /work/zeros | both sh -c 'cat | wc -c'
head -c 3000000 /work/zeros | both sh -c 'exit 5'
kind outputs
sh -c 'head -c 3000000 /work/zeros' | wc -c
sh -c 'echo out; echo err >&2' 2>/work/err; cat /work/err
sh -c 'head -c 500000 /work/zeros; head -c 500000 /work/zeros >&2' 2>&1 | wc -c
sh -c 'echo x' 2>&1 >/dev/full; echo $?; sh -c 'echo x >&2' 2>/dev/full; echo $?
sh -c 'while echo y; do :; done' | head -n 1; echo ${PIPESTATUS[0]}
sh -c 'trap "" PIPE; while echo y 2>/dev/null; do :; done; exit 0' | head -n 1; echo ${PIPESTATUS[0]}
sh -c 'echo x' >&- 2>/work/err; echo $?; cat /work/err
sh -c 'echo x >&2; exit 3' 2>&-; echo $?
both sh -c 'exit 4' <&- >&- 2>&-
kind directories
(cd /usr; both sh -c pwd); (cd sub; both sh -c pwd); (cd /work/link; both sh -c 'pwd; pwd -P')
(mkdir gone; cd gone; rmdir ../gone; both sh -c pwd)
(cd sub; PWD=/work/../work/sub both sh -c 'pwd -P'); (cd sub; PWD=/work both sh -c 'pwd -P')
kind environments
(umask 077; both sh -c umask)
HOME=/root both sh -c 'echo $HOME'; HOME=/work/sub both sh -c 'echo $HOME'
A= B='x=y
z' both sh -c 'printf "[%s] [%s]" "$A" "$B"'; (exec -c sh -c 'echo "${PATH:+path} $HOME"')
LD_PRELOAD=/work/x TMPDIR=/work XDG_RUNTIME_DIR=/work XDG_STATE_HOME=/work GCONV_PATH=/work both sh -c 'echo $LD_PRELOAD-'
printf -v long '%100000s' x; both sh -c 'echo ${#1} ${#L}' sh "$long"
(for i in {1..9}; do export "L$i=$long"; done; both sh -c 'echo ${#L1} ${#L9}')
(for i in {1..15}; do export "L$i=$long"; done; both sh -c 'echo ran')
kind signals
(trap '' INT; both sh -c 'kill -INT $$; echo ignored')
for s in TERM INT HUP QUIT; do
	coproc sh -c "exec 2>/dev/null; trap 'echo got $s; exit 3' $s; echo ready; while :; do read x <hold; done"
	pid=$COPROC_PID; exec 7<&${COPROC[0]}
	read -r _ <&7; kill -$s $pid; cat <&7; wait $pid; echo $?
done
coproc sh -c "exec 2>/dev/null; trap 'echo first' TERM; echo ready; while :; do read x <hold; done"
pid=$COPROC_PID; exec 7<&${COPROC[0]}
read -r _ <&7; kill -TERM $pid; read -r line <&7; echo $line; kill -TERM $pid; wait $pid; echo $?
kind others
/usr/bin/dpkg -c '/bin/sh -c /work/postinst; exit $?'
sh -c 'exec sleep 1000 &'; echo "left $?"
sh -c 'sleep 1000 >&2 & echo "its output is open"' 2>&1 | cat
`

// runUses runs a script of an original shell of an image, with what it needs.
func runUses(t *testing.T, root, script string, env ...string) string {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "bash", "-c", inImage, "bash", root, "/usr/lib/agentsh/shells/usr-bin-bash", "-c", script)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// withoutClient has the Go program serve the shells of an image.
func withoutClient(t *testing.T, root string, f func()) {
	t.Helper()
	socket := filepath.Join(root, "run/agentsh/shim/shells")
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	f()
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
}

// sharedImage is an image whose shells share a session, which runs.
func sharedImage(t *testing.T) string {
	t.Helper()
	root := shimmedImage(t)
	more := exec.Command("bash", "-c", `set -e; cd "$1"; for p in head wc sleep grep cut rm rmdir mkdir; do cp "$(type -P $p)" usr/bin/
for l in $(ldd usr/bin/$p | grep -o '/[^ ]*'); do mkdir -p "usr$(dirname "${l#/usr}")"; cp -L "$l" "usr${l#/usr}"; done; done
cd work; ln -s sub link; echo a line >lines; truncate -s 3000000 zeros; mkfifo hold
cd ..; "./usr/bin/agentsh" shim install --root . --session shared`, "bash", root)
	if out, err := more.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if _, err := os.Lstat(filepath.Join(root, "run/agentsh/shim")); err == nil {
			runInImage(t, root, "", "/usr/bin/agentsh", "session", "destroy", "shim")
		}
	})
	shellInImage(t, root, "true")
	return root
}

func TestTheClientOfASharedSessionDoesWhatTheGoProgramDoes(t *testing.T) {
	root := sharedImage(t)
	// GODEBUG tells which program it is.
	for _, trace := range []bool{false, true} {
		check := func() {
			out := runUses(t, root, "/bin/sh -c 'echo ran'", "GODEBUG=inittrace=1")
			if strings.Contains(out, "init ") != trace || !strings.Contains(out, "ran\n") {
				t.Errorf("the Go runtime starts: want %t\n%s", trace, out)
			}
		}
		if trace {
			withoutClient(t, root, check)
		} else {
			check()
		}
	}
	got := runUses(t, root, uses)
	var want string
	withoutClient(t, root, func() { want = runUses(t, root, uses) })
	alike(t, got, want,
		"status 7", "status 143", "zero a b  c", "agentsh: denied: id (rule no-id", "a", "b end", "empty", "3000000", "1000000", "status 5",
		"agentsh: standard output could not be written: no space left on device", "status 125", "141", "got QUIT", "137", "installed",
		"agentsh: note: /usr is not in the workspace /work: the shell starts in /work", "/work/link", "/work/sub", "0022", "/home/sandbox",
		"100000 0", "100000 100000", "agentsh: environment: environment of", "left 0", "its output is open",
	)
}

// alike fails the test unless the client and the Go program print the same lines, and these among them.
func alike(t *testing.T, got, want string, lines ...string) {
	t.Helper()
	clean := strings.NewReplacer("\x00", "")
	ours, theirs := strings.Split(clean.Replace(got), "\n"), strings.Split(clean.Replace(want), "\n")
	slices.Sort(ours) // two outputs of a command have no order
	slices.Sort(theirs)
	for i := range max(len(ours), len(theirs)) {
		if i >= len(ours) || i >= len(theirs) || ours[i] != theirs[i] {
			t.Fatalf("line %d of the sorted lines differs\nby the client:\n%s\nby the Go program:\n%s", i+1, got, want)
		}
	}
	for _, line := range lines {
		if !strings.Contains("\n"+strings.Join(ours, "\n"), "\n"+line) {
			t.Errorf("no line %q\n%s", line, got)
		}
	}
}

// TestWhatTheClientOfASharedSessionIsTold has another process than a supervisor answer.
func TestWhatTheClientOfASharedSessionIsTold(t *testing.T) {
	root := sharedImage(t)
	socket := filepath.Join(root, "run/agentsh/shim/shells")
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	hello := func(version uint32) string {
		return "H\x00\x00\x00" + string(binary.NativeEndian.AppendUint32(nil, version)) + "last words\n"
	}
	good := hello(shellsocket.Version)
	num := func(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }
	end := func(body string) []string {
		return []string{good, "E\x00\x00\x00" + num(uint32(len(body))), "e" + body}
	}
	const malformed = "agentsh: the supervisor's answer is malformed\n"
	const theirs = "agentsh: note: / is not in the workspace /work: the shell starts in /work\nreal 42\n" // the Go program took over
	for name, tt := range map[string]struct {
		packets []string
		after   bool // the client sends its request before the second packet
		want    string
		code    int
	}{
		"nothing":                     {nil, false, theirs, 0},
		"nothing after the request":   {nil, true, theirs, 0},
		"garbage":                     {[]string{"garbage"}, false, theirs, 0},
		"a hello of another version":  {[]string{hello(shellsocket.Version + 1)}, false, theirs, 0},
		"a hello that is too short":   {[]string{"H"}, false, theirs, 0},
		"a refusal":                   {[]string{good, "F"}, true, theirs, 0},
		"an end of the connection":    {[]string{good}, true, "last words\n", 125},
		"garbage after the request":   {[]string{good, "garbage"}, true, "last words\n", 125},
		"a refusal after a beginning": {[]string{good, "X\x00", "F"}, true, "last words\n", 125},
		"pipes without descriptors":   {[]string{good, "P"}, true, "last words\n", 125},
		"an end without a body":       {[]string{good, "E\x00\x00\x00" + num(20)}, true, "last words\n", 125},
		"an empty end":                {end(""), true, malformed, 125},
		"an end that is too long":     {[]string{good, "E\x00\x00\x00" + num(1<<31)}, true, malformed, 125},
		"an end that is cut":          {end(num(0) + num(0) + num(0) + num(1)), true, malformed, 125},
		"texts longer than the end":   {end(num(0) + num(1) + num(0) + num(1<<32-1)), true, malformed, 125},
		"refusals that are missing":   {end(num(3) + num(9) + num(0) + num(0) + "\x00" + num(0) + "\x00"), true, "", 3},
		"an end": {
			end(num(3) + num(0) + num(2) + num(1) + "x\x00" + num(2) + "y\n\x00"), true, "agentsh: 2 more refusals in x\ny\n", 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := channel.ListenPackets(context.Background(), socket)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- answerWith(l, tt.packets, tt.after) }()
			out, code := runInImage(t, root, "", "/bin/sh", "-c", "echo real $((6*7))")
			if err := errors.Join(<-served, l.Close()); err != nil {
				t.Error(err)
			}
			if out != tt.want || code != tt.code {
				t.Errorf("exit %d\n%s", code, out)
			}
		})
	}
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
}

// answerWith answers one client with packets. The second waits for a whole request.
func answerWith(l net.Listener, packets []string, after bool) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	for i, p := range packets {
		if i == 1 {
			if err := readRequest(conn); err != nil {
				return err
			}
		}
		if _, err := conn.Write([]byte(p)); err != nil {
			return err
		}
	}
	if len(packets) <= 1 && after {
		return readRequest(conn)
	}
	return nil
}

func readRequest(conn net.Conn) error {
	var b [64 << 10]byte
	for range 2 { // the header, and the only part of the body
		if _, err := conn.Read(b[:]); err != nil {
			return err
		}
	}
	return nil
}

// TestTheClientOfASharedSessionObeysTheDisk changes what decides about a shell while its
// session runs.
func TestTheClientOfASharedSessionObeysTheDisk(t *testing.T) {
	root := sharedImage(t)
	session := shellInImage(t, root, "echo $AGENTSH_SESSION")
	manifest := "usr/lib/agentsh/shells/manifest.json"
	for name, tt := range map[string]struct {
		change string // by bash, in the root
		code   int
		shared bool // the shell runs in the shared session
	}{
		"the original is gone":        {"mv usr/bin/dash usr/bin/away", 125, false},
		"the manifest is gone":        {"mv " + manifest + " away", 125, false},
		"the manifest is empty":       {": >" + manifest, 125, false},
		"the shells share no session": {"sed -i s/shared/own/ " + manifest, 0, false},
		"the manifest was written":    {"touch " + manifest, 0, true},
		"another key":                 {"head -c 32 /dev/zero >run/agentsh/shim/shells.key", 0, true},
		"a key that is too short":     {"echo >run/agentsh/shim/shells.key", 0, true},
		"a key that is a link":        {"cd run/agentsh/shim; mv shells.key k; ln -s k shells.key", 0, true},
		"a socket of another kind":    {"cd run/agentsh/shim; rm shells; mkfifo shells", 0, true},
		"a directory that is a link":  {"mv run/agentsh run/there; ln -s there run/agentsh", 125, false},
		"a directory of all":          {"chmod 755 run/agentsh", 125, false},
		"a directory of another user": {"chown 1000 run/agentsh", 125, false},
	} {
		t.Run(name, func(t *testing.T) {
			do := func(script string) {
				t.Helper()
				cmd := exec.Command("bash", "-c", script, "bash", root)
				cmd.Dir = root
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			do("rm -rf ../kept; mkdir ../kept; cp -a " + manifest +
				" ../kept/manifest; cp -a run/agentsh/shim/shells.key ../kept/key; mv run/agentsh/shim/shells ../kept/socket" +
				"; cp -al ../kept/socket run/agentsh/shim/shells")
			do(tt.change)
			out, code := runInImage(t, root, "", "/bin/sh", "-c", "echo in $AGENTSH_SESSION")
			if code != tt.code || strings.Contains(out, "in "+session) != tt.shared || strings.Contains(out, "in \n") {
				t.Errorf("exit %d\n%s", code, out)
			}
			do("if [ -L run/agentsh ]; then rm run/agentsh; mv run/there run/agentsh; fi; chown 0 run/agentsh; chmod 700 run/agentsh" +
				"; cp -a ../kept/manifest " + manifest + "; cd run/agentsh/shim; rm -f shells shells.key k; cp -a \"$1\"/../kept/key shells.key" +
				"; mv \"$1\"/../kept/socket shells; cd \"$1\"; [ -e usr/bin/dash ] || mv usr/bin/away usr/bin/dash")
		})
	}
	if got := shellInImage(t, root, "echo $AGENTSH_SESSION"); got != session {
		t.Errorf("session %s, not %s", got, session)
	}
}
