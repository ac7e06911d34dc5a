package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"agentsh/internal/wire"
)

// TestAFrozenOperationWaitsAndSeesNewContent: a checkpoint and a rollback happen
// between Hold and Release.
func TestAFrozenOperationWaitsAndSeesNewContent(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"a": "old", "d/f": "f"})
	must(t, s.control.Baseline(t.Context()))
	must(t, os.WriteFile(s.path("new"), nil, 0o644))
	holds(t, s.path("a"), "old")
	if _, err := os.Stat(s.path("back")); err == nil {
		t.Error("back is there")
	}
	open, err := os.OpenFile(s.path("a"), os.O_WRONLY, 0)
	must(t, err)
	defer open.Close()
	must(t, s.control.Freeze(t.Context()))
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(s.path("late"), nil, 0o644) }()
	if _, err := open.WriteString("OLD"); err != nil { // what is open is not stopped
		t.Error(err)
	}
	if _, err := s.control.Changes(t.Context(), "ws"); err == nil {
		t.Error("other calls do not fail")
	}
	select {
	case err := <-done:
		t.Errorf("a file was made while the files were held: %v", err)
	default:
	}
	must(t, os.Remove(s.back("new")))
	must(t, os.RemoveAll(s.back("d")))
	must(t, os.WriteFile(s.back("back"), []byte("b"), 0o644))
	must(t, s.control.Unfreeze(t.Context(), "ws", []wire.Change{{Path: "new", Kind: "deleted"}, {Path: "d/f", Kind: "deleted"},
		{Path: "d", Kind: "deleted"}, {Path: "back", Kind: "created"}}))
	must(t, <-done)
	holds(t, s.path("back"), "b")
	for _, gone := range []string{"new", "d", "d/f"} {
		if _, err := os.Lstat(s.path(gone)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if err := s.control.Unfreeze(t.Context(), "ws", nil); err == nil {
		t.Error("released twice")
	}
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	want := []wire.Change{{Path: "a", Kind: "modified"}, {Path: "back", Kind: "created"}, {Path: "d", Kind: "deleted"},
		{Path: "d/f", Kind: "deleted"}, {Path: "late", Kind: "created"}}
	if len(list) != len(want) {
		t.Fatalf("changes %+v", list)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("change %d: %+v, want %+v", i, list[i], want[i])
		}
	}
}

// A caller that does not wait for the answer must not leave the files frozen.
func TestACancelledFreezeEnds(t *testing.T) {
	s := start(t, options{})
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if s.control.Freeze(ctx) == nil {
			must(t, s.control.Unfreeze(t.Context(), "", nil))
		}
		made := make(chan error, 1)
		go func() { made <- os.WriteFile(s.path(fmt.Sprint(i)), nil, 0o644) }()
		select {
		case err := <-made:
			must(t, err)
		case <-time.After(30 * time.Second):
			_ = s.control.Unfreeze(t.Context(), "", nil)
			<-made
			t.Fatal("the files stay frozen")
		}
	}
}

// The answer to a freeze may come after its caller has gone.
func TestAFreezeThatIsAnsweredLateEnds(t *testing.T) {
	near, far := socketPair(t)
	c, err := NewControl(near, func(wire.Event) {}, nil)
	must(t, err)
	defer c.Close()
	server, err := newChannel(far)
	must(t, err)
	defer server.close()
	must(t, server.conn.SetDeadline(time.Now().Add(30*time.Second)))
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- c.Freeze(ctx) }()
	var freeze request
	must(t, server.receive(&freeze))
	if !freeze.Freeze {
		t.Fatalf("it sent %+v", freeze)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller got %v", err)
	}
	must(t, server.send(reply{ID: freeze.ID}))
	var next request
	must(t, server.receive(&next))
	if next.Unfreeze == nil {
		t.Errorf("it sent %+v", next)
	}
	must(t, server.send(reply{ID: next.ID}))
}
