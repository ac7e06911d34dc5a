package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// opened has everything of a session's directory open to everybody: what then
// refuses a caller is not the mode of a file.
func opened(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "run"), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o777)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// knock connects to a socket and prints what it is told before it has said
// anything.
const knock = `import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(120); s.connect(sys.argv[1])
try: print("told", s.recv(100))
except OSError as e: print("lost", e.errno)
`

// asUID makes a command one of a user.
func asUID(uid string, cmd *exec.Cmd) *exec.Cmd {
	wrapped := exec.Command(
		"/usr/bin/setpriv",
		append([]string{"--reuid", uid, "--regid", uid, "--clear-groups", cmd.Path}, cmd.Args[1:]...)...)
	wrapped.Dir, wrapped.Env = cmd.Dir, cmd.Env
	return wrapped
}

// TestASessionAnswersItsOwnUserAlone has callers of other users knock at the
// sockets of root and of user 1000, whose modes let everybody in.
func TestASessionAnswersItsOwnUserAlone(t *testing.T) {
	for _, tt := range []struct {
		name, own string
		others    []string
	}{{"root's", "0", []string{"1000", "1001"}}, {"user 1000's", "1000", []string{"1001"}}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := workDir(t)
			as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
			if tt.own != "0" {
				as = asUser(t, dir)
			}
			inside := copyProgram(t, dir)
			line := func(args ...string) *exec.Cmd {
				cmd := program(t, dir, args...)
				cmd.Path = inside // where another user may run it
				return cmd
			}
			if out, err := as(line("session", "create", "-p", "policy.yaml", "-w", "work", "--audit", "state/one.jsonl", "--name",
				"one")).CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			t.Cleanup(func() {
				if out, err := asUID(tt.own, line("session", "destroy", "one")).CombinedOutput(); err != nil {
					t.Errorf("destroy: %v %s", err, out)
				}
			})
			log := filepath.Join(dir, "run/agentsh/one/log")
			opened(t, dir)
			for _, uid := range tt.others {
				out, err := asUID(uid, exec.Command("/usr/bin/python3", "-c", knock, filepath.Join(dir, "run/agentsh/one/socket"))).CombinedOutput()
				if err != nil || strings.Contains(string(out), "SSH") ||
					!strings.Contains(string(out), "told b''") && !strings.Contains(string(out), "lost 104") {
					t.Errorf("user %s: %v %s", uid, err, out)
				}
				if said, err := os.ReadFile(log); err != nil || !strings.Contains(string(said), "of user "+uid+" is not of this user") {
					t.Errorf("user %s, the session's log: %v %s", uid, err, said)
				}
			}
			for _, uid := range append([]string{"0"}, tt.others...) {
				if uid == tt.own {
					continue
				}
				cmd := asUID(uid, line("exec", "-s", "one", "--", "sh", "-c", "echo ran"))
				out, err := cmd.CombinedOutput()
				if exitCode(err) != 125 || !strings.Contains(string(out), "is not a directory of mode 0700 of user "+uid) {
					t.Errorf("exec of user %s: %v %s", uid, err, out)
				}
			}
			if err := os.Chmod(filepath.Join(dir, "run/agentsh"), 0o700); err != nil {
				t.Fatal(err)
			}
			if out, err := asUID(tt.own, line("exec", "-s", "one", "--", "sh", "-c", "echo ran")).CombinedOutput(); string(out) != "ran\n" {
				t.Errorf("exec of its own user: %v %s", err, out)
			}
		})
	}
}

// TestCommandsInheritNoConnection starts agentsh with a connection to a session
// open: no command of it has that, nor one through /proc. The second argument of the script
// are the processes that it looks at. Outside it is the test alone: a machine may have thousands.
func TestCommandsInheritNoConnection(t *testing.T) {
	dir := workDir(t)
	const look = `for fd in /proc/self/fd/* $2/fd/*; do case $(readlink $fd) in socket:*) echo "$fd is a socket";; esac; done
for way in $2/root/"$1" $2/cwd/../"$1"; do [ ! -e "$way" ] || echo "$way is there"; done
[ ! -e /proc/self/fd/9 ] || echo 9 is open
echo looked`
	all := ways(t, dir)
	socket := filepath.Join(dir, "run/agentsh/one/socket")
	for way, flags := range all {
		t.Run(way, func(t *testing.T) {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			file, err := conn.(*net.UnixConn).File()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			cmd := program(t, dir, append(append([]string(nil), flags...), "--", "sh", "-c", look, "sh", socket, "/proc/[0-9]*")...)
			cmd.ExtraFiles = []*os.File{file, file, file, file, file, file, file} // 3 to 9
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != "looked\n" {
				t.Errorf("%v\n%s", err, out)
			}
			// The same outside finds all of it.
			outside := exec.Command("/bin/sh", "-c", look, "sh", socket, fmt.Sprintf("/proc/%d", os.Getpid()))
			outside.ExtraFiles = cmd.ExtraFiles
			found, _ := outside.CombinedOutput()
			for _, want := range []string{"is a socket\n", socket + " is there\n", "9 is open\n"} {
				if !bytes.Contains(found, []byte(want)) {
					t.Errorf("outside nothing says %q", want)
				}
			}
		})
	}
}

// TestASocketAsInputGivesNoAccess gives commands the connection as standard
// input: what they hold is a pipe.
func TestASocketAsInputGivesNoAccess(t *testing.T) {
	dir := workDir(t)
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			ours, theirs := socketPair(t)
			cmd := program(
				t,
				dir,
				append(
					append([]string(nil), flags...),
					"--",
					"sh",
					"-c",
					"readlink /proc/self/fd/0 | cut -d: -f1; cat; exec 2>/dev/null; echo answer >&0 || echo refused",
				)...)
			cmd.Stdin = theirs
			if _, err := io.WriteString(ours, "question\n"); err != nil {
				t.Fatal(err)
			}
			if err := ours.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != "pipe\nquestion\nrefused\n" {
				t.Errorf("%v %q", err, out)
			}
			theirs.Close()
			if back, err := io.ReadAll(ours); err != nil && !errors.Is(err, os.ErrClosed) || len(back) != 0 {
				t.Errorf("%q came back, %v", back, err)
			}
		})
	}
}

// socketPair is a connection and the other end's file.
func socketPair(t *testing.T) (*net.UnixConn, *os.File) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	other, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file, err := other.File()
	if err != nil {
		t.Fatal(err)
	}
	return conn, file
}
