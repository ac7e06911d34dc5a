package tools

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// early connects a client to tools whose sandbox is not there yet, and calls one.
func early(t *testing.T) (box *Toolbox, served chan error, said chan string) {
	t.Helper()
	box = NewOpening(Config{Program: "test", Version: "1"})
	theirs, ours := io.Pipe()
	back, out := io.Pipe()
	served, said = make(chan error, 1), make(chan string, 1)
	go func() { served <- box.Serve(context.WithoutCancel(t.Context()), theirs, out) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: back, Writer: ours}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 14 {
		t.Fatalf("%v: %+v", err, list)
	}
	go func() {
		params := &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "echo here"}}
		r, err := session.CallTool(context.WithoutCancel(t.Context()), params)
		if err != nil {
			said <- "no answer: " + err.Error()
			return
		}
		said <- r.Content[0].(*mcp.TextContent).Text
	}()
	return box, served, said
}

// TestToolsAreListedBeforeTheirSandboxIsThere has a call wait for it.
func TestToolsAreListedBeforeTheirSandboxIsThere(t *testing.T) {
	cfg := openTools(t).cfg
	box, served, said := early(t)
	defer box.Close()
	if err := box.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if got := <-said; got != "here\n" {
		t.Error(got)
	}
	box.Close()
	if err := <-served; err != nil && !errors.Is(err, io.ErrClosedPipe) { // of the reader, if it sees the end first
		t.Error(err)
	}
}

// TestCallsSayWhyThereIsNoSandbox has a call wait for it.
func TestCallsSayWhyThereIsNoSandbox(t *testing.T) {
	box, served, said := early(t)
	Fail(box, errors.New("the image is missing"))
	if got := <-said; !strings.Contains(got, "there is no sandbox: the image is missing") {
		t.Error(got)
	}
	box.Close()
	<-served
}
