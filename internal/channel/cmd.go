package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// killWait is how long a killed command may take to end before its channel is
// closed; it covers the supervisor's grace between TERM and KILL.
const killWait = 15 * time.Second

// Cmd is one command, used like that of os/exec: set the fields, then Run, or
// Start and Wait. It cannot be used twice.
type Cmd struct {
	Request wire.ExecRequest // an empty ID becomes a random one; Stdin is set by Start

	// Stdin is read by a goroutine until it ends or the command does; one that
	// blocks keeps the goroutine until its Read returns. nil is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr get the two streams, by one goroutine each. nil discards.
	// One that fails with EPIPE has its reader gone: the command's end is closed.
	Stdout, Stderr io.Writer
	// OnStarted is called when the program is about to run; nil: not.
	OnStarted func(wire.Started)
	// OnExit is called when the program ended, before its output has come and what it
	// left behind has ended; nil: not.
	OnExit func(wire.Exit)

	client *Client
	ctx    context.Context
	ch     ssh.Channel
	wg     sync.WaitGroup
	stop   func()
	kill   sync.Once
	killed chan struct{} // closed by the first kill
	ended  chan struct{} // closed when the channel's requests ended

	exit   *wire.Exit
	end    *execEnd
	bad    error // a message that could not be read
	out    copied
	errOut copied
}

// copied is how much of one stream arrived and what its writer said.
type copied struct {
	n   int64
	err error
}

// failure is what the writer said, unless its reader has gone: that the command
// was told.
func (c copied) failure() error {
	if errors.Is(c.err, syscall.EPIPE) {
		return nil
	}
	return c.err
}

// Command prepares a command. Cancelling ctx kills it.
func (c *Client) Command(ctx context.Context, req wire.ExecRequest) *Cmd {
	return &Cmd{Request: req, client: c, ctx: ctx, killed: make(chan struct{}), ended: make(chan struct{})}
}

// Run runs a command to its end and forwards signals and terminal sizes from
// s.Control to it. See [Cmd.Wait] for the error.
func (c *Client) Run(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, error) {
	cmd := c.Command(ctx, req)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.OnExit = s.Stdin, s.Stdout, s.Stderr, s.Exited
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

// forward sends signals and terminal sizes to the command until done is closed.
// A lost connection shows in the command's end, so errors are ignored here.
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

// Run is Start and Wait.
func (c *Cmd) Run() (wire.Exit, error) {
	if err := c.Start(); err != nil {
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	return c.Wait()
}

// Start sends the request. A refusal of the supervisor is the error of Wait.
func (c *Cmd) Start() error {
	if c.ch != nil {
		return errors.New("command was started before")
	}
	if c.Request.ID == "" {
		c.Request.ID = rand.Text()
	}
	c.Request.Stdin = c.Stdin != nil
	ch, reqs, err := c.client.open(c.ctx, typeExec, c.Request)
	if err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	c.ch = ch
	c.wg.Go(func() { c.listen(reqs) })
	c.wg.Go(func() { c.out = drain(c.Stdout, ch, c.closer(1)) })
	c.wg.Go(func() { c.errOut = drain(c.Stderr, ch.Stderr(), c.closer(2)) })
	c.wg.Go(c.reap)
	if c.Stdin != nil {
		go c.feed() // ends with Stdin or with the channel
	}
	afterCancel := context.AfterFunc(c.ctx, func() { _ = c.Kill() })
	c.stop = func() { afterCancel() }
	return nil
}

// Wait waits until the command and everything it started have ended and both
// streams arrived. The error is nil when the end of the command is known and
// all output was delivered; then the result says how it ended. After an error
// the result has kind lost, or the known end when only output is missing.
func (c *Cmd) Wait() (wire.Exit, error) {
	if c.ch == nil {
		return wire.Exit{Kind: wire.ExitLost}, errors.New("command was not started")
	}
	c.wg.Wait()
	c.stop()
	_ = c.ch.Close() // it was closed by the server, or has to be
	if c.exit == nil || c.end == nil {
		err := errors.Join(c.client.cause(errors.New("the command's end was not told")), c.bad, c.ctx.Err())
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	if c.out.n != c.end.Output.Stdout || c.errOut.n != c.end.Output.Stderr {
		return *c.exit, fmt.Errorf("output cut off: %d of %d bytes of stdout and %d of %d of stderr arrived",
			c.out.n, c.end.Output.Stdout, c.errOut.n, c.end.Output.Stderr)
	}
	if err := errors.Join(c.out.failure(), c.errOut.failure()); err != nil {
		return *c.exit, fmt.Errorf("deliver output: %w", err)
	}
	return *c.exit, nil
}

// Leftover are the processes that the supervisor could not end, after Wait.
func (c *Cmd) Leftover() []int {
	if c.end == nil {
		return nil
	}
	return c.end.Tree.Leftover
}

// Kill ends the command's whole tree. A command that does not end within 15
// seconds is given up: its channel is closed.
func (c *Cmd) Kill() error {
	c.kill.Do(func() { close(c.killed) })
	return c.control(wire.Control{Kill: true})
}

// Signal sends a signal to the command's process group.
func (c *Cmd) Signal(sig int) error { return c.control(wire.Control{Signal: sig}) }

// Resize sends a new size to a command with a terminal.
func (c *Cmd) Resize(rows, cols uint16) error {
	return c.control(wire.Control{TTY: &wire.TTY{Rows: rows, Cols: cols}})
}

// control sends one control. An ended command takes none, which is no error.
func (c *Cmd) control(m wire.Control) error {
	if c.ch == nil {
		return errors.New("command was not started")
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ok, err := c.ch.SendRequest(reqControl, true, data)
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

// listen takes the typed messages of the command's end.
func (c *Cmd) listen(reqs <-chan *ssh.Request) {
	defer close(c.ended)
	for r := range reqs {
		c.message(r)
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

func (c *Cmd) message(r *ssh.Request) {
	var err error
	switch r.Type {
	case reqStarted:
		var m wire.Started
		if err = json.Unmarshal(r.Payload, &m); err == nil && c.OnStarted != nil {
			c.OnStarted(m)
		}
	case reqExit:
		if err = once(r.Payload, &c.exit); err == nil && c.OnExit != nil {
			c.OnExit(*c.exit)
		}
	case reqEnd:
		if err = once(r.Payload, &c.end); err == nil && c.end.Exit != nil {
			told := c.exit != nil
			if c.exit = c.end.Exit; c.OnExit != nil && !told {
				c.OnExit(*c.exit)
			}
		}
	}
	if err != nil {
		c.bad = fmt.Errorf("%s: %w", r.Type, err)
	}
}

// once decodes a message that may come one time.
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

// reap closes the channel of a killed command that does not end.
func (c *Cmd) reap() {
	select {
	case <-c.ended:
		return
	case <-c.killed:
	}
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
		_ = c.ch.Close()
	}
}

// feed sends the command's input, and how long it was.
func (c *Cmd) feed() {
	n, err := copyStream(c.ch, c.Stdin)
	if err != nil {
		return // no end was sent: the command must not read a truncated input as complete
	}
	data, err := json.Marshal(n)
	if err != nil {
		return
	}
	if _, err := c.ch.SendRequest(reqStdinEnd, false, data); err == nil {
		_ = c.ch.CloseWrite() // fails only with the channel
	}
}

// closer closes an output of the command whose reader has gone. A supervisor that
// does not know how has the command write on, for nobody.
func (c *Cmd) closer(output int) func(error) {
	return func(err error) {
		if errors.Is(err, syscall.EPIPE) {
			go func() { _ = c.control(wire.Control{CloseOutput: output}) }() // reading goes on meanwhile; ends with the channel
		}
	}
}

// drain copies r to w to its end; when w fails it reports that and continues to read, so
// that the command is not held up by it.
func drain(w io.Writer, r io.Reader, failed func(error)) copied {
	if w == nil {
		w = io.Discard
	}
	var n atomic.Int64
	_, err := copyStream(w, &countReader{r, &n})
	if err != nil {
		failed(err)
		_, _ = copyStream(io.Discard, &countReader{r, &n})
	}
	return copied{n.Load(), err}
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
