package channel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// Streams are the server's side of one command.
type Streams struct {
	// Stdin is nil when the client gives none. It returns io.EOF only where the
	// client ended its input, and io.ErrUnexpectedEOF when the client went: the
	// command's input must then stay open until the command was killed.
	Stdin io.Reader
	// Stdout and Stderr block while the client does not read. Each may be used by
	// one goroutine at a time.
	Stdout, Stderr io.Writer
	// Control carries kills, signals and sizes. It is never closed.
	Control <-chan wire.Control
	// Started tells the client that the program is about to run.
	Started func(wire.Started)
	// Exited tells the client how the program ended, before what it left behind
	// has. It may be called once; otherwise what Exec returns is told.
	Exited func(wire.Exit)
}

// maxControl is how many controls of one command wait for the handler.
const maxControl = 64

// serveExec serves one command.
func (s *Server) serveExec(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin := &stdinReader{r: ch, end: make(chan int64, 1), gone: ctx.Done()}
	control := make(chan wire.Control, maxControl)
	s.wg.Go(func() {
		defer cancel() // closing the channel ends the command
		for r := range reqs {
			ok := execRequest(r, stdin.end, control)
			if r.WantReply {
				_ = r.Reply(ok, nil)
			}
		}
	})
	out, errOut := &countWriter{w: ch}, &countWriter{w: ch.Stderr()}
	var once sync.Once
	exited := func(e wire.Exit) {
		e.Message, e.Hint = clip(e.Message), clip(e.Hint)
		once.Do(func() { notify(ch, reqExit, e) })
	}
	var req wire.ExecRequest
	var exit wire.Exit
	var tree wire.TreeEmpty
	err := readFirst(extra, ch, &req)
	if err == nil {
		err = s.checkExec(req)
	}
	if err != nil {
		exit = wire.Exit{Kind: wire.ExitSpawnFailed, Code: 125, Message: "request refused: " + err.Error()}
	} else {
		streams := Streams{Stdout: out, Stderr: errOut, Control: control, Exited: exited,
			Started: func(m wire.Started) { notify(ch, reqStarted, m) }}
		if req.Stdin {
			streams.Stdin = stdin
		}
		exit, tree, err = s.cfg.Handler.Exec(ctx, req, streams)
		if err != nil {
			exit = wire.Exit{Kind: wire.ExitLost, Message: err.Error()}
		}
	}
	exited(exit)
	if len(tree.Leftover) > maxLeftover {
		tree.Leftover = tree.Leftover[:maxLeftover]
	}
	notify(ch, reqOutputEnd, wire.OutputEnd{Stdout: out.n.Load(), Stderr: errOut.n.Load()})
	notify(ch, reqTreeEmpty, tree)
}

// execRequest takes one request beside the data of a command.
func execRequest(r *ssh.Request, end chan<- int64, control chan<- wire.Control) bool {
	switch r.Type {
	case reqStdinEnd:
		var n int64
		if json.Unmarshal(r.Payload, &n) != nil {
			return false
		}
		select {
		case end <- n:
			return true
		default:
			return false
		}
	case reqControl:
		var c wire.Control
		if json.Unmarshal(r.Payload, &c) != nil {
			return false
		}
		select {
		case control <- c:
			return true
		default:
			return false // the handler is slow; the client is told
		}
	}
	return false
}

// checkExec refuses what cannot be done as it was asked.
func (s *Server) checkExec(req wire.ExecRequest) error {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return fmt.Errorf("argv is empty")
	}
	for _, list := range [][]string{req.Argv, req.Env, {req.Cwd}} {
		for _, word := range list {
			if strings.IndexByte(word, 0) >= 0 {
				return fmt.Errorf("%.64q holds a NUL", word)
			}
		}
	}
	if req.Cwd != "" && (!path.IsAbs(req.Cwd) || path.Clean(req.Cwd) != req.Cwd) {
		return fmt.Errorf("cwd %.200q is not a clean absolute path", req.Cwd)
	}
	if req.OnDisconnect != "" && req.OnDisconnect != "kill" {
		return fmt.Errorf("on_disconnect %.64q is not offered, only kill", req.OnDisconnect)
	}
	if req.Output != "" && req.Output != "block" {
		return fmt.Errorf("output %.64q is not offered, only block", req.Output)
	}
	if req.DeadlineMS < 0 {
		return fmt.Errorf("deadline_ms %d is negative", req.DeadlineMS)
	}
	return s.cfg.Clients.claim(req.ID)
}

// stdinReader tells the end of a client's input from the end of the client.
type stdinReader struct {
	r    io.Reader
	n    int64
	end  chan int64 // how many bytes the client sent
	gone <-chan struct{}
}

func (s *stdinReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	if err == nil {
		return n, nil
	}
	select {
	case total := <-s.end:
		return n, s.ended(total)
	case <-s.gone:
	}
	select { // both may be true: what the client said counts
	case total := <-s.end:
		return n, s.ended(total)
	default:
		return n, io.ErrUnexpectedEOF
	}
}

func (s *stdinReader) ended(total int64) error {
	s.end <- total // for the next call
	if total != s.n {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// countWriter counts what went through. One goroutine at a time may write.
type countWriter struct {
	w io.Writer
	n atomic.Int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n.Add(int64(n))
	return n, err
}
