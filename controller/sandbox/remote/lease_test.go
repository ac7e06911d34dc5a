package remote

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/resume"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// leaving is a place that attaches each stream, and then leaves it without a byte.
type leaving struct {
	late    time.Duration // of the first stream
	streams atomic.Int64
}

func (*leaving) Shell() bool    { return false }
func (*leaving) Check() error   { return nil }
func (*leaving) String() string { return "leaving" }

func (p *leaving) Open(context.Context) (Stream, error) {
	if p.streams.Add(1) == 1 {
		<-time.After(p.late)
	}
	near, file, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	far, err := channel.FromFile(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	go func() { // ends with the request
		defer close(gone)
		defer far.Close()
		_ = stdio.Write(far, wire.PlaceHello{Version: wire.Current})
		var req wire.PlaceRequest
		_ = stdio.Read(far, &req, 1<<20)
		_ = stdio.Write(far, wire.PlaceAttached{})
	}()
	return &piped{near, gone}, nil
}

// begun is a box at a place that leaves.
func begun(t *testing.T, p *leaving, lease time.Duration) *box {
	t.Helper()
	state, err := statedir.Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := local.New(local.Config{State: state}).Reserve("run-1", p.String())
	if err != nil {
		t.Fatal(err)
	}
	x, err := New(Config{Name: NameSocket, Carrier: p, State: state, Lease: lease}).start(t.Context(), dir, sandbox.Spec{RunID: "run-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.cancel()
		x.conn.Fail(os.ErrClosed)
		<-x.gone
		x.copied.finish(context.Background(), 0)
	})
	return x
}

// TestTheLeaseBeginsWithTheFirstStream has a place to which the first stream takes longer than the lease, as one that receives the program
// over a slow line.
func TestTheLeaseBeginsWithTheFirstStream(t *testing.T) {
	x := begun(t, &leaving{late: 1200 * time.Millisecond}, time.Second)
	if _, err := x.conn.Write([]byte("x")); errors.Is(err, resume.ErrLost) || errors.Is(err, sandbox.ErrGone) {
		t.Errorf("the connection is lost: %v", err)
	}
}

// TestAPlaceThatLeavesEachStreamIsNotAskedWithoutPause counts streams: each is a connection, or a program.
func TestAPlaceThatLeavesEachStreamIsNotAskedWithoutPause(t *testing.T) {
	p := &leaving{}
	x := begun(t, p, 2*time.Second)
	select {
	case <-x.gone: // the lease ends
	case <-time.After(20 * time.Second):
		t.Fatal("the lease does not end")
	}
	if n := p.streams.Load(); n < 3 || n > 10 {
		t.Errorf("%d streams within 2 s", n)
	}
}
