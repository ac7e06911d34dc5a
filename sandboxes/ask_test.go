package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// lastWords is the input of a program that answers its first request, and ends.
type lastWords struct{ c *Client }

func (l lastWords) Write(p []byte) (int, error) {
	if err := l.c.take([]byte(`{"id":1,"result":"made"}`)); err != nil {
		return 0, err
	}
	l.c.err = ErrClosed
	close(l.c.done)
	return len(p), nil
}

func (lastWords) Close() error { return nil }

// TestAnAnswerCountsThoughAgentctlHasEnded has both before the caller looks.
func TestAnAnswerCountsThoughAgentctlHasEnded(t *testing.T) {
	for range 100 {
		c := &Client{}
		c.open(lastWords{c})
		var result string
		if err := c.ask(context.Background(), "create", nil, &result, nil); err != nil || result != "made" {
			t.Fatalf("%q %v", result, err)
		}
	}
}

// TestACancelledCallEndsThoughAgentctlDoesNotAnswer has programs that read nothing, and one that reads and does not answer.
func TestACancelledCallEndsThoughAgentctlDoesNotAnswer(t *testing.T) {
	was := cancelWait
	cancelWait = 50 * time.Millisecond
	defer func() { cancelWait = was }()
	enough := errors.New("enough")
	for name, reads := range map[string]int{"nothing": 0, "a part": 1, "all": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			in, program := io.Pipe()
			defer in.Close()
			c := &Client{}
			c.open(program)
			defer close(c.done)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { // ends with in
				if reads > 0 {
					_, _ = io.ReadFull(in, make([]byte, 1)) // the request has begun
				}
				cancel(enough)
				_, _ = io.CopyN(io.Discard, in, int64(reads)-1)
			}()
			err := c.ask(ctx, "exec", nil, nil, nil)
			if !errors.Is(err, enough) || reads > 0 && !strings.Contains(err.Error(), "it may go on") {
				t.Error(err)
			}
			if len(c.waiting) > 0 {
				t.Error("the client waits for an answer that nobody reads")
			}
		})
	}
}

// answering is the input of a program that answers each request by a function.
type answering struct {
	c      *Client
	answer func(id int, method string) string
}

func (a answering) Write(p []byte) (int, error) {
	var m struct {
		ID     int
		Method string
	}
	if err := json.Unmarshal(p, &m); err != nil {
		return 0, err
	}
	for line := range strings.Lines(a.answer(m.ID, m.Method)) {
		if err := a.c.take([]byte(line)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (answering) Close() error { return nil }

// TestAWriterThatBlocksHoldsItsCallAlone has the output of a command wait for its writer while others are called.
func TestAWriterThatBlocksHoldsItsCallAlone(t *testing.T) {
	c := &Client{}
	c.open(answering{c, func(id int, method string) string {
		if method != "exec" {
			return fmt.Sprintf(`{"id":%d,"result":"there"}`, id)
		}
		return fmt.Sprintf(`{"method":"output","params":{"id":%d,"stream":"stdout","data_base64":"eA=="}}`+"\n"+`{"id":%d,"result":{}}`, id, id)
	}})
	defer close(c.done)
	took, written := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- c.ask(t.Context(), "exec", nil, nil, newOutput(written, nil)) }()
	for range 10 {
		var got string
		if err := c.ask(t.Context(), "read", nil, &got, nil); err != nil || got != "there" {
			t.Fatalf("%q %v", got, err)
		}
	}
	select {
	case err := <-ended:
		t.Fatal("the command has ended before its output was written: ", err)
	default:
	}
	if _, err := io.ReadFull(took, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	if err := c.ask(ctx, "exec", nil, nil, newOutput(written, nil)); !errors.Is(err, enough) {
		t.Error("a writer that never returns: ", err)
	}
	_ = took.Close() // ends the writer
}

// TestASandboxThatIsMadeDuringTheCancellingIsDeleted has a program that answers late.
func TestASandboxThatIsMadeDuringTheCancellingIsDeleted(t *testing.T) {
	c := &Client{}
	ctx, cancel := context.WithCancel(t.Context())
	deleted := 0
	c.open(answering{c, func(id int, method string) string {
		switch method {
		case "create":
			cancel()
		case "cancel":
			return `{"id":1,"result":{"sandbox":"made"}}`
		case "delete":
			deleted++
			return fmt.Sprintf(`{"id":%d,"result":{}}`, id)
		}
		return ""
	}})
	defer close(c.done)
	if box, err := c.Create(ctx, Spec{}); !errors.Is(err, context.Canceled) || box != nil || deleted != 1 {
		t.Errorf("%v %v, deleted %d times", box, err, deleted)
	}
}
