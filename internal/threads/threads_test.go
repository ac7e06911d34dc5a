package threads

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("THREADS_TEST_PROGRAM") != "" {
		if err := program(); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// mostProcesses is the limit of the program's user.
const mostProcesses = 64

// program is one whose user may have no more processes when it needs threads.
func program() error {
	file := os.NewFile(3, "session")
	conn, err := net.FileConn(file)
	if err != nil {
		return err
	}
	guard, err := NewGuard(conn.(syscall.Conn))
	if err != nil {
		return err
	}
	Reserve(4)()
	limit := unix.Rlimit{Cur: mostProcesses, Max: mostProcesses}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	var all sync.WaitGroup
	free := make(chan struct{})
	for range mostProcesses / 2 {
		all.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with it
			<-free
		})
	}
	if _, err := io.ReadAll(conn); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "short:", Short())
	close(free)
	all.Wait()
	fmt.Fprintln(os.Stdout, "guard:", guard.Close(), guard.Close())
	return nil
}

// A program that can start no thread lives on, and its session ends.
func TestAProgramOutlivesAWantOfThreads(t *testing.T) {
	testenv.Need(t, testenv.Root)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "session"), os.NewFile(uintptr(pair[1]), "session")
	defer ours.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "THREADS_TEST_PROGRAM=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54018, Gid: 54018}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	said := bufio.NewScanner(out)
	if !said.Scan() || said.Text() != "ready" {
		t.Fatalf("it printed %q", said.Text())
	}
	var others []*exec.Cmd // of the same user
	end := func() {
		for _, other := range others {
			_ = other.Process.Kill()
			_ = other.Wait()
		}
		others = nil
	}
	defer end()
	for range mostProcesses {
		other := exec.Command("sleep", "1000")
		other.SysProcAttr = cmd.SysProcAttr
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, other)
	}
	if _, err := in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(ours); err != nil {
		t.Error(err)
	}
	end() // as a session ends with the connection of its init
	var rest strings.Builder
	for said.Scan() {
		fmt.Fprintln(&rest, said.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if want := fmt.Sprintf("short: true\nguard: %v %[1]v\n", ErrNone); rest.String() != want {
		t.Errorf("it printed %q, not %q", rest.String(), want)
	}
}

// A guard that is closed ends nothing, and its place is free again.
func TestGuardsAreReused(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 1000 {
		g, err := NewGuard(conn.(syscall.Conn))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.Close(), g.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := (*Guard)(nil).Close(); err != nil || Short() {
		t.Error(err, Short())
	}
}

// The monitor of the Go runtime may sleep longer than other threads. It starts threads itself,
// which must not have that from it.
func TestTheRuntimesMonitorAloneMaySleepLonger(t *testing.T) {
	testenv.Need(t, testenv.Root)
	own, err := os.ReadFile("/proc/self/timerslack_ns")
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	var all, blocked sync.WaitGroup
	defer all.Wait()
	defer close(free)
	for range 2 * runtime.GOMAXPROCS(0) { // each blocks its processor, which the monitor gives to a new thread
		blocked.Add(1)
		all.Go(func() {
			var pipe [2]int
			if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
				t.Error(err)
				blocked.Done()
				return
			}
			go func() {
				<-free
				_ = unix.Close(pipe[1])
			}()
			blocked.Done()
			_, _ = unix.Read(pipe[0], make([]byte, 1))
			_ = unix.Close(pipe[0])
		})
	}
	blocked.Wait()
	Reserve(4)()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	longer := 0
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH):
		case err != nil:
			t.Error(err)
		case string(slack) == "1000000\n":
			longer++
		case string(slack) != string(own):
			t.Errorf("thread %s: %s", thread.Name(), slack)
		}
	}
	if longer != 1 {
		t.Errorf("%d of %d threads may sleep longer", longer, len(threads))
	}
}
