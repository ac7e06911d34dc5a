package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// NameServer starts a name server that answers every query of an address with
// 127.0.0.1. It returns its address and ends with the test.
func NameServer(t testing.TB) string {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() { // until the listener closes
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// WaitFull waits until a pipe holds what it can.
func WaitFull(t testing.TB, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	late := time.Now().Add(2 * time.Minute)
	err = raw.Control(func(fd uintptr) {
		// Not a number of bytes: a page of the pipe may be partly filled.
		for room := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}; err == nil; <-time.After(time.Millisecond) {
			if n, failed := unix.Poll(room, 0); n == 0 && failed == nil {
				return
			} else if time.Now().After(late) {
				err = errors.Join(errors.New("it has room"), failed)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// WaitWriting waits until a thread of a process is in write(2) to a descriptor. See
// /proc/PID/syscall in proc_pid_syscall(5).
func WaitWriting(t testing.TB, pid, fd int) {
	t.Helper()
	want := fmt.Sprintf("%d %#x ", unix.SYS_WRITE, fd)
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range threads {
			if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), want) { // else it has ended
				return
			}
		}
		if time.Now().After(late) {
			t.Fatalf("process %d writes nothing to descriptor %d", pid, fd)
		}
	}
}
