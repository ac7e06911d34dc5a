package supervisor

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// sendGarbage writes a message that is none to the sockets of another process.
func sendGarbage(t *testing.T, pid int, packet []byte) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range fds {
		link, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + entry.Name())
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || !strings.HasPrefix(link, "socket:") {
			continue
		}
		ours, err := unix.PidfdGetfd(process, fd, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = unix.Write(ours, packet)
		if unix.Close(ours); err == nil {
			return
		}
	}
	t.Fatal("it has no socket that can be written to")
}

// endsWith has a fault end a session while a command runs. Its caller and the log say
// the cause.
func endsWith(t *testing.T, policy string, cause wire.Cause, fault func(*box)) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, policy)
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	started := make(chan struct{})
	ended := make(chan wire.Exit, 1)
	go func() {
		exit, _, _ := b.Exec(context.Background(), wire.ExecRequest{ID: "waits", Argv: []string{"sleep", "1000"}},
			wire.Streams{Started: func(wire.Started) { close(started) }})
		ended <- exit
	}()
	<-started
	fault(b)
	exit := <-ended
	ending := cause.Ending()
	if exit.Cause != cause || exit.ExitCode() != 125 || !strings.Contains(exit.Message, ending.Sentence) || exit.Hint != ending.Hint {
		t.Errorf("the command ended with %+v", exit)
	}
	_ = s.Close() // it says what the test did
	var last wire.Event
	if err := audit.ReadSince(log, 0, func(e wire.Event) { last = e }); err != nil {
		t.Fatal(err)
	}
	if last.Phase != "end" || last.Cause != cause {
		t.Errorf("the log ends with %+v", last)
	}
}

// A part of a session that says what it cannot say is not trusted any longer.
func TestAMalformedMessageEndsTheSession(t *testing.T) {
	for name, tt := range map[string]struct {
		pid    func(*Session) int
		packet []byte
	}{
		"first process, unknown kind":  {func(s *Session) int { return s.init.PID() }, []byte("?")},
		"first process, short message": {func(s *Session) int { return s.init.PID() }, []byte("X")},
		"file server":                  {func(s *Session) int { return s.files.PID() }, []byte("\x01no JSON")},
	} {
		t.Run(name, func(t *testing.T) {
			endsWith(t, testPolicy, wire.CauseMessage, func(b *box) { sendGarbage(t, tt.pid(b.Session), tt.packet) })
		})
	}
}

// A shortage is the cause wherever it occurs, and every cause explains a command.
func TestTheCauseOfAnEndIsTheShortageBehindIt(t *testing.T) {
	for _, tt := range []struct {
		cause  wire.Cause
		reason error
		want   wire.Cause
	}{
		{wire.CauseNetwork, errors.New("closed"), wire.CauseNetwork},
		{wire.CauseNetwork, os.NewSyscallError("accept", unix.EMFILE), wire.CauseDescriptors},
		{wire.CauseNotifications, os.NewSyscallError("ioctl", unix.ENOMEM), wire.CauseMemory},
		{wire.CauseInit, errors.Join(audit.ErrNotWritten, unix.ENOSPC), wire.CauseAudit},
		{wire.CauseIdleTimeout, nil, wire.CauseIdleTimeout},
	} {
		why := newEnded(tt.cause, tt.reason)
		if why.Cause != tt.want || !errors.Is(why, ErrEnded) || tt.reason != nil && !errors.Is(why, tt.reason) {
			t.Errorf("%s %v: %+v", tt.cause, tt.reason, why)
		}
		for kind, code := range map[string]int{wire.ExitSignaled: 0, wire.ExitExited: 7} {
			if exit := explained(wire.Exit{Kind: kind, Code: code, Signal: 9}, nil, why); exit.Cause != tt.want || exit.Hint == "" {
				t.Errorf("%s: %+v", tt.cause, exit)
			}
		}
		for _, own := range []wire.Exit{{Kind: wire.ExitExited}, {Kind: wire.ExitDenied}, {Kind: wire.ExitDeadline}} {
			if exit := explained(own, nil, why); exit != own && tt.want != wire.CauseAudit { // that may concern its own events
				t.Errorf("%s: %+v became %+v", tt.cause, own, exit)
			}
		}
	}
}
