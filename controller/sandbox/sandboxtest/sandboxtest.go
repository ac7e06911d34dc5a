// Package sandboxtest has the tests that every backend of sandboxes must pass. They need
// a real supervisor.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

const policy = `version: 1
name: sandboxtest
command_rules:
  - {name: no-id, commands: [hostid], decision: deny, message: no ids}
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: rescued, paths: ['/sandbox/saved/**'], operations: [delete], decision: soft_delete}
  - {name: workspace, paths: [/sandbox, '/sandbox/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib*/**', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_policy: {allow: [PATH]}
`

// spec is the sandbox of a test.
func spec(id string) sandbox.Spec {
	return sandbox.Spec{
		RunID: id, Policy: []wire.PolicySource{{Name: "sandboxtest.yaml", Data: []byte(policy)}}, Home: "/sandbox/home",
		Vars: map[string]string{"WORKSPACE": "/sandbox", "PROJECT_ROOT": "/sandbox", "HOME": "/sandbox/home", "TMPDIR": "/tmp"},
	}
}

// suite is a backend with one running sandbox.
type suite struct {
	b    sandbox.Backend
	box  sandbox.Sandbox
	with sandbox.Container // of all sandboxes
}

// spec is the sandbox of a test.
func (s *suite) spec(id string) sandbox.Spec {
	out := spec(id)
	out.Container = s.with
	return out
}

// Run tests a backend. It may have no other sandboxes. A container is for backends that make
// one; Run finds its image. Of other backends it says whether another user than root makes
// the sandboxes.
func Run(t *testing.T, b sandbox.Backend, with ...sandbox.Container) {
	t.Helper()
	s := &suite{b: b}
	ctx := context.Background()
	var err error
	if len(with) > 0 {
		s.with = with[0]
	}
	if p, pulls := b.(sandbox.Puller); pulls {
		if s.with.Image, err = p.Pull(ctx, s.with.Image.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Check(ctx, s.spec("suite-1")); err != nil {
		t.Fatal(err)
	}
	if s.box, err = b.Create(ctx, s.spec("suite-1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.box.Delete(ctx); err != nil {
			t.Error(err)
		}
	})
	if hello, err := s.box.Ready(ctx); err != nil || hello.Version.Major != wire.Current.Major || s.box.ID() != "suite-1" {
		t.Fatalf("Ready: %+v, %v", hello, err)
	}
	t.Run("commands end as they end", s.ends)
	t.Run("a cancelled command ends with all its processes", s.cancels)
	t.Run("streams pass unchanged and apart", s.streams)
	t.Run("files have any name", s.files)
	t.Run("archives come out", s.archives)
	t.Run("states of the files are remembered", s.history)
	t.Run("a living sandbox is left alone", s.living)
	t.Run("the end leaves the audit log and the trash", s.stops)
	t.Run("a failed start leaves nothing", s.fails)
	t.Run("nothing is left", s.nothing)
}

// said is what a command printed.
type said struct{ out, errs string }

func (s *suite) run(ctx context.Context, stdin io.Reader, argv ...string) (wire.Exit, said, error) {
	var o, e bytes.Buffer
	exit, err := s.box.Run(ctx, wire.ExecRequest{Argv: argv, Cwd: "/sandbox"}, sandbox.Streams{Stdin: stdin, Stdout: &o, Stderr: &e})
	return exit, said{o.String(), e.String()}, err
}

func (s *suite) ends(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		code int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 3"}, 3},
		{[]string{"sh", "-c", "exit 124"}, 124},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137},
		{[]string{"hostid"}, 126},
		{[]string{"no-such-program"}, 127},
	} {
		if exit, _, err := s.run(t.Context(), nil, tt.argv...); err != nil || exit.ExitCode() != tt.code {
			t.Errorf("%q: %+v, %v, want %d", tt.argv, exit, err, tt.code)
		}
	}
	exit, err := s.box.Run(t.Context(), wire.ExecRequest{Argv: []string{"sleep", "1000"}, Cwd: "/sandbox", DeadlineMS: 50}, sandbox.Streams{})
	if err != nil || exit.Kind != wire.ExitDeadline {
		t.Errorf("a deadline: %+v, %v", exit, err)
	}
}

// began is a writer that tells when something was written.
type began struct{ once chan struct{} }

func (b began) Write(p []byte) (int, error) {
	select {
	case b.once <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *suite) cancels(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wrote := began{make(chan struct{}, 1)}
	go func() {
		<-wrote.once
		cancel()
	}()
	argv := []string{"sh", "-c", "sleep 1000 & echo begun; wait"}
	_, err := s.box.Run(ctx, wire.ExecRequest{Argv: argv, Cwd: "/sandbox"}, sandbox.Streams{Stdout: wrote})
	if ctx.Err() == nil {
		t.Errorf("it was not cancelled: %v", err)
	}
	if _, got, err := s.run(t.Context(), nil, "sh", "-c", "cat /proc/[0-9]*/comm"); err != nil || strings.Contains(got.out, "sleep") {
		t.Errorf("it goes on: %q, %v", got.out, err)
	}
}

func (s *suite) streams(t *testing.T) {
	in := bytes.Repeat([]byte("\x00\xffsome bytes\r\n"), 100_000)
	exit, got, err := s.run(t.Context(), bytes.NewReader(in), "sh", "-c", "tee /dev/stderr")
	if err != nil || exit.ExitCode() != 0 || got.out != string(in) || got.errs != string(in) {
		t.Errorf("%+v, %v: %d and %d bytes of %d", exit, err, len(got.out), len(got.errs), len(in))
	}
}

// hostileNames are names that programs take for something else.
var hostileNames = []string{
	"plain", " ", "-rf", "a\nb", "quote'\"`$(id)", "\xff\xfe", "caf\u00e9", "\u202egpj.exe", "\x1b[2J", strings.Repeat("x", 255), "...",
}

func (s *suite) files(t *testing.T) {
	ctx := t.Context()
	if exit, got, err := s.run(ctx, nil, "mkdir", "names"); err != nil || exit.ExitCode() != 0 {
		t.Fatalf("%+v, %s, %v", exit, got.errs, err)
	}
	for i, name := range hostileNames {
		text := fmt.Sprint("file ", i)
		if err := s.box.WriteFile(ctx, "/sandbox/names/"+name, []byte(text), 0o640); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if got, err := s.box.ReadFile(ctx, "/sandbox/names/"+name, 100); err != nil || string(got) != text {
			t.Errorf("%q: %q, %v", name, got, err)
		}
		if exit, got, err := s.run(ctx, strings.NewReader("names/"+name), "xargs", "-0", "cat", "--"); err != nil || got.out != text {
			t.Errorf("%q: a command reads %q: %+v, %s, %v", name, got.out, exit, got.errs, err)
		}
	}
	list, err := s.box.List(ctx, "/sandbox/names")
	if err != nil || len(list) != len(hostileNames) {
		t.Errorf("%d names, %v", len(list), err)
	}
	for _, outside := range []string{"/etc/hosts", "/sandbox/../etc/hosts", "names/plain"} {
		if data, err := s.box.ReadFile(ctx, outside, 1<<20); err == nil {
			t.Errorf("%s was read: %q", outside, data)
		}
	}
}

func (s *suite) archives(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	to := channel.ArchiveTarget{Parent: root, Name: "names"}
	m, err := channel.ReceiveArchive(t.Context(), s.box, wire.CopyOut{Dir: "/sandbox/names"}, to)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range hostileNames {
		if got, err := root.ReadFile("names/" + name); err != nil || string(got) != fmt.Sprint("file ", i) {
			t.Errorf("%q: %q, %v (skipped %v)", name, got, err, m.Skipped)
		}
	}
}

func (s *suite) living(t *testing.T) {
	if _, err := s.b.Create(t.Context(), s.spec("suite-1")); err == nil {
		t.Error("a second sandbox has the same id")
	}
	if other, can := s.b.(sandbox.Taker); can {
		if _, err := other.Take(t.Context(), "suite-1"); err == nil {
			t.Error("a second controller has taken it over")
		}
	}
	for _, collect := range []func(context.Context) ([]sandbox.Leftover, error){s.b.Leftovers, s.b.Collect} {
		if found, err := collect(t.Context()); err != nil || len(found) != 0 {
			t.Errorf("collected: %+v, %v", found, err)
		}
	}
	if exit, _, err := s.run(t.Context(), nil, "true"); err != nil || exit.ExitCode() != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	select {
	case <-s.box.Gone():
		t.Errorf("it is gone: %v", s.box.Cause())
	default:
	}
}

func (s *suite) stops(t *testing.T) {
	if exit, got, err := s.run(t.Context(), nil, "sh", "-c", "mkdir saved; echo x > saved/a; rm saved/a; sleep 1000 &"); err != nil ||
		exit.ExitCode() != 0 {
		t.Errorf("%+v, %s, %v", exit, got.errs, err)
	}
	for range 2 {
		if err := s.box.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	<-s.box.Gone()
	if !errors.Is(s.box.Cause(), sandbox.ErrGone) {
		t.Errorf("Cause: %v", s.box.Cause())
	}
	log, err := s.box.AuditLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(log)
	if err = errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	if head, err := audit.Verify(bytes.NewReader(data)); err != nil || int(head.Seq) != bytes.Count(data, []byte("\n")) {
		t.Errorf("audit log: %+v, %v", head, err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"type":"session","phase":"end"`) || !strings.Contains(string(data), `"no-id"`) {
		t.Errorf("the last event is %s", last)
	}
	to := t.TempDir() + "/trash"
	if files, err := s.box.Trash(t.Context(), to); err != nil || files != 1 {
		t.Errorf("Trash: %d, %v", files, err)
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) == 0 {
		t.Errorf("trash: %v, %v", entries, err)
	}
	for range 2 {
		if err := s.box.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := s.run(t.Context(), nil, "true"); err == nil {
		t.Error("a deleted sandbox ran a command")
	}
}

func (s *suite) fails(t *testing.T) {
	wrong := s.spec("suite-2")
	wrong.Policy[0].Data = []byte("version: 1\nname: x\nrules: []\n")
	box, err := s.b.Create(t.Context(), wrong)
	if err == nil {
		_, err = box.Ready(t.Context())
		if failed := box.Delete(t.Context()); failed != nil {
			t.Error(failed)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "sandboxtest.yaml:3:1") {
		t.Errorf("a wrong policy: %v", err)
	}
	if _, err := s.b.Create(t.Context(), s.spec("../suite")); err == nil {
		t.Error("an id is a path")
	}
}

func (s *suite) nothing(t *testing.T) {
	if found, err := s.b.Leftovers(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("left: %+v, %v", found, err)
	}
}
