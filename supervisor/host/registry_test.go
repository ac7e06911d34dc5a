package host

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentsh/internal/channel"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor"
)

func testRegistry(t *testing.T) *Registry {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	r, err := OpenRegistry()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestASessionNameIsUnique(t *testing.T) {
	r := testRegistry(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var got []*reservation
	for range 16 {
		wg.Go(func() {
			v, err := r.reserve("same", sessionKeys{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				got = append(got, v)
			} else if !strings.Contains(err.Error(), "a session of this name runs") {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Fatalf("%d took it", len(got))
	}
	if err := got[0].cancel(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(r.dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "A", "-a", strings.Repeat("x", 33), "a\n"} {
		if _, err := r.reserve(bad, sessionKeys{}); err == nil {
			t.Errorf("%q is a name", bad)
		}
		if _, err := r.Find(bad); !errors.Is(err, ErrNoSession) {
			t.Errorf("find %q: %v", bad, err)
		}
	}
}

func TestStateOfAKilledSupervisorIsRemovedBeforeItsNameIsReused(t *testing.T) {
	r := testRegistry(t)
	killed, err := r.reserve("killed", sessionKeys{})
	if err != nil {
		t.Fatal(err)
	}
	living, err := r.reserve("living", sessionKeys{})
	if err != nil {
		t.Fatal(err)
	}
	killed.lock.Close() // as the kernel does with the descriptors of a killed process
	if r, err = OpenRegistry(); err != nil {
		t.Fatal(err)
	}
	again, err := r.reserve("killed", sessionKeys{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(living.dir); err != nil {
		t.Errorf("a living session lost its directory: %v", err)
	}
	living.lock.Close()
	again.lock.Close()
}

func TestARegistryThatOthersCouldChangeIsRefused(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"open to others": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)) },
		"a link":         func(dir string) error { return errors.Join(os.Mkdir(dir+"x", 0o700), os.Symlink(dir+"x", dir)) },
		"a file":         func(dir string) error { return os.WriteFile(dir, nil, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			t.Setenv("XDG_RUNTIME_DIR", base)
			if err := make(filepath.Join(base, "agentsh")); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenRegistry(); err == nil || !strings.Contains(err.Error(), "mode 0700") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestOnlyOwnCallersAreAnswered connects as another user, from another pid
// namespace, and plainly.
func TestOnlyOwnCallersAreAnswered(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		attributes syscall.SysProcAttr
		want       string
	}{
		"its own user":          {syscall.SysProcAttr{}, ""},
		"another user":          {syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}, "is not of this user"},
		"another pid namespace": {syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "another pid namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/usr/bin/python3", "-c", `import socket,sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)`, socket)
			cmd.SysProcAttr = &tt.attributes
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_, err = channel.CheckCaller(conn)
			conn.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheRegistryIsHiddenFromEveryView(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	shown := t.TempDir()
	for _, d := range []string{shown, filepath.Dir(shown)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", shown)
	if err := os.WriteFile(filepath.Join(shown, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(testPolicy, "'/usr/**', ", "'"+shown+"', '"+shown+"/**', '/usr/**', ", 1)
	text = strings.Replace(text, ", /tmp, '/tmp/**'", "", 1)
	boot := testBoot(t, text)
	log := openLog(t)
	s, err := supervisor.Open(context.Background(), testRequest(t, boot, log))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	r, err := OpenRegistry()
	if err != nil {
		t.Fatal(err)
	}
	v, err := r.reserve("later", sessionKeys{}) // after the view was made
	if err != nil {
		t.Fatal(err)
	}
	defer v.lock.Close()
	var printed bytes.Buffer
	request := wire.ExecRequest{ID: t.Name(), Argv: []string{"find", shown}}
	if _, _, err := s.Exec(context.Background(), request, wire.Streams{Stdout: &printed, Stderr: &printed}); err != nil {
		t.Fatal(err)
	}
	if out := printed.String(); !strings.Contains(out, "/plain") || strings.Contains(out, "later") {
		t.Errorf("shown: %s", out)
	}

	boot = testBoot(t, testPolicy)
	boot.Governed[0].Backing = shown
	_, err = supervisor.Open(context.Background(), testRequest(t, boot, log))
	if err == nil || !strings.Contains(err.Error(), "holds the sockets of sessions") {
		t.Errorf("in the workspace: %v", err)
	}
}
