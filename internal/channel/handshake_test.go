package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// meet runs both ends and returns what each said.
func meet(t *testing.T, sc ServerConfig, cc ClientConfig) (serverErr, clientErr error) {
	t.Helper()
	server, conn := conns(t)
	served := make(chan error, 1)
	go func() { served <- NewServer(server, sc).Serve(context.Background()) }()
	c, err := NewClient(context.Background(), conn, cc)
	if err == nil {
		c.Close()
	}
	return <-served, err
}

func TestOnlyThePinnedKeysMeet(t *testing.T) {
	otherKey, otherPub, err := NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	good := ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}
	tests := map[string]struct {
		sc ServerConfig
		cc ClientConfig
		ok bool
	}{
		"both right":               {good, ClientConfig{Key: clientKey, HostKey: hostPub}, true},
		"another client key":       {good, ClientConfig{Key: otherKey, HostKey: hostPub}, false},
		"another host key":         {good, ClientConfig{Key: clientKey, HostKey: otherPub}, false},
		"the client's own as host": {good, ClientConfig{Key: clientKey, HostKey: clientPub}, false},
		"no host key":              {good, ClientConfig{Key: clientKey}, false},
		"no client key":            {good, ClientConfig{HostKey: hostPub}, false},
		"server without a client":  {ServerConfig{HostKey: hostKey, Handler: &handler{}}, ClientConfig{Key: clientKey, HostKey: hostPub}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := meet(t, tt.sc, tt.cc)
			if (clientErr == nil) != tt.ok || (serverErr == nil) != tt.ok {
				t.Errorf("server %v, client %v", serverErr, clientErr)
			}
		})
	}
}

func TestAnotherClientInstanceIsRefused(t *testing.T) {
	var clients Clients
	sc := ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}, Clients: &clients}
	connect := func(instance string) (error, error) {
		return meet(t, sc, ClientConfig{Key: clientKey, HostKey: hostPub, Instance: instance})
	}
	for _, instance := range []string{"first", "first"} {
		if s, c := connect(instance); s != nil || c != nil {
			t.Fatalf("%s: %v %v", instance, s, c)
		}
	}
	s, c := connect("second")
	for _, err := range []error{s, c} {
		if err == nil || !strings.Contains(err.Error(), "another client instance") {
			t.Errorf("second: %v", err)
		}
	}
}

func TestAnotherServerInstanceIsRefused(t *testing.T) {
	sc := ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}, Hello: wire.Hello{Instance: "b"}}
	_, err := meet(t, sc, ClientConfig{Key: clientKey, HostKey: hostPub, Server: "a"})
	if err == nil || !strings.Contains(err.Error(), "restarted or replaced") {
		t.Errorf("%v", err)
	}
}

// rawClient is an authenticated connection that has not said hello.
func rawClient(t *testing.T, conn net.Conn) ssh.Conn {
	t.Helper()
	signer, host, err := parseKeys(clientKey, hostPub)
	if err != nil {
		t.Fatal(err)
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
		Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(host)})
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		for range chans {
		}
	}()
	t.Cleanup(func() { c.Close() })
	return c
}

func TestHelloComesFirstAndMustFit(t *testing.T) {
	tests := map[string]struct {
		do   func(ssh.Conn) string // what the server answers
		want string
	}{
		"a channel before hello": {func(c ssh.Conn) string {
			_, _, err := c.OpenChannel(typeExec, nil)
			return err.Error()
		}, "hello comes first"},
		"another request before hello": {func(c ssh.Conn) string {
			_, data, _ := c.SendRequest(reqKeepalive, true, nil)
			return string(data)
		}, "hello comes first"},
		"a hello that is no JSON": {func(c ssh.Conn) string {
			_, data, _ := c.SendRequest(reqHello, true, []byte("{"))
			return string(data)
		}, "not readable"},
		"another major version": {func(c ssh.Conn) string {
			_, data, _ := c.SendRequest(reqHello, true, []byte(`{"version":{"major":2},"instance":"i"}`))
			return string(data)
		}, "peer speaks channel protocol 2.0, this side 1.3"},
		"no instance": {func(c ssh.Conn) string {
			_, data, _ := c.SendRequest(reqHello, true, []byte(`{"version":{"major":1,"minor":99}}`))
			return string(data)
		}, "names no instance"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server, conn := conns(t)
			served := make(chan error, 1)
			go func() {
				served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}).Serve(context.Background())
			}()
			c := rawClient(t, conn)
			if got := tt.do(c); !strings.Contains(got, tt.want) {
				t.Errorf("answer %q", got)
			}
			c.Close()
			if err := <-served; err == nil {
				t.Error("the server took it")
			}
		})
	}
}

// fakeServer authenticates and answers hello with reply.
func fakeServer(t *testing.T, conn net.Conn, reply string) {
	cfg, err := NewServer(conn, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub}).sshConfig()
	if err != nil {
		t.Error(err)
		return
	}
	c, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	go func() {
		for n := range chans {
			n.Reject(ssh.Prohibited, "")
		}
	}()
	for r := range reqs {
		r.Reply(true, []byte(reply))
	}
}

func TestTheClientRefusesAnotherMajorVersion(t *testing.T) {
	for reply, want := range map[string]string{
		`{"hello":{"version":{"major":2,"minor":1}}}`: "peer speaks channel protocol 2.1",
		`{"hello":{}}`: "peer speaks channel protocol 0.0",
		`nonsense`:     "not readable",
	} {
		server, conn := conns(t)
		done := make(chan struct{})
		go func() { defer close(done); fakeServer(t, server, reply) }()
		_, err := NewClient(context.Background(), conn, ClientConfig{Key: clientKey, HostKey: hostPub})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", reply, err)
		}
		<-done
	}
}

func TestASilentPeerIsGivenUpAtTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, start := range map[string]func(net.Conn) error{
			"server": func(c net.Conn) error {
				return NewServer(c, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}).Serve(context.Background())
			},
			"client": func(c net.Conn) error {
				_, err := NewClient(context.Background(), c, ClientConfig{Key: clientKey, HostKey: hostPub})
				return err
			},
		} {
			own, peer := net.Pipe()
			go io.Copy(io.Discard, peer)
			begin := time.Now()
			err := start(own)
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != handshakeLimit {
				t.Errorf("%s: %v after %s", name, err, time.Since(begin))
			}
			peer.Close()
		}
	})
}

// wireEnd is one end of a connection in memory that holds what was written, as
// a socket does, and stops passing bytes when stop is closed.
type wireEnd struct {
	net.Conn // deadlines of an unused pipe
	in, out  chan []byte
	rest     []byte
	stop     chan struct{}
	closed   chan struct{}
	peer     chan struct{}
	once     sync.Once
}

func wires() (a, b *wireEnd) {
	unused, _ := net.Pipe()
	one, two := make(chan []byte, 1000), make(chan []byte, 1000)
	ca, cb, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
	return &wireEnd{Conn: unused, in: one, out: two, stop: stop, closed: ca, peer: cb},
		&wireEnd{Conn: unused, in: two, out: one, stop: stop, closed: cb, peer: ca}
}

func (w *wireEnd) Read(p []byte) (int, error) {
	for len(w.rest) == 0 {
		select {
		case w.rest = <-w.in:
		case <-w.closed:
			return 0, net.ErrClosed
		case <-w.peer:
			return 0, io.EOF
		}
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

func (w *wireEnd) Write(p []byte) (int, error) {
	select {
	case <-w.stop:
		return len(p), nil
	default:
	}
	select {
	case <-w.closed:
		return 0, net.ErrClosed
	case w.out <- slices.Clone(p):
		return len(p), nil
	}
}

func (w *wireEnd) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func TestASilentPeerIsDeadAfterFifteenSeconds(t *testing.T) {
	patient := Keepalive{Interval: 24 * time.Hour}
	for name, k := range map[string][2]Keepalive{"client notices": {patient, {}}, "server notices": {{}, patient}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { dieSilently(t, k[0], k[1]) })
		})
	}
}

// dieSilently connects, lets both sides idle, and cuts the wire.
func dieSilently(t *testing.T, serverKeepalive, clientKeepalive Keepalive) {
	server, conn := wires()
	h := &handler{exec: func(ctx context.Context, _ wire.ExecRequest, _ wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		<-ctx.Done()
		return wire.Exit{Kind: wire.ExitSignaled, Signal: 9}, wire.TreeEmpty{}, nil
	}}
	served := make(chan error, 1)
	go func() {
		served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: h,
			Keepalive: serverKeepalive}).Serve(context.Background())
	}()
	c, err := NewClient(context.Background(), conn, ClientConfig{Key: clientKey, HostKey: hostPub, Keepalive: clientKeepalive})
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // of the bubble: an idle connection that answers lives
	if c.Err() != nil {
		t.Fatalf("idle connection: %v", c.Err())
	}
	close(conn.stop)
	begin := time.Now()
	<-c.Done()
	// The last answer came at most one interval before the cut.
	if took := time.Since(begin); took < 10*time.Second || took > 20*time.Second {
		t.Errorf("dead after %s", took)
	}
	if exit, err := cmd.Wait(); err == nil || exit.Kind != wire.ExitLost {
		t.Errorf("command: %+v %v", exit, err)
	}
	c.Close()
	if both := errors.Join(c.Err(), <-served); !errors.Is(both, ErrDead) {
		t.Errorf("nobody said why: %v", both)
	}
}

func TestListenIsItsOwnersAloneAndCleansUp(t *testing.T) {
	dir := t.TempDir()
	address := "unix://" + filepath.Join(dir, "s.sock")
	ctx := context.Background()
	l, err := Listen(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "s.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		done <- NewServer(conn, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}).Serve(ctx)
	}()
	conn, err := Dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(ctx, conn, ClientConfig{Key: clientKey, HostKey: hostPub})
	if err != nil {
		t.Fatal(err)
	}
	if _, out, _ := run(t, c, nil, "/bin/echo", "hi"); out != "hi\n" {
		t.Errorf("%q", out)
	}
	c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := Listen(ctx, address); err == nil {
		t.Error("a second listener took the address")
	}
	l.Close()
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left %v", names)
	}
	for _, bad := range []string{"tcp://h:1", "unix://host/x", "unix:x", "/x", "unix:///x?y", "%"} {
		if _, err := Dial(ctx, bad); err == nil {
			t.Errorf("dialled %q", bad)
		}
	}
	os.WriteFile(filepath.Join(dir, "s.sock"), nil, 0o600)
	if _, err := Listen(ctx, address); err == nil {
		t.Error("replaced a regular file")
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", file)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	again, err := Listen(context.Background(), "unix://"+file)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// Every connection on one machine has the same patience, whoever makes it.
func TestAPeerOnThisMachineMayBeSilentForAMinute(t *testing.T) {
	local, other, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	defer other.Close()
	remote, far := net.Pipe()
	defer remote.Close()
	defer far.Close()
	for name, tt := range map[string]struct {
		conn net.Conn
		set  Keepalive
		want Keepalive
	}{
		"a UNIX socket":            {local, Keepalive{}, Keepalive{5 * time.Second, time.Minute}},
		"another stream":           {remote, Keepalive{}, Keepalive{5 * time.Second, 15 * time.Second}},
		"a UNIX socket, times set": {local, Keepalive{time.Second, 2 * time.Second}, Keepalive{time.Second, 2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.set.over(tt.conn); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if got := NewServer(tt.conn, ServerConfig{Keepalive: tt.set}).cfg.Keepalive; got != tt.want {
				t.Errorf("the server: %+v, want %+v", got, tt.want)
			}
		})
	}
}
