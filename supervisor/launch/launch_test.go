package launch_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
)

// system is a root with the programs of the machine, read-only, and a writable
// /tmp.
func system() []launch.Mount {
	mounts := []launch.Mount{
		{Kind: launch.Bind, Source: "/usr", Target: "/usr", ReadOnly: true},
		{Kind: launch.Bind, Source: "/etc", Target: "/etc", ReadOnly: true, NoExec: true},
		{Kind: launch.Proc, Target: "/proc"},
		{Kind: launch.Dev, Target: "/dev"},
		{Kind: launch.Tmpfs, Target: "/tmp", Mode: 0o1777},
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		to, err := os.Readlink("/" + name)
		if err == nil {
			mounts = append(mounts, launch.Mount{Kind: launch.Symlink, Source: to, Target: "/" + name})
		}
	}
	return mounts
}

// session is a running session with a listener loop that lets every call go on.
type session struct {
	*launch.Init
	loop     sync.WaitGroup
	listener *seccomp.Listener
}

func compile(t testing.TB) []byte {
	t.Helper()
	filter, err := seccomp.DefaultPlan(seccomp.PlanOptions{}).Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

// config is a session of the machine's programs for whoever runs the test: user
// 1000 for root, else the user itself in a namespace of its own.
func config(t testing.TB) launch.Config {
	c := launch.Config{
		Mounts: system(), User: launch.User{UID: 1000, GID: 1000}, Hostname: "sandbox", Filter: compile(t),
		Landlock: &launch.Landlock{Scope: true},
		ReadOnly: []string{"/usr", "/etc/passwd", "/"},
	}
	if os.Geteuid() != 0 {
		c.User = launch.User{UID: os.Geteuid(), GID: os.Getegid(), Namespace: true}
	}
	return c
}

// both runs a test as root and again as user 1000 without any capability, in a
// process of its own.
func both(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	testenv.Need(t, testenv.UserNotif, testenv.UserNS)
	if os.Geteuid() != 0 {
		f(t)
		return
	}
	t.Run("as root", f)
	t.Run("as user 1000", func(t *testing.T) { asUser(t, `exec "$@"`) })
}

// asUser runs this test again as user 1000. The script runs as root before, in a
// mount namespace of its own.
func asUser(t *testing.T, script string) {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command("unshare", "-m", "sh", "-ec", script, "sh",
		"setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "/proc/self/fd/3", "-test.run=^"+name+"$", "-test.v")
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{self}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Errorf("%v\n%s", err, out)
	}
}

func start(t testing.TB, c launch.Config) *session {
	t.Helper()
	i, err := launch.NewInit(context.Background(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return serveSession(t, i)
}

// serveSession has the session's calls go on, and ends it with the test.
func serveSession(t testing.TB, i *launch.Init) *session {
	t.Helper()
	l, err := seccomp.NewListener(i.Listener())
	if err != nil {
		t.Fatal(err)
	}
	s := &session{Init: i, listener: l}
	for range 2 {
		s.loop.Add(1)
		go s.serve(t)
	}
	t.Cleanup(s.end)
	return s
}

func (s *session) end() {
	s.Close()
	s.listener.Close()
	s.loop.Wait()
}

func (s *session) serve(t testing.TB) {
	defer s.loop.Done()
	for {
		var n seccomp.Notification
		err := s.listener.Receive(&n)
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return
		}
		if errors.Is(err, seccomp.ErrGone) {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		if err := s.listener.Continue(n.ID); err != nil && !errors.Is(err, seccomp.ErrGone) {
			t.Error(err)
		}
	}
}

// run runs a shell script and returns its exit code and output.
func (s *session) run(t testing.TB, script string) (int, string) {
	t.Helper()
	return s.command(t, launch.Command{Path: "/bin/bash", Argv: []string{"bash", "-c", script}})
}

func (s *session) command(t testing.TB, c launch.Command) (int, string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout, c.Stderr = w, w
	if c.Dir == "" {
		c.Dir = "/tmp"
	}
	if c.Env == nil {
		c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"}
	}
	p, err := s.Start(context.Background(), c)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	io.Copy(&out, r)
	status, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return status.ExitCode(), strings.TrimSpace(out.String())
}

// begin starts a shell script without waiting for it.
func (s *session) begin(t testing.TB, script string) *launch.Process {
	t.Helper()
	p, err := s.Start(context.Background(), launch.Command{
		Path: "/bin/bash", Argv: []string{"bash", "-c", script}, Dir: "/tmp", Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// guard is how long a test waits for what must come.
const guard = time.Minute

// within fails the test when c is not closed in time.
func within(t testing.TB, d time.Duration, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
		return
	default:
	}
	select {
	case <-c:
	case <-time.After(d):
		t.Fatalf("%s: not within %s", what, d)
	}
}

func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	if len(os.Args) > 0 && os.Args[0] == confinedName {
		os.Exit(confined())
	}
	if len(os.Args) > 0 && os.Args[0] == serverName {
		os.Exit(serve())
	}
	if os.Getenv("LAUNCH_TEST_SUPERVISOR") != "" {
		os.Exit(supervise())
	}
	os.Exit(m.Run())
}
