package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// killWait is the time that a killed command has to end before its channel is closed.
// It is longer than the supervisor's time between TERM and KILL.
const killWait = 15 * time.Second

// Cmd is one command. It is used like that of os/exec: set the fields, then call Run,
// or Start and Wait. A Cmd cannot be used twice.
type Cmd struct {
	Request wire.ExecRequest // an empty ID becomes a random one; Stdin is set by Start

	// Stdin is read by a goroutine until Stdin or the command ends. If a Read blocks,
	// the goroutine stays until it returns. nil means /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the two streams, each from its own goroutine. nil
	// discards the stream. If a Write fails with EPIPE, the command's end of the
	// stream is closed.
	Stdout, Stderr io.Writer
	// OnStarted is called when the program is about to run. It may be nil.
	OnStarted func(wire.Started)
	// OnExit is called when the program has ended. Its output may still arrive, and
	// processes that it started may still run. It may be nil.
	OnExit func(wire.Exit)

	client  *Client
	ctx     context.Context
	link    *link
	started chan struct{} // closed when link is set or Start has failed
	wg      sync.WaitGroup
	stop    func() bool
	kill    sync.Once
	killed  chan struct{} // closed by the first kill
	out     copied
	errOut  copied

	mu   sync.Mutex
	over bool // Wait has the result: later messages are dropped
	exit *wire.Exit
	end  *execEnd
	bad  error // a message that could not be read, or a time limit
}

// copied is the number of received bytes of one stream, and the error of its writer.
type copied struct {
	n   int64
	err error
}

// failure returns the error of the writer. It returns nil if the reader of the stream
// has closed it, because the command was informed of that.
func (c copied) failure() error {
	if errors.Is(c.err, syscall.EPIPE) {
		return nil
	}
	return c.err
}

// Command prepares a command. Cancelling ctx kills the command.
func (c *Client) Command(ctx context.Context, req wire.ExecRequest) *Cmd {
	return &Cmd{Request: req, client: c, ctx: ctx, killed: make(chan struct{}), started: make(chan struct{})}
}

// Run runs a command to its end. It forwards signals and terminal sizes from s.Control
// to the command. See [Cmd.Wait] for the error.
func (c *Client) Run(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, error) {
	cmd := c.Command(ctx, req)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.OnExit = s.Stdin, s.Stdout, s.Stderr, s.Exited
	if s.Dropped != nil {
		cmd.OnStarted = func(m wire.Started) {
			if len(m.Dropped) > 0 {
				s.Dropped(m.Dropped)
			}
		}
	}
	if s.Started != nil {
		s.Started(wire.Started{})
	}
	if s.Control == nil {
		return cmd.Run()
	}
	if err := cmd.Start(); err != nil {
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	done := make(chan struct{})
	var forwarding sync.WaitGroup
	forwarding.Go(func() { cmd.forward(s.Control, done) })
	exit, err := cmd.Wait()
	close(done)
	forwarding.Wait()
	return exit, err
}

// forward sends signals and terminal sizes to the command until done is closed. It
// ignores errors: Wait reports a broken connection.
func (c *Cmd) forward(control <-chan wire.Control, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case m := <-control:
			if m.TTY != nil {
				_ = c.Resize(m.TTY.Rows, m.TTY.Cols)
			} else {
				_ = c.Signal(m.Signal)
			}
		}
	}
}

// Run calls Start and Wait.
func (c *Cmd) Run() (wire.Exit, error) {
	if err := c.Start(); err != nil {
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	return c.Wait()
}

// Start sends the request. If the supervisor refuses the request, Wait returns the
// error.
func (c *Cmd) Start() error {
	if c.link != nil {
		return errors.New("command was started before")
	}
	if c.Request.ID == "" {
		c.Request.ID = rand.Text()
	}
	c.Request.Stdin = c.Stdin != nil
	l, err := c.client.open(c.ctx, typeExec, c.Request, c.message)
	c.link = l
	close(c.started)
	if err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	c.wg.Go(func() { c.out = drain(c.Stdout, l.out, c.closer(1), c.killed) })
	c.wg.Go(func() { c.errOut = drain(c.Stderr, l.err, c.closer(2), c.killed) })
	c.wg.Go(c.reap)
	if c.Stdin != nil {
		go c.feed() // ends with Stdin or with the channel
	}
	c.stop = context.AfterFunc(c.ctx, func() { _ = c.Kill() })
	return nil
}

// Wait waits until the command and everything it started have ended and both streams
// have arrived. The error is nil if the result is known and all output was delivered.
// After an error the result has kind lost. If only output is missing, it is the known
// result.
func (c *Cmd) Wait() (wire.Exit, error) {
	if c.link == nil {
		return wire.Exit{Kind: wire.ExitLost}, errors.New("command was not started")
	}
	c.wg.Wait()
	c.stop()
	c.link.close()
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	if c.exit == nil || c.end == nil {
		return c.lost()
	}
	c.exit.NothingRefused = c.end.Tree.NothingRefused
	if c.out.n != c.end.Output.Stdout || c.errOut.n != c.end.Output.Stderr {
		return *c.exit, fmt.Errorf("output cut off: %d of %d bytes of stdout and %d of %d of stderr arrived",
			c.out.n, c.end.Output.Stdout, c.errOut.n, c.end.Output.Stderr)
	}
	if err := errors.Join(c.out.failure(), c.errOut.failure()); err != nil {
		return *c.exit, fmt.Errorf("deliver output: %w", err)
	}
	return *c.exit, nil
}

// lost is the result of a command whose end was not reported.
func (c *Cmd) lost() (wire.Exit, error) {
	ended := c.client.ended()
	err := errors.Join(c.client.cause(errors.New("the supervisor did not report the command's end")), c.bad, c.ctx.Err())
	if !ended || c.ctx.Err() != nil || errors.Is(err, ErrDead) {
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	exit := wire.CauseSupervisor.Exit(err.Error())
	if !closedByPeer(c.client.Err()) {
		exit.Hint = brokenHint
	}
	return exit, errors.New(exit.Message)
}

// brokenHint is the next step where a connection ended, and the supervisor may go on.
const brokenHint = "see that the place of the sandbox can be reached, and that what leads there passes all bytes unchanged " +
	"(no terminal, no text mode)"

// Leftover returns the processes that the supervisor could not end. It is valid after
// Wait.
func (c *Cmd) Leftover() []int {
	if c.end == nil {
		return nil
	}
	return c.end.Tree.Leftover
}

// Kill ends the command and all its descendants. If the command does not end within 15
// seconds, its channel is closed and Wait returns.
func (c *Cmd) Kill() error {
	c.kill.Do(func() { close(c.killed) })
	return c.control(wire.Control{Kill: true})
}

// Signal sends a signal to the command's process group.
func (c *Cmd) Signal(sig int) error { return c.control(wire.Control{Signal: sig}) }

// Resize sends a new terminal size to the command.
func (c *Cmd) Resize(rows, cols uint16) error {
	return c.control(wire.Control{TTY: &wire.TTY{Rows: rows, Cols: cols}})
}

// control sends one control message. If the command has ended, nothing is sent and the
// error is nil.
func (c *Cmd) control(m wire.Control) error {
	if c.link == nil {
		return errors.New("command was not started")
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ok, err := c.link.request(reqControl, data)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return c.client.cause(err)
	case !ok:
		return &wire.Error{Code: wire.CodeRefused, Message: "the supervisor takes no more signals for this command now"}
	}
	return nil
}

// message handles one typed message about the command's end.
func (c *Cmd) message(r *ssh.Request) {
	if r.WantReply {
		_ = r.Reply(false, nil)
	}
	<-c.started // the functions that are called may use the command
	if called := c.note(r); called != nil {
		called()
	}
}

// note stores a message and returns the function to call, or nil.
func (c *Cmd) note(r *ssh.Request) (called func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	var err error
	switch r.Type {
	case reqStarted:
		var m wire.Started
		if err = json.Unmarshal(r.Payload, &m); err == nil && c.OnStarted != nil {
			called = func() { c.OnStarted(m) }
		}
	case reqExit:
		if err = once(r.Payload, &c.exit); err == nil {
			called = c.exited(*c.exit)
		}
	case reqEnd:
		if err = once(r.Payload, &c.end); err == nil && c.end.Exit != nil {
			if c.exit == nil {
				called = c.exited(*c.end.Exit)
			}
			c.exit = c.end.Exit
		}
	}
	if err != nil {
		c.bad = fmt.Errorf("%s: %w", r.Type, err)
		called = c.giveUp // no other message can replace it
	}
	return called
}

// giveUp closes the channel. The link is missing if the start failed meanwhile.
func (c *Cmd) giveUp() {
	if c.link != nil {
		c.link.close()
	}
}

func (c *Cmd) exited(e wire.Exit) func() {
	if c.OnExit == nil {
		return nil
	}
	return func() { c.OnExit(e) }
}

// once decodes a message that may arrive only once.
func once[T any](data []byte, to **T) error {
	if *to != nil {
		return errors.New("came twice")
	}
	var m T
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	*to = &m
	return nil
}

// reap waits for the end of the command. It kills a command that outlives its deadline,
// which the supervisor enforces, and closes the channel of a killed command that does
// not end.
func (c *Cmd) reap() {
	var late <-chan time.Time
	if ms := c.Request.DeadlineMS; ms > 0 && ms < math.MaxInt64/int64(2*time.Millisecond) {
		timer := time.NewTimer(time.Duration(ms)*time.Millisecond + killWait)
		defer timer.Stop()
		late = timer.C
	}
	why := fmt.Errorf("the supervisor did not end the command within %s of the request: %w", killWait, ErrDead)
	select {
	case <-c.link.ended:
		return
	case <-c.killed:
	case <-late:
		why = fmt.Errorf("the supervisor did not end the command within %s of its deadline: %w", killWait, ErrDead)
		go func() { _ = c.Kill() }() // ends with the channel
	}
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-c.link.ended:
	case <-timer.C:
		c.mu.Lock()
		c.bad = errors.Join(c.bad, why)
		c.mu.Unlock()
		c.link.close()
	}
}

// feed sends the command's input and then its length.
func (c *Cmd) feed() {
	n, err := copyStream(c.link.ch, c.Stdin)
	if err != nil {
		return // no length is sent: the command must not take a truncated input as complete
	}
	data, err := json.Marshal(n)
	if err != nil {
		return
	}
	if _, err := c.link.ch.SendRequest(reqStdinEnd, false, data); err == nil {
		_ = c.link.ch.CloseWrite() // fails only with the channel
	}
}

// closer closes an output of the command that no reader receives any more. If the
// supervisor does not support that, the command continues to write and the output is
// discarded.
func (c *Cmd) closer(output int) func(error) {
	return func(err error) {
		if errors.Is(err, syscall.EPIPE) {
			go func() { _ = c.control(wire.Control{CloseOutput: output}) }() // reading continues meanwhile; ends with the channel
		}
	}
}

// drain copies r to w until r ends: slowly once killed is closed. If w fails, drain calls
// failed and continues to read, so that the command is not blocked.
func drain(w io.Writer, r io.Reader, failed func(error), killed <-chan struct{}) copied {
	if w == nil {
		w = io.Discard
	}
	var n atomic.Int64
	from := &slowReader{r: &countReader{r, &n}, slow: killed}
	_, err := copyStream(w, from)
	if err != nil {
		failed(err)
		_, _ = copyStream(io.Discard, from)
	}
	return copied{n.Load(), err}
}

// A slowReader reads one piece in each pause once slow is closed, at most 20 MB/s. What a
// killed command has on its way is less than a window of the channel. A peer that writes on
// without end then costs no processor.
type slowReader struct {
	r    io.Reader
	slow <-chan struct{}
	n    int // bytes since the last pause
}

const (
	slowPiece = 1 << 20 // bytes
	slowPause = 50 * time.Millisecond
)

func (s *slowReader) Read(p []byte) (int, error) {
	select {
	case <-s.slow:
		if s.n >= slowPiece {
			<-time.After(slowPause)
			s.n = 0
		}
	default:
	}
	n, err := s.r.Read(p)
	s.n += n
	return n, err
}

type countReader struct {
	r io.Reader
	n *atomic.Int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}
