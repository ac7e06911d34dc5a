package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"

	"agentsh/internal/testenv"
)

// TestMain also runs as a supervisor without a sandbox, and as a controller
// that is killed.
func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		if err := serve(); err != nil {
			fmt.Fprintf(os.Stderr, "agentsh: %v\nagentsh: hint: none\n", err)
			os.Exit(125)
		}
		os.Exit(0)
	case len(os.Args) == 3 && os.Args[1] == "controller":
		control(os.Args[2])
	}
	os.Exit(m.Run())
}

// serve does what the bootstrap's EnvDir selects: the tests have no other
// input.
func serve() error {
	var b wire.Bootstrap
	data, err := io.ReadAll(os.NewFile(bootstrapFD, "bootstrap"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return err
	}
	switch b.EnvDir {
	case "refuse":
		return errors.New("the policy cannot be enforced here")
	case "silent":
		select {}
	}
	conn, err := net.FileConn(os.NewFile(streamFD, "stream"))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(b.Governed[0].Backing)
	if err != nil {
		return err
	}
	roots, err := channel.NewRoots(channel.RootsConfig{Mounts: []channel.Mount{{Path: b.Governed[0].Path, Root: root}}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.AuditPath, []byte(`{"seq":1,"type":"session"}`+"\n"), 0o600); err != nil {
		return err
	}
	err = channel.NewServer(conn, channel.ServerConfig{
		HostKey: b.HostKey, AuthorizedKey: b.AuthorizedKey, Handler: handler{roots},
		Hello: wire.Hello{Build: "test", Instance: strconv.Itoa(os.Getpid()), PolicyDigest: b.Policy[0].Name},
	}).Serve(context.Background())
	if b.EnvDir == "wedged" {
		select {}
	}
	return err
}

type handler struct{ files channel.Files }

func (h handler) Files() channel.Files                           { return h.files }
func (h handler) Changes(context.Context) ([]wire.Change, error) { return nil, nil }
func (h handler) Events(ctx context.Context, _ wire.EventRequest) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		if yield(wire.Event{Seq: 1, Type: wire.EventSession}, nil) {
			<-ctx.Done()
		}
	}
}

func (h handler) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	err := cmd.Run()
	return wire.Exit{Kind: wire.ExitExited, Code: cmd.ProcessState.ExitCode()}, wire.TreeEmpty{}, err
}

func newBackend(t *testing.T) (*Backend, statedir.Dir) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{State: state, Agentsh: self}), state
}

func spec(id, mode string) sandbox.Spec {
	return sandbox.Spec{RunID: id, EnvDir: mode, Policy: []wire.PolicySource{{Name: "p.yaml", Data: []byte("version: 1\n")}}}
}

func create(t *testing.T, b *Backend, s sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	box, err := b.Create(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return box
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
	}
}

func TestASandboxRunsCommandsAndHoldsFiles(t *testing.T) {
	ctx := context.Background()
	b, state := newBackend(t)
	box := create(t, b, spec("run-1", ""))
	hello, err := box.Ready(ctx)
	if err != nil || hello.PolicyDigest != "p.yaml" {
		t.Fatalf("Ready = %+v, %v", hello, err)
	}
	if err := box.WriteFile(ctx, "/sandbox/a/b.txt", []byte("text"), 0o640); err == nil {
		t.Log("parents are made")
	} else if err := box.WriteFile(ctx, "/sandbox/b.txt", []byte("text"), 0o640); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	exit, err := box.Run(ctx, wire.ExecRequest{Argv: []string{"echo", "hello"}}, wire.Streams{Stdout: &out})
	if err != nil || exit.ExitCode() != 0 || out.String() != "hello\n" {
		t.Fatalf("Run = %+v, %v, %q", exit, err, out.String())
	}
	if err := box.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := box.Run(ctx, wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{}); err == nil {
		t.Error("a stopped sandbox ran a command")
	}
	log, err := box.AuditLog(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if data, err := io.ReadAll(log); err != nil || !bytes.Contains(data, []byte("session")) {
		t.Errorf("audit log = %q, %v", data, err)
	}
	for range 2 {
		if err := box.Delete(ctx); err != nil {
			t.Fatal(err)
		}
	}
	empty(t, state.Sandboxes())
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	b, state := newBackend(t)
	tests := []struct {
		name string
		b    *Backend
		spec sandbox.Spec
		want string
	}{
		{"a program that is missing", New(Config{State: state, Agentsh: "/no/agentsh"}), spec("r", ""), "no such file"},
		{"a program that is none", New(Config{State: state, Agentsh: "/etc/passwd"}), spec("r", ""), "permission denied"},
		{"a program that ends at once", New(Config{State: state, Agentsh: "/bin/false"}), spec("r", ""), "exit status 1"},
		{"an id that is a path", b, spec("../r", ""), "letters, digits and dashes"},
		{"an id that is an option", b, spec("-r", ""), "letters, digits and dashes"},
		{"a policy that is too large", b, func() sandbox.Spec {
			s := spec("r", "")
			s.Policy[0].Data = bytes.Repeat([]byte("x"), wire.MaxMessage)
			return s
		}(), "too large"},
		{"a supervisor that refuses", b, spec("r", "refuse"), "the policy cannot be enforced here"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			box, err := tt.b.Create(context.Background(), tt.spec)
			if err == nil { // it may have ended after it read its bootstrap
				_, err = box.Ready(context.Background())
				if delErr := box.Delete(context.Background()); delErr != nil {
					t.Error(delErr)
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
			empty(t, state.Sandboxes())
		})
	}
}

// sockets are the open sockets of this process.
func sockets(t *testing.T) map[string]bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{}
	for _, fd := range fds {
		if name, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(name, "socket:") {
			open[name] = true
		}
	}
	return open
}

func TestASupervisorThatDoesNotReadItsBootstrapLeavesNoConnection(t *testing.T) {
	_, state := newBackend(t)
	s := spec("r", "")
	s.Policy[0].Data = bytes.Repeat([]byte("x"), 1<<20) // more than a pipe holds
	defer debug.SetGCPercent(debug.SetGCPercent(-1))    // the collector of garbage closes connections
	before := sockets(t)
	if _, err := New(Config{State: state, Agentsh: "/bin/false"}).Create(context.Background(), s); err == nil {
		t.Fatal("it started")
	}
	for name := range sockets(t) {
		if !before[name] {
			t.Errorf("%s is open", name)
		}
	}
	empty(t, state.Sandboxes())
}

func TestALargePolicyPassesThePipe(t *testing.T) {
	b, _ := newBackend(t)
	s := spec("run-1", "")
	s.Policy[0].Data = bytes.Repeat([]byte("#"), 2<<20)
	if _, err := create(t, b, s).Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestReadyEndsWithItsContext(t *testing.T) {
	b, state := newBackend(t)
	box := create(t, b, spec("run-1", "silent"))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := box.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ready = %v", err)
	}
	if err := box.Delete(context.Background()); err != nil {
		t.Fatal(err)
	}
	empty(t, state.Sandboxes())
}

func TestAHangingSupervisorIsKilled(t *testing.T) {
	b, state := newBackend(t)
	box := create(t, b, spec("run-1", "wedged"))
	if _, err := box.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // otherwise it ends only by its time limit
	if err := box.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	empty(t, state.Sandboxes())
}

func TestADeadSupervisorIsNoticed(t *testing.T) {
	b, _ := newBackend(t)
	box := create(t, b, spec("run-1", ""))
	hello, err := box.Ready(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(hello.Instance)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-box.Gone()
	if !errors.Is(box.Cause(), sandbox.ErrGone) {
		t.Errorf("Cause = %v", box.Cause())
	}
	if _, err := box.Run(context.Background(), wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{}); err == nil {
		t.Error("a dead sandbox ran a command")
	}
}

func TestCollectLeavesTheLivingAlone(t *testing.T) {
	b, _ := newBackend(t)
	box := create(t, b, spec("run-1", ""))
	if _, err := box.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	found, err := b.Collect(context.Background())
	if err != nil || len(found) != 0 {
		t.Fatalf("Collect = %v, %v", found, err)
	}
	if _, err := box.Stat(context.Background(), "/sandbox"); err != nil {
		t.Errorf("the living sandbox: %v", err)
	}
}

// control is a controller that creates a sandbox in the state directory, prints
// the process id of the supervisor and waits to be killed.
func control(dir string) {
	state, err := statedir.Open(layout.State(dir))
	self, selfErr := os.Executable()
	if err = errors.Join(err, selfErr); err == nil {
		var box sandbox.Sandbox
		// The worst case is a supervisor that does not end with its stream.
		if box, err = New(Config{State: state, Agentsh: self}).Create(context.Background(), spec("run-1", "wedged")); err == nil {
			var hello wire.Hello
			if hello, err = box.Ready(context.Background()); err == nil {
				fmt.Fprintln(os.Stdout, hello.Instance)
				select {}
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestCollectRemovesWhatAKilledControllerLeft(t *testing.T) {
	b, state := newBackend(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "controller", filepath.Dir(state.Sandboxes()))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The orphan becomes a child of this process, which can wait for its end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	found, err := b.Collect(context.Background())
	if err != nil || len(found) != 1 || found[0].RunID != "run-1" || found[0].Err != nil {
		t.Fatalf("Collect = %+v, %v", found, err)
	}
	empty(t, state.Sandboxes())
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Signaled() {
		t.Errorf("supervisor %d: %v, %v", pid, status, err)
	}
}

func TestCollectDistinguishesTheSupervisorFromOtherProcesses(t *testing.T) {
	b, state := newBackend(t)
	dir := filepath.Join(state.Sandboxes(), "run-1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	other := info{Version: 1, ID: "run-1", RunID: "run-1", Process: Process{PID: os.Getpid(), Start: start - 1}}
	if err := statedir.WriteJSON(filepath.Join(dir, "info.json"), other); err != nil {
		t.Fatal(err)
	}
	found, err := b.Collect(context.Background())
	if err != nil || len(found) != 1 {
		t.Fatalf("Collect = %+v, %v", found, err)
	}
	empty(t, state.Sandboxes()) // and this process is still alive
}

func TestAnAuditLogThatIsNoFileIsNotOpened(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"a fifo":      func(name string) error { return unix.Mkfifo(name, 0o600) },
		"a link":      func(name string) error { return os.Symlink("/dev/zero", name) },
		"a directory": func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			b := &box{dir: &directory{path: t.TempDir()}}
			if err := put(b.dir.auditLog()); err != nil {
				t.Fatal(err)
			}
			if log, err := b.AuditLog(t.Context()); err == nil {
				log.Close()
				t.Error("it was opened")
			}
		})
	}
}

// overdueSandbox makes the directory of a sandbox in an image. Its supervisor, a
// sleep, has outlived its lease and holds it.
func overdueSandbox(t *testing.T, b *Backend, image string) *exec.Cmd {
	t.Helper()
	d, err := b.makeDirectory("run-1", info{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{d.lease}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	d.info.PID = cmd.Process.Pid
	if d.info.Start, err = startTime(d.info.PID); err == nil {
		err = errors.Join(d.writeInfo(), d.lease.Close())
	}
	kept := wire.Kept{Until: time.Now().Add(-2 * lateEnd)}
	if err := errors.Join(err, statedir.WriteJSON(filepath.Join(d.path, layout.KeptFile), kept)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestOnlyCollectEndsAnOverdueSupervisor(t *testing.T) {
	b, state := newBackend(t)
	cmd := overdueSandbox(t, b, "")
	found, err := b.Leftovers(t.Context())
	if err != nil || len(found) != 1 || found[0].RunID != "run-1" {
		t.Errorf("Leftovers = %+v, %v", found, err)
	}
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WNOHANG, nil); pid != 0 || err != nil {
		t.Fatalf("Leftovers ended the supervisor: %v, %v", status, err)
	}
	if found, err = b.Collect(t.Context()); err != nil || len(found) != 1 || found[0].Err != nil {
		t.Errorf("Collect = %+v, %v", found, err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the supervisor: %v", err)
	}
	empty(t, state.Sandboxes())
}

func TestAnImageIsUsedUntilItsSandboxIsDeleted(t *testing.T) {
	b, _ := newBackend(t)
	dir := t.TempDir()
	uses := func(dir string, want bool) {
		t.Helper()
		if got, err := b.UsesImage(dir); got != want || err != nil {
			t.Errorf("UsesImage(%s) = %v, %v", dir, got, err)
		}
	}
	uses(dir, false)
	overdueSandbox(t, b, dir)
	uses(dir, true)
	if err := os.Symlink(dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	uses(dir+"/link", true)
	uses(dir+"/other", false)
	if _, err := b.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	uses(dir, false)
}
