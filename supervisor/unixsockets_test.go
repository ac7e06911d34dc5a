package supervisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/netns"
)

// socketPolicy is the test policy with rules for sockets of the machine in dir
// and of the session.
func socketPolicy(dir string) string {
	return strings.Replace(
		testPolicy,
		"env_policy:",
		`  - {name: shown, paths: ['`+dir+`/shown', '`+dir+`/shown/**'], operations: [read, list, stat], decision: allow}
unix_socket_rules:
  - {name: refused, paths: ['`+dir+`/shown/refused', /tmp/refused, '@refused'], decision: deny, message: not this one}
  - {name: named, paths: ['`+dir+`/named', '`+dir+`/shown/allowed'], operations: [connect], decision: allow}
  - {name: own, paths: ['${WORKSPACE}/**', '/tmp/**', '@own-*'], decision: allow}
env_policy:`,
		1,
	)
}

// connects tries sockets by their names and prints what happened.
const connects = `
import socket, sys
for name in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(name if name[0] != "@" else "\0" + name[1:]); print(s.recv(10).decode())
    except OSError as e: print(e.strerror)
`

// listens has this process answer on a socket.
func listens(t *testing.T, name string) {
	t.Helper()
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	if name[0] == '/' {
		if err := os.Chmod(name, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("reached"))
			c.Close()
		}
	}()
}

func TestSocketsOfTheMachineAreReachedByRule(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir, err := os.MkdirTemp("/var", "agentsh-sockets-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{dir, dir + "/shown"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{dir + "/named", dir + "/unnamed", dir + "/shown/allowed", dir + "/shown/refused", "@own-" + filepath.Base(dir)}
	for _, name := range names {
		listens(t, name)
	}
	cfg, log := testConfig(t, socketPolicy(dir))
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	exit, out := b.run(t, append([]string{"python3", "-c", connects}, names...)...)
	// The abstract one is permitted by its rule, but it is not in the session's network.
	want := "reached\nNo such file or directory\nreached\nPermission denied\nConnection refused\n"
	if exit.Code != 0 || out != want {
		t.Errorf("%+v\n%s\ninstead of\n%s", exit, out, want)
	}
	denied := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventNet && e.Decision == "deny" })
	if len(denied) != 1 || denied[0].Rule.Name != "refused" || denied[0].Message != "not this one" || denied[0].Process == nil {
		t.Errorf("%+v", denied)
	}
}

func TestTheSessionsSocketsAreDecidedByRules(t *testing.T) {
	b := openBox(t, socketPolicy("/nosuch"))
	exit, out := b.run(t, "python3", "-c", `
import os, socket
def tell(what, f, *args):
    try: f(*args); print(what, "done")
    except OSError as e: print(what, e.strerror)
for name in ("/tmp/fine", "/tmp/refused", "\0own-1", "\0refused", "\0other"):
    tell("bind " + name.replace("\0", "@"), socket.socket(socket.AF_UNIX).bind, name)
os.symlink("/tmp", "/tmp/link")
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
tell("bind by a link", s.bind, "/tmp/link/refused")
tell("bind", s.bind, "/tmp/datagrams")
c = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
tell("sendto", c.sendto, b"x", "/tmp/datagrams")
tell("sendto, refused", c.sendto, b"x", "\0refused")
tell("no such socket", socket.socket(socket.AF_UNIX).connect, "/tmp/nosuch")
a, b = socket.socketpair()
a.sendall(b"pairs need no name")
`)
	want := "bind /tmp/fine done\nbind /tmp/refused Permission denied\nbind @own-1 done\nbind @refused Permission denied\nbind @other Permission denied\n" +
		"bind by a link Permission denied\nbind done\nsendto done\nsendto, refused Permission denied\nno such socket No such file or directory\n"
	if exit.Code != 0 || out != want {
		t.Errorf("%+v\n%s\ninstead of\n%s", exit, out, want)
	}
}

// Any user of the machine may bind any name, and leave it behind.
func TestASocketThatSomebodyBoundIsNoReasonToRefuse(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"loop": "loop", "own": "/proc/self/fd", "real": "."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"directory", "exchanged", "long"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	through := fmt.Sprintf("/proc/self/fd/%d/", at.Fd())
	for _, name := range []string{
		dir + "/plain", dir + "/real/linked", dir + "/directory/gone", dir + "/exchanged/loop", through + "through",
		fmt.Sprintf("%s/own/%d/link", dir, at.Fd()), dir + "/new\nline",
	} {
		listens(t, name)
	}
	// Now the directories of two are a file and a loop, as ENOTDIR and ELOOP.
	for name, how := range map[string]func(string) error{
		"directory": func(n string) error { return os.WriteFile(n, nil, 0o600) },
		"exchanged": func(n string) error { return os.Symlink("exchanged", n) },
	} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := how(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	names, err := netns.UnixSockets()
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, dir) && !strings.HasPrefix(n, "/proc") })
	if want := []string{dir + "/linked", dir + "/plain"}; !slices.Equal(names, want) {
		t.Errorf("found %q, not %q", names, want)
	}
}
