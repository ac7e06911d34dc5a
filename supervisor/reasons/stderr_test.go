package reasons

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// standardError is what a process has as its standard error, and reads what came out.
type standardError struct {
	file *os.File
	read func() string // after the file and the process ended
}

// TestRefusalsGoOnlyWhereOutputGoes has a process with each kind of standard error. A
// program that serves the other end may trust the supervisor more than the command.
func TestRefusalsGoOnlyWhereOutputGoes(t *testing.T) {
	for name, tt := range map[string]struct {
		open    func(*testing.T) standardError
		written bool
	}{
		"a pipe":                         {openPipe, true},
		"a pair of sockets":              {openPair, true},
		"a file":                         {openFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY), true},
		"a file that is read only":       {openFile("/etc/hostname", os.O_RDONLY), false},
		"a file of the kernel":           {openFile("/proc/self/comm", os.O_WRONLY), false},
		"no file":                        {openFile("/dev/null", os.O_WRONLY), false},
		"a pipe without a reader":        {openClosedPipe, false},
		"a full pipe":                    {openFullPipe, false},
		"a socket of a service":          {openService("unix"), false},
		"a socket of datagrams":          {openService("unixgram"), false},
		"a connection":                   {openService("tcp"), false},
		"a terminal that is stopped":     {openStoppedTerminal, false},
		"a file without a name":          {openMemory(0), true},
		"a file that nobody may change":  {openMemory(unix.F_SEAL_WRITE), false},
		"a socket whose peer is stopped": {openFullPair, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tt.open(t)
			cmd := exec.Command("sleep", "1000")
			cmd.Stderr = e.file
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			id, err := target.Identify(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.PidfdOpen(id.PID, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := stderr{id.Process, fd}
			const line = "agentsh: denied: x\n"
			got := s.write(line)
			s.Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = e.file.Close()
			if got != tt.written {
				t.Errorf("written: %v", got)
			}
			if e.read != nil {
				if text := e.read(); strings.Contains(text, line) != tt.written {
					t.Errorf("received %.100q", text)
				}
			}
		})
	}
}

func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// all reads a file to its end.
func all(t *testing.T, r io.ReadCloser) func() string {
	return func() string {
		data, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
}

func openPipe(t *testing.T) standardError {
	r, w, err := os.Pipe()
	must(t, 0, err)
	return standardError{w, all(t, r)}
}

func openClosedPipe(t *testing.T) standardError {
	r, w, err := os.Pipe()
	must(t, r, err).Close()
	return standardError{file: w}
}

// fill writes until a file takes no more.
func fill(t *testing.T, f *os.File) {
	fd := int(f.Fd())
	must(t, 0, unix.SetNonblock(fd, true))
	for {
		if _, err := unix.Write(fd, make([]byte, 4096)); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	must(t, 0, unix.SetNonblock(fd, false))
}

func openFullPipe(t *testing.T) standardError {
	e := openPipe(t)
	fill(t, e.file)
	return e
}

func openPair(t *testing.T) standardError {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, 0, err)
	return standardError{os.NewFile(uintptr(fds[0]), "pair"), all(t, os.NewFile(uintptr(fds[1]), "pair"))}
}

func openFullPair(t *testing.T) standardError {
	e := openPair(t)
	fill(t, e.file)
	return e
}

func openFile(name string, flags int) func(*testing.T) standardError {
	return func(t *testing.T) standardError {
		file, err := os.OpenFile(name, flags, 0o600)
		e := standardError{file: must(t, file, err)}
		if flags&os.O_CREATE != 0 {
			r, err := os.Open(name)
			e.read = all(t, must(t, r, err))
		}
		return e
	}
}

func openMemory(seal int) func(*testing.T) standardError {
	return func(t *testing.T) standardError {
		fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, 0, err)
		if seal != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
			must(t, 0, err)
		}
		return standardError{file: os.NewFile(uintptr(fd), "log")}
	}
}

// openService connects to a socket with an address, as that of a service.
func openService(network string) func(*testing.T) standardError {
	return func(t *testing.T) standardError {
		address := filepath.Join(t.TempDir(), "socket")
		if network == "tcp" {
			address = "127.0.0.1:0"
		}
		if network == "unixgram" {
			l, err := net.ListenPacket(network, address)
			must(t, 0, err)
			t.Cleanup(func() { _ = l.Close() })
		} else {
			l, err := net.Listen(network, address)
			must(t, 0, err)
			t.Cleanup(func() { _ = l.Close() })
			address = l.Addr().String()
		}
		c, err := net.Dial(network, address)
		must(t, 0, err)
		defer c.Close()
		f, err := c.(interface{ File() (*os.File, error) }).File()
		return standardError{file: must(t, f, err)}
	}
}

func openStoppedTerminal(t *testing.T) standardError {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, 0, err)
	t.Cleanup(func() { _ = master.Close() })
	must(t, 0, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, 0, err)
	f, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, 0, err)
	must(t, 0, unix.IoctlSetInt(int(f.Fd()), unix.TCXONC, unix.TCOOFF))
	return standardError{file: f}
}
