package boxes

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"agentsh/controller/sandbox"
)

// execParams are a command, and whether its output is sent as it comes.
type execParams struct {
	Command
	Stream bool  `json:"stream,omitempty"`
	Window int64 `json:"window_bytes,omitempty"` // the command waits while so much is sent and not taken; 0: it does not
}

func exec(ctx context.Context, b *Box, p execParams, out output) (any, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	commands := b.Commands
	commands.room = func(n int) error {
		err := out.room.take(n)
		if err != nil {
			cancel(err) // ends the command with what it started
		}
		return err
	}
	switch {
	case p.Window < 0 || p.Window > 0 && !p.Stream:
		return nil, fmt.Errorf("%w: window_bytes: with stream, and at least 1", errParams)
	case !p.Stream:
		return commands.Run(ctx, p.Command, sandbox.Streams{})
	}
	var w *window
	if p.Window > 0 {
		w = out.server.window(out.id, p.Window)
	}
	to := func(stream string) sent {
		return func(data []byte) error {
			if err := w.wait(ctx, len(data)); err != nil {
				return err
			}
			out.send(stream, data)
			return nil
		}
	}
	return commands.Run(ctx, p.Command, sandbox.Streams{Stdout: to("stdout"), Stderr: to("stderr")})
}

// output sends the output of a command that a request started.
type output struct {
	server *Server
	id     json.RawMessage // of the request
	room   *room           // of its answer
}

func (o output) send(stream string, data []byte) {
	o.server.send(answer{Method: "output", Params: struct {
		ID     json.RawMessage `json:"id"`
		Stream string          `json:"stream"`
		Data   []byte          `json:"data_base64"`
	}{o.id, stream, data}})
}

// sent is an output that is sent as it comes.
type sent func(data []byte) error

func (s sent) Write(p []byte) (int, error) {
	if err := s(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// window bounds how much output of a command the client has not taken. A nil window bounds nothing. It is safe for
// concurrent use.
type window struct {
	most int64

	mu   sync.Mutex
	open int64         // sent and not taken
	room chan struct{} // closed when the client takes something; nil: nobody waits
}

// wait waits until the window is not full, and counts n bytes as sent.
func (w *window) wait(ctx context.Context, n int) error {
	if w == nil {
		return nil
	}
	for {
		w.mu.Lock()
		if w.open < w.most {
			w.open += int64(n)
			w.mu.Unlock()
			return nil
		}
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// taken says that the client has taken n bytes.
func (w *window) taken(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open -= min(max(n, 0), w.open)
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}
