package supervisor

import (
	"bytes"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// ownDescriptors are the open descriptors of this process that match.
func ownDescriptors(t *testing.T, match func(fd int, link string) bool) map[int]bool {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]bool{}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		link, _ := os.Readlink("/proc/self/fd/" + entry.Name()) // the directory itself is closed
		if match(fd, link) {
			out[fd] = true
		}
	}
	return out
}

func isListener(fd int, _ string) bool {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && listens == 1 && (domain == unix.AF_INET || domain == unix.AF_INET6)
}

func isNotifier(_ int, link string) bool { return link == "anon_inode:seccomp notify" }

// during is a context that ends when a reload is committed. Then the file server is stopped.
type during struct {
	context.Context
	cancel func()
	server int
}

func (d during) Err() error {
	if bytes.Contains(debug.Stack(), []byte(".Commit(")) {
		_ = unix.Kill(d.server, unix.SIGSTOP)
		d.cancel()
	}
	return d.Context.Err()
}

// faults bring about the ends of a session that nothing outside can.
var faults = map[wire.Cause]func(t *testing.T, b *box, before map[int]bool){
	wire.CauseFileServerHung: func(t *testing.T, b *box, _ map[int]bool) {
		if err := unix.Kill(b.files.PID(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		b.files.Watch(time.Millisecond, 100*time.Millisecond) // instead of a minute
	},
	wire.CauseReload: func(t *testing.T, b *box, _ map[int]bool) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if _, err := b.Reload(during{ctx, cancel, b.files.PID()}, b.cfg.Policy); err == nil {
			t.Error("the reload did not fail")
		}
	},
	wire.CauseNetwork: func(t *testing.T, _ *box, before map[int]bool) {
		ended := 0
		for fd := range ownDescriptors(t, isListener) {
			if !before[fd] {
				ended++
				if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
					t.Fatal(err)
				}
			}
		}
		if ended == 0 {
			t.Fatal("the session has no listener")
		}
	},
	wire.CauseNotifications: func(t *testing.T, b *box, before map[int]bool) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		for fd := range ownDescriptors(t, isNotifier) {
			if before[fd] {
				continue
			}
			kept, err := unix.Dup(fd) // events come as before, and cannot be received
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(kept)
			if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
		}
		_, _, _ = b.Exec(context.Background(), wire.ExecRequest{ID: "call", Argv: []string{"true"}}, wire.Streams{}) // it has a call
	},
}

// networkCausePolicy gives a session a network of its own.
const networkCausePolicy = testPolicy + "network_rules:\n  - {name: one, domains: [example.com], decision: allow}\n"

// A part of a session fails while a command runs. Its caller and the log say which.
func TestTheCallerLearnsWhichPartOfASessionFailed(t *testing.T) {
	for cause, fault := range faults {
		t.Run(string(cause), func(t *testing.T) {
			before := ownDescriptors(t, func(fd int, link string) bool { return isListener(fd, link) || isNotifier(fd, link) })
			endsWith(t, networkCausePolicy, cause, func(b *box) { fault(t, b, before) })
		})
	}
}
