package sandboxes

import (
	"context"
	"testing"
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
		c := &Client{done: make(chan struct{}), waiting: map[string]*call{}}
		c.in = lastWords{c}
		var result string
		if err := c.ask(context.Background(), "create", nil, &result, nil); err != nil || result != "made" {
			t.Fatalf("%q %v", result, err)
		}
	}
}
