package channel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Channels of forwarded connections: RFC 4254, section 7.2, and PROTOCOL of OpenSSH,
// section 2.4.
const (
	typeTCP  = "direct-tcpip"
	typeUnix = "direct-streamlocal@openssh.com"
)

// forward is a connection from the sandbox that a plain client asked for. Its channel is
// accepted when the command in the sandbox is connected.
type forward struct {
	open     ssh.NewChannel
	accepted chan struct{} // closed when ch is set
	ch       ssh.Channel
	ctx      context.Context // of the command
	cancel   func()

	mu      sync.Mutex
	line    []byte // of standard error, so far
	said    string // the last line that is an error
	written int64
	total   int64 // of the other side; -1: it may send more
}

// serveForward serves a forwarded connection to its end.
func (s *Server) serveForward(ctx context.Context, open ssh.NewChannel) {
	address, ok := forwardAddress(open)
	if !ok {
		_ = open.Reject(ssh.ConnectionFailed, "the address is not readable")
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &forward{open: open, accepted: make(chan struct{}), ctx: ctx, cancel: cancel, total: -1}
	exit, err := s.exec(ctx, wire.ExecRequest{
		Argv: []string{"agentsh", wire.CommandForward, address}, Program: layout.Program, Via: wire.ViaForward, Stdin: true,
	}, wire.Streams{Stdin: f, Stdout: forwardOutput{f}, Stderr: forwardMessages{f}})
	select {
	case <-f.accepted:
		_ = f.ch.Close() // fails only when the client closed it
		return
	default:
	}
	reason, message := ssh.ConnectionFailed, f.said
	if exit.Kind == wire.ExitDenied {
		reason = ssh.Prohibited
	}
	if said := plainMessage("agentsh", exit, err); message == "" && said != "" {
		message = said
	}
	_ = open.Reject(reason, clip(message))
}

// forwardAddress reads where a channel is to lead.
func forwardAddress(open ssh.NewChannel) (string, bool) {
	if open.ChannelType() == typeUnix {
		var m struct {
			Path     string
			Reserved string
			Port     uint32
		}
		return wire.ForwardUnix + m.Path, ssh.Unmarshal(open.ExtraData(), &m) == nil && m.Path != ""
	}
	var m struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	ok := ssh.Unmarshal(open.ExtraData(), &m) == nil && m.Host != "" && m.Port > 0 && m.Port < 1<<16
	return net.JoinHostPort(m.Host, strconv.FormatUint(uint64(m.Port), 10)), ok
}

// Read reads what the client sends, once the connection is made.
func (f *forward) Read(b []byte) (int, error) {
	select {
	case <-f.accepted:
		return plainInput{f.ch}.Read(b)
	case <-f.ctx.Done():
		return 0, io.ErrUnexpectedEOF
	}
}

// forwardOutput gets what the other side sends.
type forwardOutput struct{ f *forward }

func (o forwardOutput) Write(b []byte) (int, error) {
	select {
	case <-o.f.accepted:
	case <-o.f.ctx.Done():
		return 0, io.ErrClosedPipe
	}
	n, err := o.f.ch.Write(b)
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	o.f.written += int64(n)
	o.f.endOutput()
	return n, err
}

// endOutput tells the client that no byte follows. mu is held.
func (f *forward) endOutput() {
	if f.ch != nil && f.written == f.total {
		_ = f.ch.CloseWrite() // fails only with the channel
	}
}

// forwardMessages gets the standard error of the command.
type forwardMessages struct{ f *forward }

func (m forwardMessages) Write(b []byte) (int, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	for rest := b; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		m.f.line = append(m.f.line, line[:min(len(line), max(0, maxText-len(m.f.line)))]...)
		if rest = after; ended {
			m.f.message(string(m.f.line))
			m.f.line = m.f.line[:0]
		}
	}
	return len(b), nil
}

// message handles one line. mu is held.
func (f *forward) message(line string) {
	var total int64
	switch n, _ := fmt.Sscanf(line, wire.ForwardEnd+" %d", &total); {
	case line == wire.ForwardConnected && f.ch == nil:
		ch, reqs, err := f.open.Accept()
		if err != nil {
			f.cancel() // the connection to the client has ended
			return
		}
		f.ch = ch
		close(f.accepted)
		go func() { // ends with the channel
			ssh.DiscardRequests(reqs)
			f.cancel()
		}()
	case n == 1 && f.total < 0:
		f.total = total
		f.endOutput()
	default:
		f.said = text.Short(line, maxText)
	}
}
