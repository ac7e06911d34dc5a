package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// replacing is a carrier that changes the version in the first message of one direction.
type replacing struct {
	remote.Carrier
	in bool
}

func (r replacing) Open(ctx context.Context) (remote.Stream, error) {
	s, err := r.Carrier.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &replacingStream{Stream: s, in: r.in}, nil
}

type replacingStream struct {
	remote.Stream
	in   bool
	seen []byte
}

const ours, other = `"version":{"major":1,`, `"version":{"major":9,`

// Read reads a byte, so that every message is seen whole.
func (s *replacingStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p[:min(len(p), 1)])
	if s.in && n == 1 {
		if s.seen = append(s.seen, p[0]); bytes.HasSuffix(s.seen, []byte(ours[:len(ours)-1])) {
			p[0] = '9'
		}
	}
	return n, err
}

func (s *replacingStream) Write(p []byte) (int, error) {
	if !s.in {
		p = bytes.Replace(p, []byte(ours), []byte(other), 1)
	}
	return s.Stream.Write(p)
}

// TestPlacesThatFail has places of another release, without space, and without a supervisor.
func TestPlacesThatFail(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	program := testenv.Agentsh(t)
	t.Run("another release", func(t *testing.T) {
		p := pipePlace{dir: t.TempDir(), program: program}
		for in, want := range map[bool]string{true: "speaks version 9, this agentctl 1", false: "version 9: this build speaks 1"} {
			_, f := p.backend(t)
			b := remote.New(remote.Config{
				Name: remote.NameExec, Carrier: replacing{f, in}, State: openState(t, p.dir), Agentsh: program, Lease: 10 * time.Second,
			})
			if _, err := b.Create(t.Context(), spec("version-1")); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			p.nothingLeft(t)
		}
	})
	t.Run("a full disk", func(t *testing.T) {
		p := pipePlace{dir: t.TempDir(), program: program}
		full := filepath.Join(p.dir, "place")
		if err := errors.Join(os.Mkdir(full, 0o755), unix.Mount("small", full, "tmpfs", 0, "size=8m")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(full, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		b, _ := p.backend(t)
		large := spec("full-1")
		large.NeedBytes = 1 << 30
		if _, err := b.Create(t.Context(), large); err == nil ||
			!strings.Contains(err.Error(), "full") && !strings.Contains(err.Error(), "free") {
			t.Errorf("a place that is too small: %v", err)
		}
		p.fill(t, b)
		p.nothingLeft(t)
		if wrong, err := work(t.Context(), b, "full-3", t.TempDir()); errors.Join(wrong, err) != nil {
			t.Errorf("afterwards: %v, %v", wrong, err)
		}
	})
	for _, what := range []string{"a supervisor that is killed", "all processes of a place are killed"} {
		t.Run(what, func(t *testing.T) {
			p := pipePlace{dir: t.TempDir(), program: program}
			p.kill(t, strings.HasPrefix(what, "all"))
		})
	}
}

// fill fills the disk of a place from its sandbox.
func (p pipePlace) fill(t *testing.T, b sandbox.Backend) {
	t.Helper()
	box, err := b.Create(t.Context(), spec("full-2"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	exit, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"sh", "-c", "cat /dev/zero >big"}, Cwd: "/sandbox"},
		sandbox.Streams{Stderr: &errs})
	said := fmt.Sprint(exit, err, errs.String())
	if exit.ExitCode() == 0 || !strings.Contains(said, "No space left") && !strings.Contains(said, "no space left") {
		t.Errorf("a command: %s", said)
	}
	if err := box.WriteFile(t.Context(), "/sandbox/more", random(1<<20), 0o644); err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("a file: %v", err)
	}
	if _, err := box.Stat(t.Context(), "/sandbox/more"); err == nil {
		t.Error("a part of the file is there")
	}
	if err := box.Remove(t.Context(), "/sandbox/big", false); err != nil {
		t.Errorf("remove: %v", err)
	}
	if exit, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"true"}, Cwd: "/sandbox"}, sandbox.Streams{}); err != nil ||
		exit.ExitCode() != 0 {
		t.Errorf("with space again: %+v, %v", exit, err)
	}
}

// kill kills the supervisor of a sandbox, or all of its place.
func (p pipePlace) kill(t *testing.T, all bool) {
	t.Helper()
	b, f := p.backend(t)
	box, err := b.Create(t.Context(), spec("killed-1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var labels wire.PlaceLabels
	data, err := os.ReadFile(p.dir + "/place/agentsh/remote/killed-1/labels.json")
	if err == nil {
		err = json.Unmarshal(data, &labels)
	}
	if err != nil || labels.PID <= 1 {
		t.Fatalf("%s, %v", data, err)
	}
	wrote := began{make(chan struct{}, 1)}
	go func() {
		<-wrote.once
		if all {
			f.killCarriers()
		}
		_ = syscall.Kill(labels.PID, syscall.SIGKILL)
	}()
	_, err = box.Run(
		t.Context(),
		wire.ExecRequest{Argv: []string{"sh", "-c", "echo begun; sleep 1000"}, Cwd: "/sandbox"},
		sandbox.Streams{Stdout: wrote},
	)
	if err == nil {
		t.Error("a command of a killed supervisor has a result")
	}
	<-box.Gone()
	if cause := box.Cause(); !errors.Is(cause, sandbox.ErrGone) || !all && !strings.Contains(cause.Error(), "killed") {
		t.Errorf("Cause: %v", cause)
	}
	log, err := box.AuditLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	if err := box.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	if all { // nobody is left there who removes it
		if wrong, err := work(t.Context(), b, "killed-2", t.TempDir()); errors.Join(wrong, err) != nil {
			t.Errorf("afterwards: %v, %v", wrong, err)
		}
	}
	p.nothingLeft(t)
}

// TestManySandboxesOfAHost has sandboxes of several controllers at one place. What a controller
// leaves that was killed is removed, and nothing else.
func TestManySandboxesOfAHost(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	program, dir := testenv.Agentsh(t), t.TempDir()
	address := testenv.SSHPlace(t, dir)
	sandboxes, _ := strconv.Atoi(os.Getenv("AGENTSH_FAULTS"))
	open := func(state string) *remote.Backend {
		cfg := remote.Config{State: openState(t, filepath.Join(dir, state)), Agentsh: program, Look: true}
		b, err := remote.Open(remote.NameSSH, address, "", cfg)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	left, err := open("a").Create(t.Context(), spec("left-1"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range max(4, min(sandboxes, 20)) {
		b, id, out := open([]string{"a", "b"}[i%2]), fmt.Sprint("many-", i), t.TempDir()
		all.Go(func() {
			if wrong, err := work(t.Context(), b, id, out); errors.Join(wrong, err) != nil {
				t.Errorf("%s: %v, %v", id, wrong, err)
			}
		})
	}
	all.Wait()
	select {
	case <-left.Gone():
		t.Errorf("one of them ended another: %v", left.Cause())
	default:
	}
	// A controller that is restarted has its directory, and no lock.
	if err := os.RemoveAll(filepath.Join(dir, "a/state/sandboxes/left-1")); err != nil {
		t.Fatal(err)
	}
	if found, err := open("b").Collect(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("another controller collects %+v, %v", found, err)
	}
	if found, err := open("a").Collect(t.Context()); err != nil || len(found) != 1 || found[0].ID != "left-1" {
		t.Errorf("its controller collects %+v, %v", found, err)
	}
	<-left.Gone()
	_ = left.Delete(t.Context()) // its directory is gone
	if there, _ := filepath.Glob(dir + "/place/agentsh/remote/*"); len(there) != 0 {
		t.Errorf("left: %q", there)
	}
}
