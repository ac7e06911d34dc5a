package supervisor

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// serveOutside is a service on the loopback of the machine. It answers with a word, and
// its port is the result.
func serveOutside(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("outside\n"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestAServiceOfTheMachineIsReachedByItsRule: by programs that use the proxy and by
// those that do not, unless a program of the session listens on the port.
func TestAServiceOfTheMachineIsReachedByItsRule(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	eachMode(t, func(t *testing.T, change func(*Config)) {
		open, closed := serveOutside(t), serveOutside(t)
		rules := fmt.Sprintf("network_rules:\n  - {name: database, domains: [localhost], ports: [%d], decision: allow}\nenv_policy:", open)
		b := newOutside(t, nil).open(t, rules, func(c *Config) {
			change(c)
			c.Network.Egress.Dial = nil // the machine's loopback itself
		})
		const connect = `
import os, socket, sys, urllib.parse
def ask(host, port):
    try:
        s = socket.create_connection((host, port), 120)
        return s.makefile().readline().strip()
    except OSError:
        return "refused"
def proxied(host, port):
    s = socket.create_connection(("127.0.0.1", urllib.parse.urlparse(os.environ["HTTP_PROXY"]).port), 120)
    s.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n" % (host.encode(), port))
    f = s.makefile()
    status = f.readline().split()[1]
    while status == "200" and f.readline().strip(): pass
    return f.readline().strip() if status == "200" else status
`
		fill := strings.NewReplacer("OPEN", fmt.Sprint(open), "CLOSED", fmt.Sprint(closed)).Replace
		script := fill(connect + `
print(ask("localhost", OPEN), ask("127.0.0.1", OPEN), ask("0.0.0.0", OPEN), proxied("localhost", OPEN), proxied("127.0.0.1", OPEN))
print(ask("localhost", CLOSED), ask("127.0.0.1", CLOSED), proxied("localhost", CLOSED))
print(ask("127.0.0.2", OPEN), ask("::ffff:127.0.0.2", OPEN), proxied("127.0.0.2", OPEN))
try:
    socket.create_connection(("::1", OPEN)) # the service listens at 127.0.0.1 alone: programs try that next
except ConnectionRefusedError:
    print("nobody")
`)
		exit, out := b.run(t, "python3", "-c", script)
		if want := "outside outside outside outside outside\nrefused refused 403\nrefused refused 403\nnobody\n"; exit.Code != 0 || out != want {
			t.Errorf("%+v: %q, want %q", exit, out, want)
		}
		refused := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventNet && e.Decision == "deny" })
		if len(refused) == 0 || !strings.HasSuffix(refused[0].Target, fmt.Sprint(":", closed)) {
			t.Errorf("events of refusals are %+v", refused)
		}
		direct := func(e wire.Event) bool { return e.Net.Via == "transparent" && e.Command != "" && e.Process != nil }
		hint := fmt.Sprintf("ports: [%d]", closed)
		if i := slices.IndexFunc(refused, direct); i < 0 || !b.network.Shared() && !strings.Contains(refused[i].Hint, hint) {
			t.Errorf("no event of a connection without the proxy, or no hint: %+v", refused)
		}
		if b.network.Shared() {
			return // its port is taken
		}
		// An address whose answers the session's network drops: the connection would wait.
		unanswered := fill(connect + `
s = socket.socket()
s.setsockopt(socket.IPPROTO_IP, 15, 1) # IP_FREEBIND
s.bind(("198.51.100.9", 0))
try:
    s.connect(("127.0.0.1", OPEN))
    print("connected")
except OSError as e:
    print(e.strerror)
`)
		if exit, out := b.run(t, "python3", "-c", unanswered); exit.Code != 0 || out != "Cannot assign requested address\n" {
			t.Errorf("from an address that gets no answer: %+v: %q", exit, out)
		}
		own := fill(connect + `
import threading
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
l.bind(("127.0.0.1", OPEN))
l.listen()
def serve():
    while True: l.accept()[0].sendall(b"inside\n")
threading.Thread(target=serve, daemon=True).start()
print(ask("localhost", OPEN), ask("127.0.0.1", OPEN))
`)
		if exit, out := b.run(t, "python3", "-c", own); exit.Code != 0 || out != "inside inside\n" {
			t.Errorf("with a server of the session: %+v: %q", exit, out)
		}
	})
}

// TestRefusalsWithoutNetworkRulesAreEvents: nothing outside is there, the kernel says so to
// the program, and the log says why. Servers of the session are no refusals.
func TestRefusalsWithoutNetworkRulesAreEvents(t *testing.T) {
	testenv.Need(t, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.Program("python3"))
	port := serveOutside(t)
	cfg, log := testConfig(t, testPolicy)
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	script := strings.ReplaceAll(`
import errno, socket
def tcp(host, port):
    try:
        socket.create_connection((host, port), 120).close()
        return "connected"
    except OSError as e:
        return errno.errorcode[e.errno]
def udp(host, port):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((host, port))
        return "connected"
    except OSError as e:
        return errno.errorcode[e.errno]
print(tcp("198.51.100.7", 80), udp("198.51.100.8", 53), udp("198.51.100.9", 80), tcp("127.0.0.1", PORT), tcp("127.0.0.1", 1))
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind(("127.0.0.1", PORT))
l.listen()
print(tcp("127.0.0.1", PORT))
`, "PORT", fmt.Sprint(port))
	want := "ENETUNREACH ENETUNREACH ENETUNREACH ECONNREFUSED ECONNREFUSED\nconnected\n"
	if exit, out := b.run(t, "python3", "-c", script); exit.Code != 0 || out != want {
		t.Errorf("%+v: %q, want %q", exit, out, want)
	}
	var targets []string
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventNet }) {
		targets = append(targets, e.Target)
		if e.Decision != "deny" || e.Command == "" || e.Process == nil || !strings.Contains(e.Message, "no network_rules") || e.Hint == "" {
			t.Errorf("%+v", e)
		}
	}
	if want := []string{"198.51.100.7:80", "198.51.100.8:53", fmt.Sprintf("127.0.0.1:%d", port)}; !slices.Equal(targets, want) {
		t.Errorf("refused %q, want %q", targets, want)
	}
}

// TestDatabasesOfTheMachineAreReachedByTheirRules runs Postgres and Redis of Debian outside
// and their clients in a session: make services.
func TestDatabasesOfTheMachineAreReachedByTheirRules(t *testing.T) {
	testenv.Asked(t, "AGENTSH_SERVICES", "services")
	testenv.Need(t, testenv.Root, testenv.Program("redis-server"), testenv.Program("psql"), testenv.Program("setpriv"))
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_ctl")
	if err != nil || len(found) == 0 {
		t.Fatalf("no Postgres: %v", err)
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, err := os.MkdirTemp("/tmp", "services")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	asNobody := func(argv ...string) {
		t.Helper()
		argv = append([]string{"--reuid=65534", "--regid=65534", "--clear-groups"}, argv...)
		if out, err := exec.Command("setpriv", argv...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	data := filepath.Join(dir, "data")
	pgPort, redisPort := freePort(t), freePort(t)
	asNobody(filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "agent")
	options := fmt.Sprintf("-p %d -k %s -c listen_addresses=127.0.0.1", pgPort, dir)
	asNobody(filepath.Join(bin, "pg_ctl"), "-D", data, "-w", "-t", "120", "-l", filepath.Join(dir, "log"), "-o", options, "start")
	t.Cleanup(func() {
		asNobody(filepath.Join(bin, "pg_ctl"), "-D", data, "-m", "fast", "stop")
	})
	redis := exec.Command("redis-server", "--port", fmt.Sprint(redisPort), "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	log, err := redis.StdoutPipe()
	if err == nil {
		err = redis.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = redis.Process.Kill()
		_ = redis.Wait()
	})
	for lines := bufio.NewScanner(log); lines.Scan() && !strings.Contains(lines.Text(), "Ready to accept connections"); {
	}
	eachMode(t, func(t *testing.T, change func(*Config)) {
		rules := fmt.Sprintf("network_rules:\n  - {name: databases, domains: [localhost], ports: [%d, %d], decision: allow}\nenv_policy:", pgPort, redisPort)
		b := newOutside(t, nil).open(t, rules, func(c *Config) {
			change(c)
			c.Network.Egress.Dial = nil
		})
		for _, tt := range []struct{ script, want string }{
			{fmt.Sprintf("psql -h localhost -p %d -U agent -Atc 'select 6*7' postgres", pgPort), "42\n"},
			{fmt.Sprintf("psql -h 127.0.0.1 -p %d -U agent -Atc 'select 6*7' postgres", pgPort), "42\n"},
			{fmt.Sprintf("redis-cli -h localhost -p %d ping", redisPort), "PONG\n"},
			{fmt.Sprintf("redis-cli -h 127.0.0.1 -p %d set a 42", redisPort), "OK\n"},
		} {
			if exit, out := b.run(t, "sh", "-c", tt.script); exit.Code != 0 || out != tt.want {
				t.Errorf("%s: %+v: %q, want %q", tt.script, exit, out, tt.want)
			}
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
