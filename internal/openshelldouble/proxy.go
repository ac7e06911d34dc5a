package openshelldouble

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// proxy is 'ssh-proxy': its standard streams lead to the ssh server of a sandbox. Here it is that server.
func (s programState) proxy(args []string) int {
	o, rest, err := options(args, []string{"--gateway-name", "--name"})
	if err != nil || len(rest) > 0 || len(o["--gateway-name"]) != 1 || o["--gateway-name"][0] != gatewayName || len(o["--name"]) != 1 {
		return s.usage("%v %q", err, rest)
	}
	name := o["--name"][0]
	r, err := s.load(name)
	n := s.away()
	if n > 0 {
		if err := os.WriteFile(s.path("away"), []byte(strconv.Itoa(n-1)), 0o600); err != nil {
			return s.fail("%v", err)
		}
	}
	switch {
	case s.setting("gateway") == "" || n > 0:
		return s.fail("failed to connect to the gateway")
	case err != nil:
		return s.fail("sandbox not found")
	case r.Phase != "Ready":
		return s.fail("sandbox is not ready")
	}
	proxy := s.path("sandboxes", name, "proxies", strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(proxy, nil, 0o600); err != nil {
		return s.fail("%v", err)
	}
	defer func() { _ = os.Remove(proxy) }() // a sandbox that is deleted has none
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return s.fail("%v", err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return s.fail("%v", err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	conn, channels, requests, err := ssh.NewServerConn(standard{}, config)
	if err != nil {
		return s.fail("%v", err)
	}
	if conn.User() != "sandbox" {
		return s.fail("no user %s", conn.User())
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "only sessions") // the client sees it
			continue
		}
		ch, reqs, err := c.Accept()
		if err != nil {
			return s.fail("%v", err)
		}
		go s.session(name, ch, reqs)
	}
	return 0
}

// enters reports whether a line is the first one for a shell: agentsh has its files in /tmp or /var/tmp then. These directories
// of a sandbox are its own.
func (s programState) enters(name, line string) (own string, is bool) {
	is = strings.HasPrefix(line, "exec env ") && strings.Contains(line, " XDG_STATE_HOME=") && strings.HasSuffix(line, " sh\n")
	return regexp.MustCompile(`(/var)?/tmp/agentsh-`).ReplaceAllString(line, s.path("sandboxes", name)+"/own-"), is
}

// session runs one shell. A command is one of a login shell, as in OpenShell; a shell without a command reads no files.
func (s programState) session(name string, ch ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }() // the client may have closed it
	for r := range requests {
		argv, input := []string{"/bin/bash"}, io.Reader(ch)
		switch {
		case r.Type == "exec" && len(r.Payload) > 4:
			argv = append(argv, "-lc", string(r.Payload[4:]))
		case r.Type == "shell":
		default:
			_ = r.Reply(false, nil) // the client sees it
			continue
		}
		_ = r.Reply(true, nil) // as above
		if r.Type == "shell" {
			in := bufio.NewReader(ch)
			line, err := in.ReadString('\n')
			own, is := s.enters(name, line)
			if err != nil || !is {
				return
			}
			input = io.MultiReader(strings.NewReader(own), in)
		}
		cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it ends with the sandbox
		home := s.path("sandboxes", name, "home")
		cmd.Dir, cmd.Env = home, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home}
		cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return
		}
		pid := s.path("sandboxes", name, "pids", strconv.Itoa(cmd.Process.Pid))
		_ = os.WriteFile(pid, nil, 0o600) // a sandbox that is deleted meanwhile has no directory for it
		go func() {                       // ends with the channel
			_, _ = io.Copy(in, input)
			_ = in.Close()
		}()
		_ = cmd.Wait() // its state says it
		_ = os.Remove(pid)
		code := cmd.ProcessState.ExitCode()
		if code < 0 {
			code = 255
		}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)})) //nolint:gosec // a byte
		return
	}
}

// standard is a connection by the standard streams.
type standard struct{}

func (standard) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (standard) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (standard) Close() error                { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

func (standard) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (standard) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (standard) SetDeadline(time.Time) error      { return nil }
func (standard) SetReadDeadline(time.Time) error  { return nil }
func (standard) SetWriteDeadline(time.Time) error { return nil }
