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
	done chan struct{} // closed when nothing more is read

	write sync.Mutex // a message at a time

	mu      sync.Mutex
	last    int
	waiting map[string]*call
	err     error // set before done is closed
}

// call is a request that waits for its answer.
type call struct {
	answer         chan message // gets one
	stdout, stderr io.Writer    // of a command whose output comes as it is written; may be nil
	failed         error        // of the writers
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
	c := &Client{done: make(chan struct{}), waiting: map[string]*call{}}
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
		one.put(output.Stream, output.Data)
	case m.Method == "":
		one.answer <- m
	}
	return nil
}

// put writes output of a command.
func (one *call) put(stream string, data []byte) {
	to := one.stdout
	if stream == "stderr" {
		to = one.stderr
	}
	if to != nil && one.failed == nil {
		_, one.failed = to.Write(data)
	}
}

// send sends a message.
func (c *Client) send(m map[string]any) error {
	m["jsonrpc"] = "2.0"
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.write.Lock()
	defer c.write.Unlock()
	if _, err := c.in.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

// ended is why agentctl has ended.
func (c *Client) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ask sends a request and reads its result. one may be nil.
func (c *Client) ask(ctx context.Context, method string, params, result any, one *call) error {
	if one == nil {
		one = &call{}
	}
	one.answer = make(chan message, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[strconv.Itoa(id)] = one
	c.mu.Unlock()
	request := map[string]any{"id": id, "method": method}
	if params != nil {
		request["params"] = params
	}
	if err := c.send(request); err != nil {
		return err
	}
	var m message
	select {
	case m = <-one.answer:
	case <-c.done:
		select {
		case m = <-one.answer: // its last message
		default:
			return c.ended()
		}
	case <-ctx.Done():
		if err := c.send(map[string]any{"method": "cancel", "params": map[string]any{"id": id}}); err != nil {
			return err
		}
		select { // the answer says that it has ended
		case <-one.answer:
		case <-c.done:
		}
		return context.Cause(ctx)
	}
	switch {
	case m.Error != nil:
		return m.Error
	case one.failed != nil:
		return one.failed
	case result == nil:
		return nil
	}
	return json.Unmarshal(m.Result, result)
}
