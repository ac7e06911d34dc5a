package listen

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const childVariable = "LISTEN_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestAnAddressOfIPv4IsNotOneOfIPv6 listens at all addresses of each kind.
func TestAnAddressOfIPv4IsNotOneOfIPv6(t *testing.T) {
	for _, tt := range []struct{ address, want string }{{"0.0.0.0:0", "0.0.0.0:"}, {"[::]:0", "[::]:"}, {"127.0.0.1:0", "127.0.0.1:"}} {
		l, err := TCP(t.Context(), netip.MustParseAddrPort(tt.address))
		if err != nil {
			t.Errorf("%s: %v", tt.address, err)
			continue
		}
		if at := l.Addr().String(); !strings.HasPrefix(at, tt.want) {
			t.Errorf("%s listens at %s", tt.address, at)
		}
		_ = l.Close()
	}
}

// child answers each connection with a line, keeps it until its client ends it,
// and may have 40 descriptors.
func child() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var refused atomic.Int64
	s := &Sparing{Listener: l, Refused: func(net.Conn, error) { refused.Add(1) }}
	fmt.Fprintln(os.Stdout, l.Addr())
	for {
		c, err := s.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, "refused %d\n", refused.Load())
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

func TestAServerWithoutDescriptorsRefusesOneConnectionAfterTheOther(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (net.Conn, string, error) {
		c, err := net.Dial("tcp", strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		text, err := bufio.NewReader(c).ReadString('\n')
		return c, text, err
	}
	for round := range 3 {
		var open []net.Conn
		refused := 0
		for range 100 {
			c, _, err := dial()
			if err != nil {
				refused++
			}
			open = append(open, c)
		}
		if refused < 60 || refused > 80 {
			t.Errorf("round %d: %d of 100 connections refused", round, refused)
		}
		for _, c := range open {
			_ = c.Close()
		}
		for { // the server learns of the ends by and by
			c, text, err := dial()
			_ = c.Close()
			if err == nil {
				if text == "refused 0\n" {
					t.Error("nobody was told")
				}
				break
			}
		}
	}
}
