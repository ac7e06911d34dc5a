package channel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// A plain client is OpenSSH, or another program that knows SSH alone. It says no hello,
// and opens the channels of RFC 4254 only. Each session and each forwarded connection
// becomes a command with [wire.ExecRequest.Via].

// clientVersion is the version of SSH of clients that say hello.
const clientVersion = "SSH-2.0-agentctl"

const (
	typePlain = "session" // RFC 4254, section 6
	maxPlain  = 32        // channels of a plain client
	maxEnv    = 64 << 10  // bytes of the variables of one session
)

// admitsPlain reports whether plain clients are served.
func (s *Server) admitsPlain() bool { return s.relay != nil || s.cfg.Clients.Shared }

// exec runs a command of a plain client.
func (s *Server) exec(ctx context.Context, req wire.ExecRequest, streams wire.Streams) (wire.Exit, error) {
	if s.relay != nil {
		return s.relay.exec(ctx, req, streams)
	}
	s.cfg.Clients.Count(1)
	defer s.cfg.Clients.Count(-1)
	req.ID = rand.Text()
	if err := s.checkExec(req); err != nil {
		return wire.Exit{Kind: wire.ExitSpawnFailed, Code: 125, Message: "request refused: " + err.Error()}, nil
	}
	exit, _, err := s.cfg.Handler.Exec(ctx, req, streams)
	return exit, err
}

// plainSession is a session channel of a plain client.
type plainSession struct {
	server  *Server
	ch      ssh.Channel
	tty     *wire.TTY
	env     []string
	envSize int
	started bool
	control chan wire.Control
}

// servePlain serves a session channel until both sides have closed it.
func (s *Server) servePlain(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, _ []byte) {
	ctx, cancel := context.WithCancel(ctx)
	p := &plainSession{server: s, ch: ch, control: make(chan wire.Control, maxControl)}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for r := range reqs {
		words, ok := p.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if words != nil {
			running.Go(func() {
				p.run(ctx, words)
				_ = ch.Close() // fails only when the client closed it
			})
		}
	}
}

// request handles one request. It returns the words of the command that the request
// starts, or nil.
func (p *plainSession) request(r *ssh.Request) (words []wire.ExecWords, ok bool) {
	switch r.Type {
	case "pty-req":
		var m struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}
		if p.started || ssh.Unmarshal(r.Payload, &m) != nil {
			return nil, false
		}
		p.tty = &wire.TTY{Term: m.Term, Rows: uint16(min(m.Rows, 1<<16-1)), Cols: uint16(min(m.Cols, 1<<16-1))}
		return nil, true
	case "env":
		var m struct{ Name, Value string }
		if p.started || ssh.Unmarshal(r.Payload, &m) != nil {
			return nil, false
		}
		if p.envSize += len(r.Payload); p.envSize > maxEnv {
			return nil, false
		}
		p.env = append(p.env, m.Name+"="+m.Value)
		return nil, true
	case "shell", "exec", "subsystem":
		words = plainWords(r)
		if p.started || words == nil {
			return nil, false
		}
		p.started = true
		return words, true
	case "window-change":
		var m struct{ Cols, Rows, Width, Height uint32 }
		if p.tty == nil || ssh.Unmarshal(r.Payload, &m) != nil {
			return nil, false
		}
		return nil, p.send(wire.Control{TTY: &wire.TTY{Rows: uint16(min(m.Rows, 1<<16-1)), Cols: uint16(min(m.Cols, 1<<16-1))}})
	case "signal":
		var m struct{ Name string }
		if ssh.Unmarshal(r.Payload, &m) != nil || signals[m.Name] == 0 {
			return nil, false
		}
		return nil, p.send(wire.Control{Signal: int(signals[m.Name])})
	}
	return nil, false // agents and displays are not forwarded
}

// signals are those of RFC 4254, section 6.10.
var signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP, "ILL": syscall.SIGILL,
	"INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE, "QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV,
	"TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// send passes a message to the command. It returns false if too many wait.
func (p *plainSession) send(c wire.Control) bool {
	select {
	case p.control <- c:
		return true
	default:
		return false
	}
}

// sftpServers are programs that serve sftp on their standard streams, where
// distributions have them.
var sftpServers = []string{
	"/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server", "/usr/libexec/sftp-server",
}

// plainWords returns the words of the command that a request starts; nil: there is none.
func plainWords(r *ssh.Request) []wire.ExecWords {
	var m struct{ Text string }
	if r.Type != "shell" && ssh.Unmarshal(r.Payload, &m) != nil {
		return nil
	}
	switch {
	case r.Type == "shell":
		return []wire.ExecWords{{Argv: wire.Names{"bash"}}, {Argv: wire.Names{"sh"}}}
	case r.Type == "exec":
		return []wire.ExecWords{{Argv: wire.Names{"bash", "-c", m.Text}}, {Argv: wire.Names{"sh", "-c", m.Text}}}
	case m.Text == "sftp":
		words := []wire.ExecWords{{Argv: wire.Names{"agentsh", wire.CommandSFTP}, Program: layout.Program}}
		for _, name := range sftpServers {
			words = append(words, wire.ExecWords{Argv: wire.Names{name}})
		}
		return words
	}
	return nil
}

// run runs the command of the session to its end, and reports it.
func (p *plainSession) run(ctx context.Context, words []wire.ExecWords) {
	out, errOut := p.server.output(p.ch), p.server.output(p.ch.Stderr())
	req := wire.ExecRequest{
		Argv: words[0].Argv, Program: string(words[0].Program), Otherwise: words[1:],
		Via: wire.ViaSSH, Env: p.env, Stdin: true, TTY: p.tty,
	}
	exit, err := p.server.exec(ctx, req, wire.Streams{
		Stdin: plainInput{p.ch}, Stdout: out, Stderr: errOut, Control: p.control,
	})
	if p.server.ending(ctx, exit, err) {
		<-ctx.Done() // the connection ends with the sandbox
		return
	}
	if message := plainMessage(words[0].Argv[len(words[0].Argv)-1], exit, err); message != "" {
		end := "\n"
		if p.tty != nil {
			end = "\r\n"
		}
		_, _ = errOut.Write([]byte(strings.ReplaceAll(message, "\n", end) + end))
	}
	_, _ = out.Close(), errOut.Close()
	_ = p.ch.CloseWrite() // a channel that is closed needs no end
	code := exit.ExitCode()
	if err != nil {
		code = 125
	}
	_, _ = p.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)}))
}

// ending reports whether a command has ended with the sandbox of a relay, as somebody asked for.
func (s *Server) ending(ctx context.Context, exit wire.Exit, err error) bool {
	lost := err != nil || exit.Cause != "" || exit.Kind == wire.ExitLost
	return lost && s.relay != nil && s.relay.cfg.Ending != nil && (ctx.Err() != nil || s.relay.cfg.Ending())
}

// output returns a writer of a stream of a channel. What comes over a relay was gathered
// before.
func (s *Server) output(w io.Writer) io.WriteCloser {
	if s.relay != nil {
		return nopCloser{w}
	}
	return gathered{newGatherer(w)}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

type gathered struct{ *gatherer }

func (g gathered) Close() error {
	g.close()
	return nil
}

// plainMessage says why a command did not run or ended early; empty: it ended by itself.
func plainMessage(name string, exit wire.Exit, err error) string {
	message, hint := exit.Said(text.Short(name, 200))
	switch {
	case err != nil:
		message = err.Error()
	case exit.Kind == wire.ExitDenied:
		at := wire.RuleAt{}
		if exit.Rule != nil {
			at = *exit.Rule
		}
		message, hint = strings.TrimPrefix(text.Denied(text.Short(name, 200), at.Name, at.Position(), exit.Message), "agentsh: "), exit.Hint
	case message == "":
		return ""
	}
	message = "agentsh: " + text.Short(message, maxText)
	if hint != "" {
		message += "\nagentsh: hint: " + text.Short(hint, maxText)
	}
	return message
}

// plainInput is the input of a plain client. The library reports the same end for an
// input that has ended and for a client that has gone. Only a client that is there
// answers a request.
type plainInput struct{ ch ssh.Channel }

func (p plainInput) Read(b []byte) (int, error) {
	n, err := p.ch.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, gone := p.ch.SendRequest("eof@agentsh", true, nil); gone != nil {
		return n, io.ErrUnexpectedEOF
	}
	return n, io.EOF
}

// exec runs a command of a plain client over the relay's connection.
func (r *relay) exec(ctx context.Context, req wire.ExecRequest, streams wire.Streams) (wire.Exit, error) {
	req.By, req.ID = r.cfg.By, OperatorCommand()
	if r.cfg.Dir != nil {
		req.Cwd = r.cfg.Dir()
	}
	if r.cfg.Note != nil {
		if err := r.cfg.Note(fmt.Sprintf("ssh: %s", text.Args(req.Argv, 400))); err != nil {
			return wire.Exit{}, err
		}
	}
	leave, err := r.to.enterRelay()
	if err != nil {
		return wire.Exit{}, err
	}
	defer leave()
	if req.Cwd != "" {
		if _, err := r.to.Stat(ctx, req.Cwd); errors.Is(err, fs.ErrNotExist) {
			req.Cwd = "" // after another error, the command says whether it can start there
		}
	}
	return r.to.Run(ctx, req, streams)
}
