package fuse

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/testenv"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

const (
	serverName = "agentsh-fuse"    // argv[0] of a file server of the tests
	insideName = "agentsh-fuse-ns" // argv[0] of the tests in their own mount namespace
	userNSName = "agentsh-userns"  // argv[0] of a session in a user namespace
)

func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	switch os.Args[0] {
	case serverName:
		os.Exit(serveForTest(os.Args[1:]))
	case lockerName:
		os.Exit(lockForTest(os.Args[1], os.Args[2]))
	case userNSName:
		os.Exit(mountInUserNS(os.Args[1], os.Args[2]))
	case insideName:
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			fmt.Fprintln(os.Stderr, "private mounts:", err)
			os.Exit(1)
		}
		unix.Umask(0o022)
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // the tests that mount skip, or fail when strict
	}
	os.Exit(runInside())
}

// runInside runs this test binary again in a mount namespace of its own.
func runInside() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = insideName
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
			fmt.Fprintln(os.Stderr, "tests in a mount namespace:", err)
			return 1
		}
	}
	return cmd.ProcessState.ExitCode()
}

// serveForTest is the file server: descriptor 3 is the control socket, then two
// for each tag.
func serveForTest(tags []string) int {
	_, older.noDirectReads = os.LookupEnv("TEST_NO_DIRECT_READS")
	_, older.coarseTimes = os.LookupEnv("TEST_COARSE_TIMES")
	_, older.noEventReader = os.LookupEnv("TEST_NO_EVENT_READER")
	_, older.noNotices = os.LookupEnv("TEST_NO_NOTICES")
	_, older.cold = os.LookupEnv("TEST_COLD")
	donated := map[string]*os.File{}
	for i, tag := range tags {
		if tag == TrashName || tag == PreviousName {
			donated[tag] = os.NewFile(uintptr(4+2*i), tag)
			break
		}
		donated[DeviceName(tag)] = os.NewFile(uintptr(4+2*i), tag)
		donated[BackingName(tag)] = os.NewFile(uintptr(5+2*i), tag)
	}
	if err := Run(context.Background(), os.NewFile(3, "control"), donated, func() {}); err != nil {
		fmt.Fprintln(os.Stderr, "file server:", err)
		return 1
	}
	return 0
}

// session is one governed mount under test.
type session struct {
	t       testing.TB
	dir     string // the mount
	backing string
	control *Control
	server  *exec.Cmd

	mu     sync.Mutex
	events []wire.Event
	signal chan struct{}
}

// options of a session; the zero value allows everything on a directory of the
// ordinary temporary filesystem.
type options struct {
	policy  string // YAML with WS for the path of the mount; empty: everything is allowed
	backing string
	owner   Owner
	file    bool   // govern the file backing instead of a directory
	trash   string // directory for soft_delete
	before  string // directory for old content, if there is no trash
	limits  trash.Limits
	// how old what is seen of the backing may be; 0: as old as usual
	cacheSeconds int
	watched      int                                              // directories that are watched; 0: as many as usual
	ask          func(context.Context, wire.Question) wire.Answer // nil: nobody can be asked
	plain        bool                                             // the server lacks CAP_SYS_ADMIN: no passthrough
	// as on kernels before 6.6 and 6.13
	noDirectReads, coarseTimes bool
	noEventReader              bool   // only requests read the events of the host's changes
	noNotices                  bool   // as in gVisor
	cold                       bool   // no file is in memory when it is opened
	refusal                    *error // why the server refuses to serve, where it must
}

const allowAll = `
file_rules:
  - {name: all, paths: ["WS/**"], operations: ["*"], decision: allow}
`

// mountPath is where a session's mount is inside the sandbox: the same path, as
// the tests have no other root.
func start(t testing.TB, o options) *session {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.FUSE)
	base := t.TempDir()
	s := &session{t: t, dir: filepath.Join(base, "ws"), backing: o.backing, signal: make(chan struct{}, 1)}
	if s.backing == "" {
		s.backing = filepath.Join(base, "backing")
	}
	if _, err := os.Lstat(s.backing); err != nil {
		must(t, os.Mkdir(s.backing, 0o755))
	}
	if o.file {
		must(t, os.WriteFile(s.dir, nil, 0o644))
	} else {
		must(t, os.Mkdir(s.dir, 0o755))
	}
	dev := mountFUSE(t, s.dir, o.file)
	back, err := os.OpenFile(s.backing, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	ours, theirs := socketPair(t)
	s.server = exec.Command("/proc/self/exe", "ws")
	s.server.Args[0] = serverName
	s.server.Stderr = os.Stderr
	s.server.Env = os.Environ()
	for name, set := range map[string]bool{
		"TEST_NO_DIRECT_READS": o.noDirectReads, "TEST_COARSE_TIMES": o.coarseTimes, "TEST_NO_EVENT_READER": o.noEventReader,
		"TEST_NO_NOTICES": o.noNotices, "TEST_COLD": o.cold,
	} {
		if set {
			s.server.Env = append(s.server.Env, name+"=1")
		}
	}
	s.server.ExtraFiles = []*os.File{theirs, dev, back}
	for name, path := range map[string]string{TrashName: o.trash, PreviousName: o.before} {
		if path != "" {
			dir, err := os.Open(path)
			must(t, err)
			s.server.Args = append(s.server.Args, name)
			s.server.ExtraFiles = append(s.server.ExtraFiles, dir)
		}
	}
	startServer(t, s.server, o.plain)
	for _, f := range s.server.ExtraFiles {
		f.Close()
	}
	s.control, err = NewControl(ours, s.event, o.ask)
	must(t, err)
	t.Cleanup(s.end)
	if o.policy == "" {
		o.policy = allowAll
	}
	text := strings.ReplaceAll(o.policy, "WS", s.dir)
	err = s.control.Configure(t.Context(), Config{
		Session: "test",
		Mounts:  []MountConfig{{Tag: "ws", Path: s.dir}},
		Policy:  []wire.PolicySource{{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + text)}},
		Owner:   o.owner,
		Trash:   o.limits,
		Approve: o.ask != nil, CacheSeconds: o.cacheSeconds, WatchedDirectories: o.watched,
		Unmapped: o.noNotices && o.refusal == nil,
	})
	if o.refusal != nil {
		*o.refusal = err
		return s
	}
	must(t, err)
	must(t, s.control.SetInit(t.Context(), os.Getpid()))
	return s
}

func startServer(t testing.TB, cmd *exec.Cmd, plain bool) {
	t.Helper()
	if !plain {
		must(t, cmd.Start())
		return
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with what it dropped
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	must(t, <-started)
}

func (s *session) end() {
	unix.Unmount(s.dir, unix.MNT_DETACH)
	s.control.Close()
	s.server.Wait()
}

func mountFUSE(t testing.TB, dir string, file bool) *os.File {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	mode := uint32(unix.S_IFDIR)
	if file {
		mode = unix.S_IFREG
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other,default_permissions", dev.Fd(), mode)
	must(t, unix.Mount("agentsh", dir, "fuse.agentsh", unix.MS_NOSUID|unix.MS_NODEV, data))
	return dev
}

func socketPair(t testing.TB) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
}

func (s *session) event(e wire.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// waitEvent returns the first event for which want is true.
func (s *session) waitEvent(want func(wire.Event) bool) wire.Event {
	s.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		s.mu.Lock()
		for _, e := range s.events {
			if want(e) {
				s.mu.Unlock()
				return e
			}
		}
		s.mu.Unlock()
		select {
		case <-s.signal:
		case <-deadline:
			s.t.Fatalf("no such event among %+v", s.events)
		}
	}
}

// path is a name in the mount; back the same in the backing.
func (s *session) path(rel string) string { return filepath.Join(s.dir, rel) }
func (s *session) back(rel string) string { return filepath.Join(s.backing, rel) }

// seed writes files to the backing before anything looked at them.
func (s *session) seed(files map[string]string) {
	s.t.Helper()
	seedTree(s.t, s.backing, files)
}

func seedTree(t testing.TB, top string, files map[string]string) {
	t.Helper()
	for rel, text := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(top, rel)), 0o755))
		must(t, os.WriteFile(filepath.Join(top, rel), []byte(text), 0o644))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closeFD(fd int) { _ = unix.Close(fd) }

func procPath(fd int) string { return tree.ProcPath(fd) }
