package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal. The caller closes both sides.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	return os.NewFile(uintptr(fd), "master"), os.NewFile(peer, "slave")
}

// leftTerminal has a command that no signal ends. The second one leaves it, and the terminal is as it was.
func (p *fixture) leftTerminal(t *testing.T, id string) {
	master, slave := openTerminal(t)
	defer master.Close()
	defer slave.Close()
	mode := func() unix.Termios {
		m, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return *m
	}
	before := mode()
	cmd := p.command("sandbox", "exec", "-t", id, "--", "sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	ended := make(chan struct{})
	go func() { // ends with the program
		defer close(ended)
		_ = cmd.Wait()
	}()
	var shown bytes.Buffer
	seen, all := make(chan struct{}), make(chan struct{})
	go func() { // ends with the terminal, which is closed below
		defer close(all)
		buf := make([]byte, 4096)
		for began := false; ; {
			n, err := master.Read(buf)
			shown.Write(buf[:n])
			if !began && strings.Contains(shown.String(), "ready") {
				began = true
				close(seen)
			}
			if err != nil {
				return
			}
		}
	}()
	<-seen
	again := time.NewTicker(5 * time.Millisecond) // signals that come together are one
	defer again.Stop()
	for left := false; !left; {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
			left = true
		case <-again.C:
		}
	}
	if mode() != before {
		t.Error("the terminal was not restored")
	}
	slave.Close()
	<-all
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(shown.String(), "did not end in time") {
		t.Errorf("exit code %d, shown: %q", code, &shown)
	}
}
