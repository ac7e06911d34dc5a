package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/internal/wire"
)

// keys of both sides, made once.
var hostKey, hostPub, clientKey, clientPub = mustKeys()

func mustKeys() (a, b, c, d []byte) {
	var err error
	if a, b, err = NewKeyPair(); err != nil {
		panic(err)
	}
	if c, d, err = NewKeyPair(); err != nil {
		panic(err)
	}
	return a, b, c, d
}

// handler runs commands as plain processes of the test.
type handler struct {
	files   Files
	exec    func(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, wire.TreeEmpty, error)
	changes []wire.Change
	events  func(context.Context, wire.EventRequest) iter.Seq2[wire.Event, error]
}

func (h *handler) Files() Files { return h.files }

func (h *handler) Changes(context.Context) ([]wire.Change, error) { return h.changes, nil }

func (h *handler) Events(ctx context.Context, req wire.EventRequest) iter.Seq2[wire.Event, error] {
	return h.events(ctx, req)
}

func (h *handler) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if h.exec != nil {
		return h.exec(ctx, req, s)
	}
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = req.Env, req.Cwd, s.Stdout, s.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if s.Stdin != nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			return wire.Exit{}, wire.TreeEmpty{}, err
		}
		go func() {
			if _, err := io.Copy(in, s.Stdin); err == nil {
				in.Close()
			}
		}()
	}
	if err := cmd.Start(); err != nil {
		return wire.Exit{Kind: wire.ExitSpawnFailed, Code: 127, Message: err.Error()}, wire.TreeEmpty{}, nil
	}
	s.Started(wire.Started{PID: cmd.Process.Pid})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case c := <-s.Control:
				sig := syscall.Signal(c.Signal)
				if c.Kill {
					sig = syscall.SIGKILL
				}
				syscall.Kill(-cmd.Process.Pid, sig)
			case <-done:
				return
			}
		}
	})
	cmd.Wait()
	close(done)
	wg.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return wire.Exit{Kind: wire.ExitSignaled, Signal: int(status.Signal())}, wire.TreeEmpty{}, nil
	}
	return wire.Exit{Kind: wire.ExitExited, Code: status.ExitStatus()}, wire.TreeEmpty{}, nil
}

// conns is one connected socket pair as two connections.
func conns(t testing.TB) (server, client net.Conn) {
	t.Helper()
	client, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	server, err = FromFile(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// connect serves h over a socket pair and returns a client of it. The test
// fails when the server does not end cleanly with the client.
func connect(t testing.TB, h Handler) *Client {
	t.Helper()
	server, conn := conns(t)
	served := make(chan error, 1)
	s := NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: h,
		Hello: wire.Hello{Build: "test", Instance: "i1", Capabilities: []string{"exec_notify"}}})
	go func() { served <- s.Serve(context.Background()) }()
	c, err := NewClient(context.Background(), conn, ClientConfig{Key: clientKey, HostKey: hostPub})
	if err != nil {
		t.Fatalf("%v (server: %v)", err, <-served)
	}
	t.Cleanup(func() {
		c.Close()
		if err := <-served; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return c
}

func run(t testing.TB, c *Client, stdin io.Reader, argv ...string) (wire.Exit, string, string) {
	t.Helper()
	var out, errOut bytes.Buffer
	exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: argv}, wire.Streams{Stdin: stdin, Stdout: &out, Stderr: &errOut})
	if err != nil {
		t.Fatal(err)
	}
	return exit, out.String(), errOut.String()
}

func TestACommandHasItsStreamsAndItsExitCode(t *testing.T) {
	c := connect(t, &handler{})
	if h := c.Hello(); h.Build != "test" || h.Version != wire.Current || len(h.Capabilities) != 1 {
		t.Errorf("hello %+v", h)
	}
	tests := map[string]struct {
		script, stdin, out, err string
		exit                    wire.Exit
	}{
		"streams stay apart":       {script: "echo out; echo err >&2", out: "out\n", err: "err\n", exit: wire.Exit{Kind: wire.ExitExited}},
		"the exit code is its own": {script: "exit 124", exit: wire.Exit{Kind: wire.ExitExited, Code: 124}},
		"a signal is no code":      {script: "kill -9 $$", exit: wire.Exit{Kind: wire.ExitSignaled, Signal: 9}},
		"input arrives and ends":   {script: "cat", stdin: "hello", out: "hello", exit: wire.Exit{Kind: wire.ExitExited}},
		"unread input is no error": {script: "exit 3", stdin: strings.Repeat("x", 1<<20), exit: wire.Exit{Kind: wire.ExitExited, Code: 3}},
		"no input is /dev/null":    {script: "cat; readlink /proc/self/fd/0", out: "/dev/null\n", exit: wire.Exit{Kind: wire.ExitExited}},
		"much output arrives": {
			script: "head -c 5000000 /dev/zero | tr '\\0' x",
			out:    strings.Repeat("x", 5000000),
			exit:   wire.Exit{Kind: wire.ExitExited},
		},
		"output without reader stops": {
			script: "head -c 5000000 /dev/zero >&2",
			err:    strings.Repeat("\x00", 5000000),
			exit:   wire.Exit{Kind: wire.ExitExited},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var stdin io.Reader
			if tt.stdin != "" {
				stdin = strings.NewReader(tt.stdin)
			}
			exit, out, errOut := run(t, c, stdin, "/bin/sh", "-c", tt.script)
			if exit != tt.exit {
				t.Errorf("exit %+v, want %+v", exit, tt.exit)
			}
			if out != tt.out || errOut != tt.err {
				t.Errorf("stdout %.80q stderr %.80q", out, errOut)
			}
		})
	}
}

func TestARequestThatCannotBeDoneIsRefused(t *testing.T) {
	c := connect(t, &handler{})
	if exit, _, _ := run(t, c, nil, "/nonexistent"); exit.Kind != wire.ExitSpawnFailed || exit.Code != 127 {
		t.Errorf("missing program: %+v", exit)
	}
	tests := map[string]wire.ExecRequest{
		"argv is empty":         {},
		"holds a NUL":           {Argv: []string{"a\x00b"}},
		"clean absolute path":   {Argv: []string{"a"}, Cwd: "relative"},
		"on_disconnect":         {Argv: []string{"a"}, OnDisconnect: "keep"},
		"output":                {Argv: []string{"a"}, Output: "drop_middle"},
		"deadline_ms":           {Argv: []string{"a"}, DeadlineMS: -1},
		"request id of 129":     {Argv: []string{"a"}, ID: strings.Repeat("i", 129)},
		"cannot be attached to": {Argv: []string{"a"}, ID: "used"},
	}
	c.Run(context.Background(), wire.ExecRequest{ID: "used", Argv: []string{"/bin/true"}}, wire.Streams{})
	for want, req := range tests {
		exit, err := c.Run(context.Background(), req, wire.Streams{})
		if err != nil || exit.Kind != wire.ExitSpawnFailed || exit.ExitCode() != 125 || !strings.Contains(exit.Message, want) {
			t.Errorf("%s: %+v %v", want, exit, err)
		}
	}
}

func TestAFirstMessageTooLargeForTheOpenRequestArrives(t *testing.T) {
	c := connect(t, &handler{})
	arg := strings.Repeat("y", 100_000)
	exit, out, _ := run(t, c, strings.NewReader("and input"), "/bin/sh", "-c", "echo ${#1}${#2}; cat", "sh", arg, arg)
	if exit.Kind != wire.ExitExited || out != "100000100000\nand input" {
		t.Errorf("%+v %q", exit, out)
	}
	_, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{strings.Repeat("z", wire.MaxMessage)}}, wire.Streams{})
	if err == nil {
		t.Error("a request above the limit was sent")
	}
}

func TestCancellingTheContextKillsTheCommand(t *testing.T) {
	c := connect(t, &handler{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := c.Command(ctx, wire.ExecRequest{Argv: []string{"/bin/sleep", "1000"}})
	cmd.OnStarted = func(s wire.Started) {
		if s.PID <= 0 {
			t.Errorf("started %+v", s)
		}
		cancel()
	}
	exit, err := cmd.Run()
	if err != nil || exit.Kind != wire.ExitSignaled || exit.Signal != 9 {
		t.Errorf("%+v %v", exit, err)
	}
}

func TestSignalsAndSizesReachTheCommand(t *testing.T) {
	got := make(chan wire.Control, 8)
	c := connect(t, &handler{exec: func(_ context.Context, _ wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		s.Started(wire.Started{PID: 1})
		for {
			m := <-s.Control
			got <- m
			if m.Kill {
				return wire.Exit{Kind: wire.ExitSignaled, Signal: 15}, wire.TreeEmpty{Leftover: []int{7}}, nil
			}
		}
	}})
	cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}, TTY: &wire.TTY{Term: "xterm"}})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{cmd.Signal(2), cmd.Resize(24, 80), cmd.Kill()} {
		if err != nil {
			t.Error(err)
		}
	}
	exit, err := cmd.Wait()
	if err != nil || exit.Signal != 15 || len(cmd.Leftover()) != 1 {
		t.Errorf("%+v %v %v", exit, err, cmd.Leftover())
	}
	if m := <-got; m.Signal != 2 {
		t.Errorf("first %+v", m)
	}
	if m := <-got; m.TTY == nil || m.TTY.Rows != 24 || m.TTY.Cols != 80 {
		t.Errorf("second %+v", m)
	}
	if err := cmd.Kill(); err != nil {
		t.Errorf("kill after the end: %v", err)
	}
}

func TestAClientThatGoesKillsItsCommands(t *testing.T) {
	started, ended := make(chan struct{}), make(chan error, 1)
	h := &handler{exec: func(ctx context.Context, _ wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		close(started)
		_, err := io.Copy(io.Discard, s.Stdin)
		ended <- err
		<-ctx.Done()
		return wire.Exit{Kind: wire.ExitSignaled, Signal: 9}, wire.TreeEmpty{}, nil
	}}
	server, conn := conns(t)
	served := make(chan error, 1)
	go func() {
		served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: h}).Serve(context.Background())
	}()
	c, err := NewClient(context.Background(), conn, ClientConfig{Key: clientKey, HostKey: hostPub})
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	defer w.Close()
	cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}})
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "half of the in")
	<-started
	c.Close()
	if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the command saw its input end with %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	if exit, err := cmd.Wait(); err == nil || exit.Kind != wire.ExitLost {
		t.Errorf("%+v %v", exit, err)
	}
}

// cutting is a connection that can end within a packet.
type cutting struct {
	net.Conn
	at atomic.Int64 // bytes of the next write that leave before the connection ends; negative: all
}

func (c *cutting) Write(p []byte) (int, error) {
	at := c.at.Load()
	if at < 0 {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:min(at, int64(len(p)))])
	return n, errors.Join(err, c.Close())
}

func TestAClientThatGoesWithinAPacketHasDisconnected(t *testing.T) {
	for _, at := range []int64{0, 1, 4, 5, 20, 35} {
		server, conn := conns(t)
		cut := &cutting{Conn: conn}
		cut.at.Store(-1)
		served := make(chan error, 1)
		go func() {
			served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}).Serve(context.Background())
		}()
		c, err := NewClient(context.Background(), cut, ClientConfig{Key: clientKey, HostKey: hostPub})
		if err != nil {
			t.Fatal(err)
		}
		cut.at.Store(at)
		if _, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{}); err == nil {
			t.Errorf("%d bytes: the command has a result", at)
		}
		if err := <-served; err != nil {
			t.Errorf("%d bytes: server: %v", at, err)
		}
		c.Close()
	}
}

// blocked is a writer that stops at its first byte.
type blocked struct {
	once    sync.Once
	reached chan struct{}
	release chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	b.once.Do(func() { close(b.reached) })
	<-b.release
	return len(p), nil
}

func TestACommandWithoutAReaderDelaysNoOther(t *testing.T) {
	c := connect(t, &handler{files: tempFiles(t, nil)})
	stuck := &blocked{reached: make(chan struct{}), release: make(chan struct{})}
	cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"/bin/cat", "/dev/zero"}})
	cmd.Stdout = stuck
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-stuck.reached
	for range 20 { // more than the stuck command's window passes beside it
		if _, out, _ := run(t, c, nil, "/bin/sh", "-c", "head -c 500000 /dev/zero"); len(out) != 500000 {
			t.Fatalf("%d bytes", len(out))
		}
		if _, err := c.Stat(context.Background(), "/sandbox"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Kill(); err != nil {
		t.Error(err)
	}
	close(stuck.release)
	if exit, err := cmd.Wait(); err != nil || exit.Signal != 9 {
		t.Errorf("%+v %v", exit, err)
	}
}

func TestAFailedWriterIsReportedAndEndsTheCommand(t *testing.T) {
	c := connect(t, &handler{})
	r, w := io.Pipe()
	r.CloseWithError(errors.New("screen is gone"))
	exit, err := c.Run(
		context.Background(),
		wire.ExecRequest{Argv: []string{"/bin/sh", "-c", "head -c 3000000 /dev/zero; exit 5"}},
		wire.Streams{Stdout: w},
	)
	if exit.Code != 5 || err == nil || !strings.Contains(err.Error(), "screen is gone") {
		t.Errorf("%+v %v", exit, err)
	}
}

func TestTheExitIsReportedBeforeTheTreeIsEmpty(t *testing.T) {
	told := make(chan struct{})
	c := connect(t, &handler{exec: func(_ context.Context, _ wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		s.Exited(wire.Exit{Kind: wire.ExitExited, Code: 7, Message: strings.Repeat("m", 100_000)})
		<-told
		fmt.Fprint(s.Stdout, "late")
		return wire.Exit{Kind: wire.ExitExited, Code: 8}, wire.TreeEmpty{}, nil
	}})
	var out bytes.Buffer
	cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}})
	cmd.Stdout = &out
	cmd.OnExit = func(wire.Exit) { close(told) }
	exit, err := cmd.Run()
	if err != nil || exit.Code != 7 || len(exit.Message) > maxText+3 || out.String() != "late" {
		t.Errorf("%d %d %v %q", exit.Code, len(exit.Message), err, out.String())
	}
}

// packets counts writes.
type packets struct{ n, bytes int }

func (p *packets) Write(b []byte) (int, error) {
	p.n++
	p.bytes += len(b)
	return len(b), nil
}

func TestSmallOutputIsGatheredButNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p packets
		g := newGatherer(&p)
		g.last = time.Now().Add(-time.Second)
		expect := func(when string, n, bytes int) {
			t.Helper()
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			if p.n != n || p.bytes != bytes {
				t.Errorf("%s: %d packets with %d bytes, want %d with %d", when, p.n, p.bytes, n, bytes)
			}
		}
		g.Write([]byte("a"))
		expect("after a pause", 1, 1)
		for range 1000 {
			g.Write([]byte("b"))
		}
		expect("in a burst", 1, 1)
		<-time.After(gatherTime)
		expect("after the gather time", 2, 1001)
		g.Write(make([]byte, gatherSize))
		expect("much at once", 3, 1001+gatherSize)
		g.Write([]byte("c"))
		if n := g.close(); n != int64(1002+gatherSize) {
			t.Errorf("%d bytes sent", n)
		}
		expect("at the end", 4, 1002+gatherSize)
		if _, err := g.Write([]byte("d")); err == nil {
			t.Error("took output after the end")
		}
	})
}

func TestAHandlerThatFailsLosesOnlyItsCommand(t *testing.T) {
	c := connect(t, &handler{exec: func(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		return wire.Exit{}, wire.TreeEmpty{}, errors.New("init is gone")
	}})
	for range 2 {
		if exit, _, _ := run(t, c, nil, "x"); exit.Kind != wire.ExitLost || exit.Message != "init is gone" || exit.ExitCode() != 125 {
			t.Errorf("%+v", exit)
		}
	}
}

func TestChannelsBeyondTheLimitAreRefused(t *testing.T) {
	release := make(chan struct{})
	c := connect(t, &handler{exec: func(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		<-release
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}})
	var cmds []*Cmd
	for range maxOpen {
		cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	if err := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}}).Start(); err == nil ||
		!strings.Contains(err.Error(), "128 channels are open") {
		t.Errorf("one more: %v", err)
	}
	close(release)
	for _, cmd := range cmds {
		if exit, err := cmd.Wait(); err != nil || exit.Kind != wire.ExitExited {
			t.Errorf("%+v %v", exit, err)
		}
	}
}

// tempFiles serves a new directory as /sandbox.
func tempFiles(t testing.TB, changed func([]string)) Files {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	f, err := NewRoots(RootsConfig{Mounts: []Mount{{Path: "/sandbox", Root: root}}, Changed: changed})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Client is what controller/sandbox calls an executor.
var _ interface {
	Run(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, error)
	Stat(ctx context.Context, name string) (wire.FileInfo, error)
	List(ctx context.Context, name string) ([]wire.FileInfo, error)
	ReadFile(ctx context.Context, name string, limit int64) ([]byte, error)
	WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error
	CopyIn(ctx context.Context, dest string, archive io.Reader, arrived func(wire.ManifestEntry) error) error
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) error
	EachChange(ctx context.Context, fn func(wire.Change) error) error
	Events(ctx context.Context, req wire.EventRequest, fn func(wire.Event) error) error
} = (*Client)(nil)

// TestWordsOfACommandHaveAnyBytes holds that bytes which are no UTF-8 reach the command.
func TestWordsOfACommandHaveAnyBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d\xff")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	req := wire.ExecRequest{Argv: []string{"/bin/sh", "-c", `printf '%s|%s|' "$1" "$A"; pwd`, "sh", "a\xff\\x41"}, Env: []string{"A=\xfe"}, Cwd: dir}
	var out bytes.Buffer
	if _, err := connect(t, &handler{}).Run(context.Background(), req, wire.Streams{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if want := "a\xff\\x41|\xfe|" + dir + "\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	old := &Client{hello: wire.Hello{Version: wire.Version{Major: 1, Minor: 1}}}
	if _, err := old.open(context.Background(), typeExec, req, nil); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("an older supervisor gets other words: %v", err)
	}
}

// stubborn is the output of a peer that writes on for a time. At a gigabyte it ends: without a
// pause the time does not go on.
type stubborn struct {
	until time.Time
	n     int
}

func (s *stubborn) Read(p []byte) (int, error) {
	if time.Now().After(s.until) || s.n > 1<<30 {
		return 0, io.EOF
	}
	s.n += len(p)
	return len(p), nil
}

func TestWhatAKilledCommandWritesIsReadSlowly(t *testing.T) {
	for _, w := range []io.Writer{full{}, io.Discard} {
		synctest.Test(t, func(t *testing.T) {
			killed := make(chan struct{})
			kill := sync.OnceFunc(func() { close(killed) })
			if w == io.Discard {
				kill()
			}
			r := &stubborn{until: time.Now().Add(10 * time.Second)}
			got := drain(w, r, func(error) { kill() }, killed)
			if (got.err == nil) != (w == io.Discard) || got.n != int64(r.n) || got.n < 100<<20 || got.n > 300<<20 {
				t.Errorf("%T: %d bytes of %d were read in 10 seconds: %v", w, got.n, r.n, got.err)
			}
		})
	}
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
