package netns_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/netns"
)

const tcpPort, dnsPort = 61081, 53

// nftables is asked for by root; user 1000 is root's child.
var nftables = testenv.That("nf_tables", func() error {
	if os.Geteuid() != 0 {
		return nil
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			rules, _ := netns.RedirectIPv4(netns.Ports{TCP: tcpPort, DNS: dnsPort})
			err = rules.Send()
		}
		result <- err
	}()
	return <-result
})

// namespace starts a session whose connections end at the listeners it returns,
// by the name of their family.
func namespace(t *testing.T) (*launch.Init, map[string]net.Listener, net.PacketConn) {
	t.Helper()
	testenv.Need(t, testenv.UserNotif, testenv.UserNS, nftables)
	filter, err := seccomp.DefaultPlan(seccomp.PlanOptions{}).Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	c := launch.Config{User: launch.User{UID: 1000, GID: 1000}, Filter: filter, ReadOnly: []string{"/usr"}, Mounts: []launch.Mount{
		{Kind: launch.Bind, Source: "/usr", Target: "/usr", ReadOnly: true},
		{Kind: launch.Bind, Source: "/etc", Target: "/etc", ReadOnly: true},
		{Kind: launch.Proc, Target: "/proc"}, {Kind: launch.Dev, Target: "/dev"},
		{Kind: launch.Symlink, Source: "usr/lib", Target: "/lib"}, {Kind: launch.Symlink, Source: "usr/lib64", Target: "/lib64"},
		{Kind: launch.Symlink, Source: "usr/bin", Target: "/bin"}, {Kind: launch.Tmpfs, Target: "/tmp", Mode: 0o1777},
	}}
	if os.Geteuid() != 0 {
		c.User = launch.User{UID: os.Geteuid(), GID: os.Getegid(), Namespace: true}
	}
	for tag, family := range map[string]int{"4": unix.AF_INET, "6": unix.AF_INET6} {
		c.Network.Sockets = append(c.Network.Sockets, launch.Socket{Tag: tag, Family: family, Type: unix.SOCK_STREAM, Port: tcpPort})
	}
	c.Network.Sockets = append(c.Network.Sockets, launch.Socket{Tag: "dns", Family: unix.AF_INET, Type: unix.SOCK_DGRAM, Port: dnsPort},
		launch.Socket{Tag: "diag", Family: unix.AF_NETLINK, Type: unix.SOCK_RAW, Port: unix.NETLINK_SOCK_DIAG})
	for tag, setup := range map[string]func(netns.Ports) (_, _ netns.Batch){"rules4": netns.RedirectIPv4, "rules6": netns.RedirectIPv6} {
		rules, route := setup(netns.Ports{TCP: tcpPort, DNS: dnsPort})
		c.Network.Netlink = append(c.Network.Netlink,
			launch.Netlink{Tag: tag, Protocol: rules.Protocol, Messages: rules.Messages, Acks: rules.Acks},
			launch.Netlink{Tag: "route", Protocol: route.Protocol, Messages: route.Messages, Acks: route.Acks, After: true})
	}
	i, err := launch.NewInit(context.Background(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	listeners := map[string]net.Listener{}
	for _, tag := range []string{"4", "6"} {
		f := i.Socket(tag)
		if listeners[tag], err = net.FileListener(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { listeners[tag].Close() })
	}
	f := i.Socket("dns")
	dns, err := net.FilePacketConn(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { dns.Close() })
	return i, listeners, dns
}

// serve lets every notified call of the session go on.
func serve(t *testing.T, i *launch.Init) {
	t.Helper()
	l, err := seccomp.NewListener(i.Listener())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			var n seccomp.Notification
			if err := l.Receive(&n); errors.Is(err, seccomp.ErrGone) {
				continue
			} else if err != nil {
				return
			}
			_ = l.Continue(n.ID)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// both runs a test as root and again as user 1000, in a process of its own.
func both(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	testenv.Need(t, testenv.UserNotif, testenv.UserNS, nftables)
	if os.Geteuid() != 0 {
		f(t)
		return
	}
	t.Run("as root", f)
	t.Run("as user 1000", func(t *testing.T) {
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		defer self.Close()
		name, _, _ := strings.Cut(t.Name(), "/")
		cmd := exec.Command(
			"setpriv",
			"--reuid",
			"1000",
			"--regid",
			"1000",
			"--clear-groups",
			"/proc/self/fd/3",
			"-test.run=^"+name+"$",
			"-test.v",
		)
		cmd.Dir, cmd.ExtraFiles = "/", []*os.File{self}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// talk connects to every destination, says a word, and hears the answer.
const talk = `import socket, sys
for a in sys.argv[1:]:
    host, port = a.rsplit(",", 1)
    s = socket.create_connection((host, int(port)))
    s.sendall(b"hello\n")
    print(s.makefile().readline().strip(), s.getpeername()[0], s.getpeername()[1])
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b"question", ("9.9.9.9", 53))
print(u.recvfrom(100))
for host, port in (("9.9.9.9", 443), ("1.2.3.4", 123)):
    try: u.sendto(b"x", (host, port)); print("sent")
    except PermissionError: print("refused")
u6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try: u6.sendto(b"x", ("2001:db8::1", 443)); print("sent")
except PermissionError: print("refused")
`

func TestOutgoingConnectionsAreRedirectedToTheListeners(t *testing.T) {
	both(t, func(t *testing.T) {
		i, listeners, dns := namespace(t)
		serve(t, i)
		diag, err := netns.NewSockets(i.Socket("diag"))
		if err != nil {
			t.Fatal(err)
		}
		defer diag.Close()
		for _, l := range listeners {
			go echo(t, l, diag)
		}
		go func() {
			buf := make([]byte, 100)
			n, from, err := dns.ReadFrom(buf)
			if err == nil {
				_, _ = dns.WriteTo(append([]byte("answer to "), buf[:n]...), from)
			}
		}()
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		p, err := i.Start(context.Background(), launch.Command{Path: "/usr/bin/python3", Argv: []string{"python3", "-c", talk,
			"192.0.2.1,443", "2001:db8::7,80", "::ffff:192.0.2.9,8080", "10.0.0.1,1"}, Dir: "/", Stdout: write, Stderr: write})
		write.Close()
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for s := bufio.NewScanner(read); s.Scan(); {
			lines = append(lines, s.Text())
		}
		if status, err := p.Wait(); err != nil || status.ExitCode() != 0 {
			t.Errorf("%v %v", status, err)
		}
		want := []string{
			"192.0.2.1:443 known 192.0.2.1 443", "[2001:db8::7]:80 known 2001:db8::7 80", "192.0.2.9:8080 known ::ffff:192.0.2.9 8080",
			"10.0.0.1:1 known 10.0.0.1 1", "(b'answer to question', ('9.9.9.9', 53))", "refused", "refused", "refused",
		}
		if strings.Join(lines, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\ninstead of\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	})
}

// echo answers each connection with where it was meant to go, and whether its
// socket is found.
func echo(t *testing.T, l net.Listener, diag *netns.Sockets) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = bufio.NewReader(c).ReadString('\n')
		to, err := netns.Original(c)
		if err != nil {
			t.Error(err)
		}
		known := "known"
		if inode, err := diag.TCP(c.RemoteAddr().(*net.TCPAddr).AddrPort(), to); err != nil || inode == 0 {
			known = "unknown: " + err.Error()
		}
		_, _ = c.Write([]byte(to.String() + " " + known + "\n"))
		_ = c.Close()
	}
}

func TestASocketThatDoesNotExistIsNotFound(t *testing.T) {
	both(t, func(t *testing.T) {
		i, _, _ := namespace(t)
		serve(t, i)
		diag, err := netns.NewSockets(i.Socket("diag"))
		if err != nil {
			t.Fatal(err)
		}
		defer diag.Close()
		if inode, err := diag.TCP(netip.MustParseAddrPort("127.0.0.1:4000"), netip.MustParseAddrPort("192.0.2.1:443")); !errors.Is(
			err,
			unix.ENOENT,
		) {
			t.Errorf("%d, %v", inode, err)
		}
	})
}

// The session's loop asks while the network is closed.
func TestLookupsAndCloseAtOnce(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		t.Fatal(err)
	}
	diag, err := netns.NewSockets(os.NewFile(uintptr(fd), "sockets"))
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		nowhere := netip.MustParseAddrPort("192.0.2.1:443")
		for once := sync.OnceFunc(func() { close(began) }); ; once() {
			if _, err := diag.TCP(nowhere, nowhere); !errors.Is(err, unix.ENOENT) {
				if !errors.Is(err, unix.EBADF) {
					t.Error(err)
				}
				return
			}
		}
	})
	<-began
	if err := diag.Close(); err != nil {
		t.Error(err)
	}
	asking.Wait()
}
