package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/foreground"
	"agentsh/internal/wire"
)

// TestATerminalIsTheShellsWhileItsJobIsStopped stops this program beside its command, as kill -TSTP and kill -STOP do: the
// shell has its terminal back then, and the program has it raw when it goes on, with the size that it has now.
func TestATerminalIsTheShellsWhileItsJobIsStopped(t *testing.T) {
	for name, tt := range map[string]struct {
		stop  syscall.Signal
		mends string // what the shell does when its job is stopped
	}{
		"TSTP": {syscall.SIGTSTP, "true"},
		"STOP": {syscall.SIGSTOP, "stty sane"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := workDir(t)
			s := newSeat(t)
			args := append(append([]string{}, ttyFlags...), "sh", "-c", `echo ready; read word; stty size; echo "got $word"`)
			cmd := program(t, dir, args...)
			self := cmd.Path
			cmd.Path = "/bin/bash"
			cmd.Args = append([]string{"bash", "-c", `set -m; (exec -a agentsh "$@"); ` + tt.mends +
				`; stty size; echo stopped here; read go; fg >/dev/null; echo "ended $?"`, "bash", self}, args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			s.see(t, "ready")
			if err := unix.Kill(s.foreground(t), tt.stop); err != nil {
				t.Fatal(err)
			}
			s.see(t, "stopped here")
			lines := func() {
				t.Helper()
				const keys = unix.ICANON | unix.ECHO | unix.ISIG
				if got := s.mode(t); got.Lflag&keys != keys || got.Oflag&unix.OPOST == 0 {
					t.Errorf("the shell has a terminal of mode %+v", got)
				}
			}
			lines()
			s.size(t, 12, 34) // nobody in the foreground is told
			s.typeIn(t, "go\r")
			until(t, func() bool { return s.mode(t).Lflag&unix.ICANON == 0 }) // raw again
			s.typeIn(t, "word\r")
			s.see(t, "ended 0")
			if text := s.text(); !strings.Contains(text, "12 34\r\ngot word\r\n") {
				t.Errorf("%q", text)
			}
			_ = cmd.Wait()
			lines()
		})
	}
}

// foreground is the process group in the foreground of the terminal.
func (s *seat) foreground(t *testing.T) (group int) {
	t.Helper()
	raw, err := s.master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { group, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return group
}

// TestAStopThatNobodyCanEndIsNone has the program in a group without a shell, where the kernel drops SIGTSTP.
func TestAStopThatNobodyCanEndIsNone(t *testing.T) {
	s := newSeat(t)
	cmd := s.sit(t, workDir(t), append(append([]string{}, ttyFlags...), "sh", "-c",
		`echo ready; until [ "$(stty size)" = "12 34" ]; do sleep 0.05; done; echo sized; read word; echo "got $word"`)...)
	s.see(t, "ready")
	raw := s.mode(t)
	if err := cmd.Process.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(cmd.Process.Pid), "status"))
		return err == nil && strings.Contains(string(status), "ShdPnd:\t0000000000000000")
	})
	s.size(t, 12, 34) // a signal behind the first one
	s.see(t, "sized")
	s.typeIn(t, "word\r")
	s.see(t, "got word")
	if code := exitCode(cmd.Wait()); code != 0 {
		t.Errorf("exit %d", code)
	}
	if text := s.text(); strings.Contains(text, "word\r\nword") {
		t.Errorf("the terminal was not raw: %q, %+v", text, raw)
	}
}

// TestAnswersOfATerminalAreNoInputOfTheNextProgram has a terminal answer what a command asked it for, at the end of the command.
func TestAnswersOfATerminalAreNoInputOfTheNextProgram(t *testing.T) {
	s := newSeat(t)
	waiting := func() int {
		n, err := unix.IoctlGetInt(int(s.slave.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	_, err := foreground.OnTerminal(s.slave, func(context.Context, wire.ExecRequest, wire.Streams) (result, error) {
		s.typeIn(t, "\x1b[31;97R\n")
		until(t, func() bool { return waiting() > 0 })
		return result{}, nil
	})(t.Context(), wire.ExecRequest{}, wire.Streams{})
	if n := waiting(); err != nil || n > 0 {
		t.Errorf("%v, %d bytes wait for the next program", err, n)
	}
}
