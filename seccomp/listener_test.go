package seccomp

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// listen prepares a shell text with kill(2) notified; f.Begin starts it.
func listen(t *testing.T, text string) (*Listener, *testenv.Filtered, *bytes.Buffer) {
	t.Helper()
	testenv.Need(t, testenv.UserNotif)
	var out bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Stdout, cmd.Stderr = &out, &out
	f := testenv.StartFiltered(t, cmd, unix.SYS_KILL)
	l, err := NewListener(f.Listener)
	if err != nil {
		t.Fatal(err)
	}
	return l, f, &out
}

func TestEachKindOfAnswerReachesTheCall(t *testing.T) {
	l, f, out := listen(t, "for n in 1 2 3; do kill -0 $$ && echo yes || echo no; done")
	if err := f.Begin(); err != nil {
		t.Fatal(err)
	}
	answers := []func(uint64) error{
		l.Continue,
		func(id uint64) error { return l.Value(id, 0) },
		func(id uint64) error { return l.Deny(id, unix.EPERM) },
	}
	var n Notification
	for i, answer := range answers {
		if err := l.Receive(&n); err != nil {
			t.Fatal(err)
		}
		if n.Syscall != unix.SYS_KILL || n.TID != f.Cmd.Process.Pid {
			t.Errorf("notification %d is call %d of %d", i, n.Syscall, n.TID)
		}
		if n.Args[0] != uint64(n.TID) || n.Args[1] != 0 {
			t.Errorf("the arguments are %v, not the shell's pid and 0", n.Args[:2])
		}
		if !l.Valid(n.ID) {
			t.Error("a waiting notification is not valid")
		}
		if err := answer(n.ID); err != nil {
			t.Fatal(err)
		}
		if l.Valid(n.ID) {
			t.Error("an answered notification is still valid")
		}
		if err := answer(n.ID); !errors.Is(err, ErrGone) {
			t.Errorf("the second answer gave %v, not ErrGone", err)
		}
	}
	if err := l.Receive(&n); !errors.Is(err, io.EOF) {
		t.Errorf("after the last task Receive gave %v, not io.EOF", err)
	}
	if err := f.Wait(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "yes\nyes\n") || !strings.HasSuffix(got, "no\n") {
		t.Errorf("the shell printed %q, not yes twice and no", got)
	}
}

func TestCloseEndsEveryWaitingReceive(t *testing.T) {
	l, _, _ := listen(t, "exit")
	const waiters = 4
	results := make(chan error, waiters)
	var started sync.WaitGroup
	for range waiters {
		started.Add(1)
		go func() {
			started.Done()
			results <- l.Receive(new(Notification))
		}()
	}
	started.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range waiters {
		if err := <-results; !errors.Is(err, os.ErrClosed) {
			t.Errorf("Receive gave %v, not ErrClosed", err)
		}
	}
	if l.Valid(1) || !errors.Is(l.Continue(1), os.ErrClosed) || !errors.Is(l.Close(), os.ErrClosed) {
		t.Error("a closed listener still answers")
	}
}

func TestAWaitForANotificationKeepsNoProcessor(t *testing.T) {
	testenv.GivesProcessorUp(t, func(plain bool) time.Duration {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		l := &Listener{file: os.NewFile(uintptr(fd), "no listener"), fd: fd}
		if err := l.open(); err != nil {
			t.Fatal(err)
		}
		var begun atomic.Bool
		ended, wait, wake := make(chan error), func() error { return l.Receive(&Notification{}) }, l.Close
		if plain {
			wait, wake = usualWait(t, l)
		}
		go func() {
			begun.Store(true)
			ended <- wait()
		}()
		began := time.Now()
		for !begun.Load() {
			runtime.Gosched()
		}
		took := time.Since(began)
		closed := wake()
		if err := <-ended; !errors.Is(err, os.ErrClosed) || closed != nil {
			t.Errorf("Receive gave %v after Close, which gave %v", err, closed)
		}
		return took
	})
}

// usualWait is a wait as Receive's, by a read of a pipe. It closes the listener.
func usualWait(t *testing.T, l *Listener) (wait, wake func() error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return func() error {
			_, _ = unix.Read(pipe[0], make([]byte, 1))
			_ = unix.Close(pipe[0])
			return os.ErrClosed
		}, func() error {
			return errors.Join(unix.Close(pipe[1]), l.Close())
		}
}

func TestAKilledThreadLeavesNoNotification(t *testing.T) {
	l, f, _ := listen(t, "kill -0 $$")
	if err := f.Begin(); err != nil {
		t.Fatal(err)
	}
	var n Notification
	if err := l.Receive(&n); err != nil {
		t.Fatal(err)
	}
	if err := f.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = f.Wait()
	if l.Valid(n.ID) {
		t.Error("the notification of a dead thread is valid")
	}
	if err := l.Continue(n.ID); !errors.Is(err, ErrGone) {
		t.Errorf("answering a dead thread gave %v, not ErrGone", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestOtherDescriptorsAreRefused(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := NewListener(f); err == nil {
		t.Error("/dev/null was taken for a listener")
	}
}
