package place

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/resume"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor"
	"agentsh/supervisor/host"
)

func TestMain(m *testing.M) {
	supervisor.Reexec()
	testenv.DefaultSignals()
	if len(os.Args) == 4 && os.Args[1] == "serve" && os.Args[2] == "--place" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		err := ServeSandbox(context.Background(), os.Args[3], host.Options{Operator: supervisor.DefaultOperator, Build: "test", Confine: true})
		if err != nil {
			_, _ = os.Stderr.WriteString("agentsh: " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// server is a running Serve and the controller's end of its stream.
type server struct {
	net.Conn
	t        *testing.T
	options  Options
	conn     *resume.Conn
	carried  sync.WaitGroup
	messages *bytes.Buffer // complete after the end
	done     chan error
	ended    chan struct{} // closed after done has the error
}

// options are those of a place of its own.
func options(t *testing.T) Options {
	t.Helper()
	state, err := statedir.Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return Options{State: state, Build: "test"}
}

// serve starts Serve and reads its hello.
func serve(t *testing.T, o Options) *server {
	t.Helper()
	ours, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := channel.FromFile(file)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	s := &server{Conn: ours, t: t, options: o, messages: &bytes.Buffer{}, done: make(chan error, 1), ended: make(chan struct{})}
	o.Messages = s.messages
	go func() {
		defer close(s.ended)
		s.done <- Serve(context.Background(), theirs, o)
	}()
	var hello wire.PlaceHello
	if err := stdio.Read(s, &hello, wire.MaxMessage); err != nil || hello.Build != "test" || hello.Version != wire.Current {
		t.Fatalf("hello %+v, %v", hello, err)
	}
	t.Cleanup(func() { ours.Close() })
	return s
}

// send sends a request.
func (s *server) send(req wire.PlaceRequest) {
	s.t.Helper()
	if err := stdio.Write(s, req); err != nil {
		s.t.Fatal(err)
	}
}

// answered reads that the sandbox was made.
func (s *server) answered() {
	s.t.Helper()
	var answer wire.PlaceAttached
	if err := stdio.Read(s, &answer, 1<<20); err != nil || answer.Error != "" {
		s.t.Fatalf("%+v, %v", answer, err)
	}
}

// sandboxes are the directories of the place.
func (s *server) sandboxes() []string {
	s.t.Helper()
	entries, err := os.ReadDir(dirOf(s.options))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func dirOf(o Options) string { return filepath.Join(filepath.Dir(o.State.Sandboxes()), dirName) }

const testPolicy = `version: 1
name: test
command_rules:
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: rescued, paths: ['/sandbox/**'], operations: [delete], decision: soft_delete}
  - {name: workspace, paths: [/sandbox, '/sandbox/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_policy: {allow: [PATH]}
`

// request describes a sandbox, and its client.
func request(t *testing.T, id string) (wire.PlaceRequest, channel.ClientConfig) {
	t.Helper()
	hostKey, hostPublic, err := channel.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	key, public, err := channel.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	boot := wire.Bootstrap{
		Version: wire.Current, Policy: []wire.PolicySource{{Name: "test.yaml", Data: []byte(testPolicy)}},
		Vars:     map[string]string{"WORKSPACE": "/sandbox", "PROJECT_ROOT": "/sandbox", "HOME": "/sandbox/home", "TMPDIR": "/tmp"},
		Governed: []wire.Governed{{Path: "/sandbox"}}, Home: "/sandbox/home", HostKey: hostKey, AuthorizedKey: public,
		Resume: &wire.Resume{Token: bytes.Repeat([]byte{1}, resume.TokenSize), Seconds: 60},
	}
	return wire.PlaceRequest{Version: wire.Current, Op: wire.PlaceServe, Owner: "owner", ID: id, Bootstrap: &boot},
		channel.ClientConfig{Key: key, HostKey: hostPublic}
}

// open makes a sandbox and connects to it.
func (s *server) open(id string) *channel.Client {
	s.t.Helper()
	testenv.Need(s.t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	req, cfg := request(s.t, id)
	s.conn = resume.New(req.Bootstrap.Resume.Token, time.Minute, true)
	s.send(req)
	s.answered()
	s.carry()
	client, err := channel.NewClient(context.Background(), s.conn, cfg)
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", err, <-s.done, s.messages)
	}
	s.t.Cleanup(func() {
		client.Close()
		<-s.ended
		s.conn.Fail(resume.ErrLost)
		s.carried.Wait()
	})
	return client
}

// carry uses the stream for the connection.
func (s *server) carry() {
	s.carried.Go(func() {
		if !s.conn.Carry(s) {
			_ = s.Close()
		} // else the place closes it
	})
}

func TestASandboxOutlivesItsStream(t *testing.T) {
	o := options(t)
	s := serve(t, o)
	client := s.open("run-1")
	for range 3 {
		s.Close()
		if err := <-s.done; err != nil {
			t.Fatal(err)
		}
		conn := s.conn
		s = serve(t, o)
		s.conn = conn
		s.send(wire.PlaceRequest{Version: wire.Current, Op: wire.PlaceAttach, Owner: "owner", ID: "run-1"})
		var answer wire.PlaceAttached
		if err := stdio.Read(s, &answer, 1<<20); err != nil || answer.Error != "" {
			t.Fatalf("%+v, %v", answer, err)
		}
		s.carry()
		sh(t, client, "echo one > a")
	}
	client.Close()
	if err := <-s.done; err != nil {
		t.Errorf("Serve: %v\n%s", err, s.messages)
	}
	if got := s.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestASandboxWithoutAStreamEndsAfterItsLease(t *testing.T) {
	s := serve(t, options(t))
	req, _ := request(t, "run-1")
	req.Bootstrap.Resume.Seconds = 1
	s.send(req)
	p := &places{Options: s.options, dir: dirOf(s.options)}
	p.Messages = io.Discard
	for len(p.all()) == 0 || p.all()[0].labels.PID == 0 { // the supervisor starts
		runtime.Gosched()
	}
	f, err := p.all()[0].follow()
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	s.Close()
	<-s.done
	if err := p.ended(f, f.sandbox, nil); err != nil {
		t.Error(err)
	}
	if got := s.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestNobodyAttachesToTheSandboxOfAnother(t *testing.T) {
	o := options(t)
	s := serve(t, o)
	client := s.open("run-1")
	for name, req := range map[string]wire.PlaceRequest{
		"another owner":   {Owner: "other", ID: "run-1"},
		"another sandbox": {Owner: "owner", ID: "run-2"},
		"a path":          {Owner: "owner", ID: "../run-1"},
	} {
		x := serve(t, o)
		req.Version, req.Op = wire.Current, wire.PlaceAttach
		x.send(req)
		var answer wire.PlaceAttached
		if err := stdio.Read(x, &answer, 1<<20); err != nil || !strings.Contains(answer.Error, "there is no sandbox") {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
		if err := <-x.done; err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	sh(t, client, "true")
}

func sh(t *testing.T, c *channel.Client, script string) {
	t.Helper()
	exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"/bin/sh", "-c", script}, Cwd: "/sandbox"}, wire.Streams{})
	if err != nil || exit.ExitCode() != 0 {
		t.Fatalf("%s: %+v, %v", script, exit, err)
	}
}

func TestASandboxEndsWithItsStreamAndLeavesNothing(t *testing.T) {
	s := serve(t, options(t))
	client := s.open("run-1")
	sh(t, client, "echo one > a; echo two > b; rm a")
	if got := s.sandboxes(); len(got) != 1 || got[0] != "run-1" {
		t.Errorf("sandboxes: %v", got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("Serve: %v\n%s", err, s.messages)
	}
	if got := s.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestAnEndedSessionShowsItsLastEventsAndItsTrash(t *testing.T) {
	s := serve(t, options(t))
	client := s.open("run-1")
	var events []wire.Event
	followed := make(chan error, 1)
	go func() {
		followed <- client.Events(context.Background(), wire.EventRequest{}, func(e wire.Event) error {
			events = append(events, e)
			return nil
		})
	}()
	sh(t, client, "echo one > a; rm a")
	for range 2 { // a second call is no error
		if ended, err := client.End(context.Background()); err != nil || ended.Trashed != 1 {
			t.Errorf("End = %+v, %v", ended, err)
		}
	}
	if err := <-followed; err != nil {
		t.Errorf("events: %v", err)
	}
	if last := events[len(events)-1]; last.Type != wire.EventSession || last.Phase != "end" {
		t.Errorf("the last event is %+v", last)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	m, err := channel.ReceiveArchive(context.Background(), client, wire.CopyOut{Dir: layout.ExportedTrash},
		channel.ArchiveTarget{Parent: root, Name: "trash"})
	if err != nil || len(m.Entries) < 2 {
		t.Errorf("trash: %+v, %v", m, err)
	}
	exit, err := client.Run(context.Background(), wire.ExecRequest{Argv: []string{"/bin/true"}, Cwd: "/sandbox"}, wire.Streams{})
	if err == nil && exit.ExitCode() == 0 {
		t.Error("a command ran in an ended session")
	}
	client.Close()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

func TestAKilledSupervisorLeavesNothing(t *testing.T) {
	s := serve(t, options(t))
	s.open("run-1")
	p := &places{Options: s.options, dir: dirOf(s.options)}
	if err := syscall.Kill(p.all()[0].labels.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-s.done; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Serve: %v", err)
	}
	if got := s.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestWhatKilledProcessesLeftIsRemovedByTheNext(t *testing.T) {
	o := options(t)
	for _, name := range []string{"dead-1", goneName + "dead-2"} {
		if err := os.MkdirAll(filepath.Join(dirOf(o), name, "tree"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	alive := &sandbox{dir: filepath.Join(dirOf(o), "alive"), labels: wire.PlaceLabels{Owner: "owner"}}
	if err := errors.Join(os.Mkdir(alive.dir, 0o700), alive.lock(), alive.write()); err != nil {
		t.Fatal(err)
	}
	defer alive.lease.Close()
	s := serve(t, o)
	client := s.open("run-1")
	if got := strings.Join(s.sandboxes(), " "); got != "alive run-1" {
		t.Errorf("sandboxes: %s", got)
	}
	client.Close()
	<-s.done
}

func TestAnOwnerCollectsItsSandboxes(t *testing.T) {
	o := options(t)
	s := serve(t, o)
	s.open("run-1")
	second := serve(t, o)
	client := second.open("run-2")
	collect := func(owner string, keep []string, dry bool) string {
		t.Helper()
		c := serve(t, o)
		c.send(wire.PlaceRequest{Version: wire.Current, Op: wire.PlaceCollect, Owner: owner, Keep: keep, DryRun: dry})
		var done wire.PlaceCollected
		if err := stdio.Read(c, &done, 1<<20); err != nil {
			t.Fatalf("%v, %v", err, <-c.done)
		}
		var ids []string
		for _, x := range done.Sandboxes {
			ids = append(ids, x.ID+x.Error)
		}
		if err := <-c.done; err != nil {
			t.Error(err)
		}
		return strings.Join(ids, " ")
	}
	for _, tt := range []struct {
		owner string
		keep  []string
		dry   bool
		want  string
	}{
		{"other", nil, false, ""},
		{"owner", nil, true, "run-1 run-2"},
		{"owner", []string{"run-2"}, false, "run-1"},
	} {
		if got := collect(tt.owner, tt.keep, tt.dry); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
	<-s.done // the supervisor of a collected sandbox has ended
	if got := strings.Join(s.sandboxes(), " "); got != "run-2" {
		t.Errorf("sandboxes: %s", got)
	}
	client.Close()
	if err := <-second.done; err != nil {
		t.Error(err)
	}
}

func TestARequestThatIsWrongIsAnErrorAndMakesNothing(t *testing.T) {
	good, _ := request(t, "run-1")
	change := func(fn func(*wire.PlaceRequest)) wire.PlaceRequest {
		r := good
		fn(&r)
		return r
	}
	for name, tt := range map[string]struct {
		req  wire.PlaceRequest
		want string
	}{
		"another version":      {change(func(r *wire.PlaceRequest) { r.Version.Major = 99 }), "version 99"},
		"an unknown operation": {change(func(r *wire.PlaceRequest) { r.Op = "dance" }), `unknown operation "dance"`},
		"a path as id":         {change(func(r *wire.PlaceRequest) { r.ID = "../run" }), "letters, digits and dashes"},
		"a hidden id":          {change(func(r *wire.PlaceRequest) { r.ID = goneName + "x" }), "letters, digits and dashes"},
		"no owner":             {change(func(r *wire.PlaceRequest) { r.Owner = "" }), "letters, digits and dashes"},
		"no bootstrap":         {change(func(r *wire.PlaceRequest) { r.Bootstrap = nil }), "no lease"},
		"too little room":      {change(func(r *wire.PlaceRequest) { r.NeedBytes = 1 << 60 }), "no space left"},
		"no directory": {
			change(func(r *wire.PlaceRequest) { r.Bootstrap = &wire.Bootstrap{Resume: &wire.Resume{}} }), "0 governed directories",
		},
	} {
		s := serve(t, options(t))
		s.send(tt.req)
		if err := <-s.done; err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if got := s.sandboxes(); len(got) != 0 {
			t.Errorf("%s: left %v", name, got)
		}
	}
}

func TestASupervisorThatRefusesSaysWhy(t *testing.T) {
	s := serve(t, options(t))
	req, _ := request(t, "run-1")
	req.Bootstrap.Policy[0].Data = []byte("version: 1\nname: test\nrules: []\n")
	s.send(req)
	s.answered()
	s.conn = resume.New(req.Bootstrap.Resume.Token, time.Minute, true)
	s.carry()
	if n, err := s.conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read: %d, %v", n, err)
	}
	if err := s.conn.Close(); err != nil {
		t.Error(err)
	}
	<-s.done
	s.carried.Wait()
	if !strings.Contains(s.messages.String(), "test.yaml:3:1") {
		t.Errorf("messages: %s", s.messages)
	}
	if got := s.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// late is a stream whose controller sends nothing in time.
type late struct {
	io.Writer
	deadline time.Time
}

func (l *late) Read([]byte) (int, error) {
	if l.deadline.IsZero() {
		return 0, io.EOF
	}
	return 0, os.ErrDeadlineExceeded
}

func (*late) Close() error { return nil }

func (l *late) SetReadDeadline(t time.Time) error {
	l.deadline = t
	return nil
}

// deaf is a stream of a controller that takes no bytes, and whose end nobody has read yet.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestAStreamThatTakesNoBytesIsNotTheEndOfTheSupervisor(t *testing.T) {
	controller, stream := net.Pipe()
	defer controller.Close()
	near, supervisor := net.Pipe()
	go func() { _, _ = supervisor.Write([]byte("x")) }()
	if copyBoth(deaf{stream}, near) {
		t.Error("the supervisor is said to have ended")
	}
	if n, err := supervisor.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("its connection: %d, %v", n, err)
	}
}

// TestAStreamThatNobodyReadsEndsAfterItsSupervisor: a carrier that goes on and reads nothing keeps no process.
func TestAStreamThatNobodyReadsEndsAfterItsSupervisor(t *testing.T) {
	for name, end := range map[string]func(supervisor, controller net.Conn) error{
		"the supervisor ends":        func(supervisor, _ net.Conn) error { return supervisor.Close() },
		"the controller ends a half": func(_, controller net.Conn) error { return controller.(*net.UnixConn).CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) { neverRead(t, end) })
	}
}

func neverRead(t *testing.T, end func(supervisor, controller net.Conn) error) {
	t.Parallel()
	near, far, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := channel.FromFile(far)
	if err = errors.Join(err, far.Close()); err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	stream, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	controller, err := channel.FromFile(file)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	defer controller.Close()
	over := make(chan bool, 1)
	go func() { over <- copyUntil(stream, near, 50*time.Millisecond) }()
	if err := supervisor.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := supervisor.Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the stream takes everything: %v", err)
	}
	select {
	case <-over:
		t.Fatal("the stream ended before its supervisor")
	default:
	}
	if err := end(supervisor, controller); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Error("the stream goes on after its supervisor")
		_ = controller.Close()
		<-over
	}
}

func TestARequestHasADeadline(t *testing.T) {
	before := time.Now()
	l := &late{Writer: io.Discard}
	err := Serve(context.Background(), l, options(t))
	if err == nil || !strings.Contains(err.Error(), "none within 1m0s") {
		t.Errorf("Serve: %v", err)
	}
	if l.deadline.Before(before.Add(requestWait)) || l.deadline.After(time.Now().Add(requestWait)) {
		t.Errorf("deadline %s", l.deadline)
	}
}

// A tree of many files takes longer to remove than other runs wait for the lock.
func TestOthersStartWhileADeadSandboxIsRemoved(t *testing.T) {
	o := options(t)
	dead := &sandbox{dir: filepath.Join(dirOf(o), "dead")}
	left := filepath.Join(dirOf(o), goneName+"left")
	if err := errors.Join(os.MkdirAll(dead.dir, 0o700), os.Mkdir(left, 0o700)); err != nil {
		t.Fatal(err)
	}
	p := &places{Options: o, dir: dirOf(o)}
	req, _ := request(t, "run-1")
	first, removed, err := p.reserve(req)
	if err != nil || len(removed) != 2 {
		t.Fatalf("%d to remove, %v", len(removed), err)
	}
	req.ID = "run-2"
	second, err := p.make(req) // it waits for nothing
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead.dir); err != nil {
		t.Errorf("a sandbox that another process removes: %v", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a process did not finish to remove: %v", err)
	}
	for _, b := range append(removed, first, second) {
		if err := b.remove(); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dirOf(o)); err != nil || len(entries) > 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
}

func TestASandboxWhoseSupervisorIsBeingStartedIsNotReportedAsRemoved(t *testing.T) {
	o := options(t)
	starting := &sandbox{dir: filepath.Join(dirOf(o), "run-1"), labels: wire.PlaceLabels{Owner: "owner"}}
	if err := errors.Join(os.MkdirAll(starting.dir, 0o700), starting.lock(), starting.write()); err != nil {
		t.Fatal(err)
	}
	defer starting.lease.Close()
	p := &places{Options: o, dir: dirOf(o)}
	done, err := p.collect(t.Context(), wire.PlaceRequest{Owner: "owner"})
	if err != nil || len(done.Sandboxes) != 1 || !strings.Contains(done.Sandboxes[0].Error, "being started") {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestAProcessThatHasTheNumberOfASupervisorIsNotKilled(t *testing.T) {
	self, err := target.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for name, labels := range map[string]wire.PlaceLabels{
		"another start": {PID: os.Getpid(), Start: 1, Boot: statedir.BootID()},
		"the same start, before the machine was restarted": {PID: os.Getpid(), Start: self.Start, Boot: "another"},
	} {
		o := options(t)
		b := &sandbox{dir: filepath.Join(dirOf(o), "run-1"), labels: labels}
		if err := os.MkdirAll(b.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p := &places{Options: o, dir: dirOf(o)}
		if err := p.end(context.Background(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(b.dir); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: it is left: %v", name, err)
		}
	}
}
