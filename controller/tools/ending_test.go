package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// endless is a sandbox whose commands go on until they are ended. begun gets one element for each.
type endless struct {
	sandbox.Executor
	begun chan struct{}
}

func (e endless) Run(ctx context.Context, _ wire.ExecRequest, _ sandbox.Streams) (wire.Exit, error) {
	e.begun <- struct{}{}
	<-ctx.Done()
	return wire.Exit{Kind: wire.ExitSignaled, Signal: 15}, nil
}

func (e endless) Events(context.Context, wire.EventRequest, func(wire.Event) error) error { return nil }

// TestACallIsToldWhoEndsItsSandbox has an operator end the sandbox while a command runs.
func TestACallIsToldWhoEndsItsSandbox(t *testing.T) {
	of := endless{begun: make(chan struct{}, 1)}
	box, err := New(t.Context(), Config{Program: "test", Version: "1", Sandbox: of, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	read, in := io.Pipe()
	out, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- box.Serve(ctx, read, write)
		_ = write.Close()
	}()
	lines := bufio.NewReader(out)
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"x","version":"1"}}}`)
	if _, err := lines.ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"argv":["sleep"]}}}`)
	<-of.begun
	end(errors.New("ended by operator root"))
	line, err := lines.ReadBytes('\n')
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	var answer struct {
		ID     int
		Result mcp.CallToolResult
	}
	if err := json.Unmarshal(line, &answer); err != nil || answer.ID != 2 ||
		!strings.Contains(string(line), "the tools of this sandbox have ended: ended by operator root; start the server again") {
		t.Errorf("%v %s", err, line)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAClientThatReadsNothingDoesNotHoldTheEndOfTheTools has a call wait for a client that does not read.
func TestAClientThatReadsNothingDoesNotHoldTheEndOfTheTools(t *testing.T) {
	was := lastAnswers
	lastAnswers = 0
	defer func() { lastAnswers = was }()
	box, err := New(t.Context(), Config{Program: "test", Version: "1", Sandbox: endless{}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	read, in := io.Pipe()
	out, write := io.Pipe()
	defer out.Close() // ends what writes
	done := make(chan error, 1)
	go func() { done <- box.Serve(ctx, read, write) }()
	for range 2 { // the first is taken, its answer is not
		if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
