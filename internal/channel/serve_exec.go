package channel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// maxControl is the number of control messages of one command that may wait for the
// handler.
const maxControl = 64

// serveExec serves one command.
func (s *Server) serveExec(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	s.cfg.Clients.Count(1)
	defer s.cfg.Clients.Count(-1)
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
	out, errOut := newGatherer(ch), newGatherer(ch.Stderr())
	var once sync.Once
	var told wire.Exit
	exited := func(e wire.Exit) {
		e.Message, e.Hint = clip(e.Message), clip(e.Hint)
		once.Do(func() { told = e; notify(ch, reqExit, e) })
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
		streams := wire.Streams{Stdout: out, Stderr: errOut, Control: control, Exited: exited,
			Started: func(m wire.Started) { notify(ch, reqStarted, m) }}
		if req.Stdin {
			streams.Stdin = stdin
		}
		if !s.cfg.Clients.Shared { // the session ends with its only client
			streams.Gone = s.gone
		}
		exit, tree, err = s.cfg.Handler.Exec(ctx, req, streams)
		if err != nil && exit.Cause == "" { // else the exit says why the session ended
			exit = wire.Exit{Kind: wire.ExitLost, Message: err.Error()}
		}
	}
	if len(tree.Leftover) > maxLeftover {
		tree.Leftover = tree.Leftover[:maxLeftover]
	}
	end := execEnd{Output: wire.OutputEnd{Stdout: out.close(), Stderr: errOut.close()}, Tree: tree}
	exit.Message, exit.Hint = clip(exit.Message), clip(exit.Hint)
	once.Do(func() { end.Exit = &exit })
	if (exit.Kind == wire.ExitLost || exit.Cause != "") && told.Kind != wire.ExitLost && told.Cause == "" {
		end.Exit = &exit // the exit was sent before, but this result is the final one
	}
	notify(ch, reqEnd, end)
}

// execEnd is the last message of a command. At that time its output has ended and none
// of its processes is left. Exit is nil if it was sent before.
type execEnd struct {
	Exit   *wire.Exit     `json:"exit,omitempty"`
	Output wire.OutputEnd `json:"output"`
	Tree   wire.TreeEmpty `json:"tree"`
}

// execRequest handles one request that arrives beside the data of a command.
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
			return false // the handler is slow; the reply informs the client
		}
	}
	return false
}

// checkExec refuses a request that cannot be executed as specified.
func (s *Server) checkExec(req wire.ExecRequest) error {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return fmt.Errorf("argv is empty")
	}
	lists := [][]string{req.Argv, req.Env, {req.Cwd, req.Program}}
	for _, w := range req.Otherwise {
		if len(w.Argv) == 0 || w.Argv[0] == "" {
			return fmt.Errorf("argv is empty")
		}
		lists = append(lists, w.Argv, []string{string(w.Program)})
	}
	for _, list := range lists {
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

// stdinReader distinguishes the end of a client's input from the end of the
// connection.
type stdinReader struct {
	r    io.Reader
	n    int64
	end  chan int64 // the number of bytes that the client sent
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
	select { // both may be ready: the number from the client takes precedence
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

// gatherTime and gatherSize bound how long, and how much, small output is buffered
// before it is sent. A packet costs its receiver far more memory than its few bytes.
// Some kernels reset a vsock connection that has many small unread packets.
const (
	gatherTime = 2 * time.Millisecond
	gatherSize = 32 << 10 // bytes
)

// gatherer sends a stream's output. It sends at once if it has not sent recently;
// otherwise it buffers. Its lock is held while its stream is blocked, which also
// blocks the writers of that stream.
type gatherer struct {
	w io.Writer

	mu     sync.Mutex
	buf    []byte
	last   time.Time // of the last packet
	timer  *time.Timer
	sent   int64
	err    error // permanent error of the stream
	closed bool
}

func newGatherer(w io.Writer) *gatherer {
	g := &gatherer{w: w}
	g.timer = time.AfterFunc(time.Hour, g.tick)
	g.timer.Stop()
	return g
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, io.ErrClosedPipe
	}
	if len(g.buf)+len(p) > gatherSize {
		g.flush()
	}
	if len(p) >= gatherSize {
		g.send(p)
		return g.result(p)
	}
	wait := gatherTime - time.Since(g.last)
	if len(g.buf) == 0 && wait > 0 {
		g.timer.Reset(wait)
	}
	g.buf = append(g.buf, p...)
	if wait <= 0 {
		g.flush()
	}
	return g.result(p)
}

func (g *gatherer) result(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	return len(p), nil
}

func (g *gatherer) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
}

func (g *gatherer) flush() {
	if len(g.buf) > 0 {
		g.send(g.buf)
		g.buf = g.buf[:0]
	}
}

func (g *gatherer) send(p []byte) {
	if g.err != nil {
		return
	}
	var n int
	n, g.err = g.w.Write(p)
	g.sent += int64(n)
	g.last = time.Now()
}

// close sends the remaining bytes and returns how many bytes were sent in all.
func (g *gatherer) close() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flush()
	g.closed = true
	g.timer.Stop() // a later tick finds nothing to send
	return g.sent
}
