package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func TestBackends(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	program := testenv.Agentsh(t)
	open := func(t *testing.T) (statedir.Dir, string) {
		t.Helper()
		dir := t.TempDir()
		return openState(t, dir), dir
	}
	t.Run("local", func(t *testing.T) {
		state, _ := open(t)
		Run(t, local.New(local.Config{State: state, Agentsh: program}))
	})
	t.Run("ssh", func(t *testing.T) {
		state, dir := open(t)
		b, err := remote.Open(remote.NameSSH, testenv.SSHPlace(t, dir), "", remote.Config{State: state, Agentsh: program, Look: true})
		if err != nil {
			t.Fatal(err)
		}
		Run(t, b)
	})
	for _, user := range []string{"nobody-home", "root"} {
		t.Run("ssh to busybox as "+user, func(t *testing.T) {
			if user == "root" {
				testenv.Asked(t, "AGENTSH_FAULTS", "remote")
			}
			state, dir := open(t)
			b, err := remote.Open(remote.NameSSH, testenv.SSHBusybox(t, dir, user), "", remote.Config{State: state, Agentsh: program, Look: true})
			if err != nil {
				t.Fatal(err)
			}
			Run(t, b, sandbox.Container{User: strings.TrimPrefix(user, "root")})
		})
	}
	for name, at := range map[string]string{
		"unix": "unix:DIR/s", "tcp": "tcp:127.0.0.1:0", "ws": "ws:127.0.0.1:0", "tcp over streams that break": "tcp:127.0.0.1:0",
		"wss behind nginx": "ws:127.0.0.1:0", "vsock": "vsock:7001",
	} {
		t.Run("socket "+name, func(t *testing.T) {
			if name == "vsock" {
				testenv.Asked(t, "AGENTSH_TEST_VSOCK", "kernels")
			}
			state, dir := open(t)
			address, key := listen(t, program, dir, at)
			if name == "vsock" {
				address = "vsock://1:7001" // the loopback, see vsock(7)
			}
			if strings.Contains(name, "nginx") {
				address = terminating(t, dir, strings.TrimPrefix(address, "ws://"))
			}
			if strings.Contains(name, "break") {
				address = "tcp://" + breaking(t, strings.TrimPrefix(address, "tcp://"))
			}
			b, err := remote.Open(remote.NameSocket, address, key, remote.Config{State: state, Look: true})
			if err != nil {
				t.Fatal(err)
			}
			Run(t, b)
			keysAreHidden(t, b, key)
			if left, _ := filepath.Glob(dir + "/place/agentsh/remote/*"); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	for name, faults := range map[string][]fault{"exec": nil, "exec over streams that break": manyCuts(8)} {
		t.Run(name, func(t *testing.T) {
			p := pipePlace{dir: t.TempDir(), program: program}
			b, _ := p.backend(t, faults...)
			Run(t, b)
			p.nothingLeft(t)
		})
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }

func openState(t testing.TB, dir string) statedir.Dir {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// listen starts a place that listens at an address, and returns the address for controllers
// and the file of its key.
func listen(t testing.TB, program, dir, at string) (address, key string) {
	t.Helper()
	// Rules of the tests show this directory.
	shown, err := os.MkdirTemp("/etc", "agentsh-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shown) })
	if err := errors.Join(os.Chmod(shown, 0o755), os.WriteFile(filepath.Join(shown, "other"), []byte("shown"), 0o644)); err != nil {
		t.Fatal(err)
	}
	key = filepath.Join(shown, "key")
	secret := base64.StdEncoding.EncodeToString([]byte(rand.Text() + rand.Text()))
	if err := os.WriteFile(key, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", "--listen", strings.Replace(at, "DIR", shown, 1), "--key", key)
	cmd.Env = []string{"HOME=" + dir, "XDG_STATE_HOME=" + dir + "/place"}
	messages, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(messages)
	if !lines.Scan() {
		t.Fatalf("it does not listen: %v", cmd.Wait())
	}
	_, where, _ := strings.Cut(lines.Text(), "serving controllers at ")
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		for lines.Scan() {
			t.Errorf("the place says: %s", lines.Text())
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the place: %v", err)
		}
	})
	scheme, _, _ := strings.Cut(at, ":")
	return scheme + "://" + where, key
}

// breaking passes connections on, and breaks each after 0.7 seconds.
func breaking(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	pass := func(near net.Conn) {
		defer near.Close()
		far, err := net.Dial("tcp", to)
		if err != nil {
			return // the place has ended
		}
		defer far.Close()
		cut := time.AfterFunc(700*time.Millisecond, func() { _, _ = near.Close(), far.Close() })
		defer cut.Stop()
		all.Go(func() {
			_, _ = io.Copy(far, near)
			_ = far.Close()
		})
		_, _ = io.Copy(near, far)
	}
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { pass(near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// keysAreHidden checks that no command reads the key of the place, or sees its socket.
func keysAreHidden(t *testing.T, b sandbox.Backend, key string) {
	t.Helper()
	box, err := b.Create(t.Context(), spec("hidden-1"))
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
	if err := os.Chmod(key, 0o644); err != nil { // commands have another user here
		t.Fatal(err)
	}
	var out bytes.Buffer
	script := "cd " + filepath.Dir(key) + "; cat other key; test -S s && echo a socket; true"
	exit, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"sh", "-c", script}, Cwd: "/sandbox"}, sandbox.Streams{Stdout: &out})
	if err != nil || exit.ExitCode() != 0 || out.String() != "shown" {
		t.Errorf("%+v, %v: %q", exit, err, out.String())
	}
}
