// Package sandboxes makes sandboxes and works in them: it runs commands, moves files, takes
// snapshots and goes back to them. It starts the program agentctl, which must be installed, and
// speaks with it; doc/sandboxes.md describes the protocol for other languages.
//
//	client, err := sandboxes.Start(ctx, sandboxes.Options{})
//	box, err := client.Create(ctx, sandboxes.Spec{Policy: "agent-sandbox"})
//	result, err := box.Run(ctx, sandboxes.Command{Script: "python3 solution.py"})
//
// All sandboxes of a [Client] end with it, also when this process is killed.
package sandboxes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// Options say how agentctl is started. The zero value starts the one on PATH.
type Options struct {
	Program string    // agentctl; empty: that on PATH
	Args    []string  // more of its arguments, as "--agentsh-config", "FILE"
	Env     []string  // environment, NAME=value; nil: that of this process
	Dir     string    // directory to which paths are relative; empty: that of this process
	Stderr  io.Writer // gets warnings; nil: nobody
}

// Client makes sandboxes. It is safe for concurrent use. The caller closes it.
type Client struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan outgoing // to the goroutine that writes
	done chan struct{} // closed when nothing more is read

	mu      sync.Mutex
	last    int
	waiting map[string]*call
	err     error // set before done is closed
}

// call is a request that waits for its answer.
type call struct {
	answer chan message // gets one
	output *output      // of a command whose output comes as it is written; nil: none
}

// outgoing is a message to agentctl.
type outgoing struct {
	line []byte
	sent chan error // gets one
}

// message is a message of agentctl.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *Error          `json:"error"`
}

// Error is an error that agentctl answers.
type Error struct {
	Code    int    `json:"code"` // as in JSON-RPC; -32000: it could not be done
	Message string `json:"message"`
	Data    struct {
		Hint string `json:"hint"`
	} `json:"data"`
}

// Error is the message with its hint.
func (e *Error) Error() string {
	if e.Data.Hint != "" {
		return e.Message + " (" + e.Data.Hint + ")"
	}
	return e.Message
}

// ErrClosed is in the chain of errors after the end of agentctl.
var ErrClosed = errors.New("agentctl has ended")

// Start starts agentctl. It goes on until Close; ctx is for the start only.
func Start(ctx context.Context, o Options) (*Client, error) {
	program := o.Program
	if program == "" {
		program = "agentctl"
	}
	c := &Client{}
	c.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, append([]string{"sandbox", "serve", "--stdio"}, o.Args...)...)
	c.cmd.Env, c.cmd.Dir, c.cmd.Stderr = o.Env, o.Dir, o.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	c.cmd.WaitDelay = errorsWait
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	c.open(c.in)
	go c.read(out)
	kill := func() { _, _ = c.cmd.Process.Kill(), out.Close() } // it has made nothing yet; they fail after its end
	stop := context.AfterFunc(ctx, kill)
	var hello struct {
		Protocol int `json:"protocol"`
	}
	err = c.ask(context.WithoutCancel(ctx), "hello", nil, &hello, nil)
	switch {
	case !stop():
		err = context.Cause(ctx)
	case err == nil && hello.Protocol != protocol:
		err = fmt.Errorf("it speaks version %d of the protocol, and this package %d", hello.Protocol, protocol)
	}
	if err != nil {
		kill()
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), c.Close())
	}
	return c, nil
}

// errorsWait is how long warnings are read after the end of agentctl, if another program holds their stream.
const errorsWait = 10 * time.Second

// protocol is the version of the protocol.
const protocol = 1

// Close deletes all sandboxes and waits for the end of agentctl. A second call returns nil.
func (c *Client) Close() error {
	_ = c.in.Close() // it may have ended
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd.ProcessState != nil {
		return nil
	}
	if err := c.cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("agentctl: %w", err)
	}
	return nil
}

// read reads messages until agentctl ends.
func (c *Client) read(out io.Reader) {
	lines := bufio.NewReader(out)
	var err error
	for err == nil {
		var line []byte
		if line, err = lines.ReadBytes('\n'); err == nil {
			err = c.take(line)
		}
	}
	if errors.Is(err, io.EOF) {
		err = ErrClosed
	}
	_ = c.in.Close()                // the program ends, if it has not
	_, _ = io.Copy(io.Discard, out) // ends with the program
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	close(c.done)
}

// take takes one message.
func (c *Client) take(line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("agentctl: %w", err)
	}
	id := string(m.ID)
	var output struct {
		ID     json.RawMessage `json:"id"`
		Stream string          `json:"stream"`
		Data   []byte          `json:"data_base64"`
	}
	if m.Method == "output" {
		if err := json.Unmarshal(m.Params, &output); err != nil {
			return fmt.Errorf("agentctl: %w", err)
		}
		id = string(output.ID)
	}
	c.mu.Lock()
	one := c.waiting[id]
	if m.Method == "" {
		delete(c.waiting, id)
	}
	c.mu.Unlock()
	switch {
	case one == nil: // another notification
	case m.Method == "output":
		if one.output != nil {
			one.output.put(chunk{output.Stream == "stderr", output.Data})
		}
	case m.Method == "":
		one.answer <- m
	}
	return nil
}

// open prepares the client to send messages.
func (c *Client) open(in io.WriteCloser) {
	c.in, c.out, c.done, c.waiting = in, make(chan outgoing), make(chan struct{}), map[string]*call{}
	go func() { // ends with the program
		for {
			select {
			case m := <-c.out:
				_, err := c.in.Write(m.line)
				m.sent <- err
			case <-c.done:
				return
			}
		}
	}()
}

// send sends a message. begun is false if ctx has ended before a part of it was sent.
func (c *Client) send(ctx context.Context, m map[string]any) (begun bool, err error) {
	m["jsonrpc"] = "2.0"
	data, err := json.Marshal(m)
	if err != nil {
		return false, err
	}
	one := outgoing{append(data, '\n'), make(chan error, 1)}
	select {
	case c.out <- one:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-c.done:
		return false, c.ended()
	}
	select {
	case err = <-one.sent:
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	if err != nil {
		return true, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return true, nil
}

// ended is why agentctl has ended.
func (c *Client) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ask sends a request and reads its result. out may be nil.
func (c *Client) ask(ctx context.Context, method string, params, result any, out *output) error {
	one := &call{answer: make(chan message, 1), output: out}
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[strconv.Itoa(id)] = one
	c.mu.Unlock()
	defer c.forget(id)
	if out != nil {
		go out.write(func(bytes int) error {
			_, err := c.send(context.Background(), map[string]any{"method": "taken", "params": map[string]any{"id": id, "bytes": bytes}})
			return err
		})
		defer out.end()
	}
	request := map[string]any{"id": id, "method": method}
	if params != nil {
		request["params"] = params
	}
	begun, err := c.send(ctx, request)
	if err != nil && ctx.Err() == nil || !begun {
		return err
	}
	m, err := c.answer(ctx, one)
	switch {
	case err != nil && ctx.Err() != nil:
		return c.cancel(ctx, id, one, result)
	case err != nil:
		return err
	case m.Error != nil:
		return m.Error
	}
	if out != nil {
		if err := out.wait(ctx); err != nil {
			return err
		}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(m.Result, result)
}

// answer waits for the answer of a call.
func (c *Client) answer(ctx context.Context, one *call) (message, error) {
	select {
	case m := <-one.answer:
		return m, nil
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	case <-c.done:
	}
	select {
	case m := <-one.answer: // its last message
		return m, nil
	default:
		return message{}, c.ended()
	}
}

// cancelWait is how long agentctl has to end a request that is cancelled.
var cancelWait = 30 * time.Second

// cancel ends a request whose ctx has ended, and waits for that. It returns why ctx has ended, and that the request may
// go on. result is set if the request was done before.
func (c *Client) cancel(ctx context.Context, id int, one *call, result any) error {
	cause := context.Cause(ctx)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer stop()
	_, err := c.send(ctx, map[string]any{"method": "cancel", "params": map[string]any{"id": id}})
	var m message
	if err == nil {
		m, err = c.answer(ctx, one)
	}
	if ctx.Err() != nil {
		return errors.Join(cause, fmt.Errorf("agentctl has not ended the request within %s: it may go on; Client.Close ends it", cancelWait))
	}
	if err == nil && m.Error == nil && result != nil {
		_ = json.Unmarshal(m.Result, result) // the call fails anyway
	}
	return cause // after the end of agentctl too: that ends all requests
}

// forget drops what comes for a request from now on.
func (c *Client) forget(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, strconv.Itoa(id))
}
