package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// scripted is a place whose streams follow a list. Each element says what the request has to be
// and what the place then does.
type scripted struct {
	t     *testing.T
	steps []string
	mu    sync.Mutex
	done  int
}

func (*scripted) Shell() bool    { return false }
func (*scripted) Check() error   { return nil }
func (*scripted) String() string { return "scripted" }

func (p *scripted) Open(context.Context) (Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == len(p.steps) {
		p.t.Error("one stream more than expected")
		return nil, errors.New("no more")
	}
	step := p.steps[p.done]
	p.done++
	if step == "unreachable" {
		return nil, errors.New("unreachable")
	}
	near, file, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	far, err := channel.FromFile(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	go func() {
		defer far.Close()
		want, does, _ := strings.Cut(step, " ")
		if want == "nothing" {
			return
		}
		if want == "silent" {
			_, _ = io.Copy(io.Discard, far)
			return
		}
		if err := stdio.Write(far, wire.PlaceHello{Version: wire.Current}); err != nil {
			p.t.Errorf("%s: %v", step, err)
		}
		if want == "greeting" {
			return
		}
		var req wire.PlaceRequest
		if err := stdio.Read(far, &req, 1<<20); err != nil || req.Op != want || req.ID != "run-1" {
			p.t.Errorf("%s: %+v, %v", step, req, err)
		}
		switch does {
		case "cut":
		case "ok":
			_ = stdio.Write(far, wire.PlaceAttached{})
		default:
			_ = stdio.Write(far, wire.PlaceAttached{Error: does})
		}
	}()
	return &piped{near, make(chan struct{})}, nil
}

// piped is a stream in memory.
type piped struct {
	net.Conn
	gone chan struct{}
}

func (s *piped) Gone() <-chan struct{} { return s.gone }
func (*piped) Cause() error            { return nil }
func (s *piped) Kill()                 { _ = s.Close() }

func TestAStreamThatIsCutBeforeTheFirstAnswerIsOpenedAgain(t *testing.T) {
	for _, tt := range []struct {
		steps []string
		want  string // of the error
	}{
		{[]string{"serve ok"}, ""},
		{[]string{"serve cut", "attach ok"}, ""},
		{[]string{"serve cut", "attach no sandbox", "serve ok"}, ""},
		{[]string{"serve cut", "unreachable", "nothing", "attach cut", "attach no sandbox", "serve exists", "attach ok"}, ""},
		{[]string{"serve cut", "attach no sandbox", "serve cut", "attach no sandbox", "serve disk full",
			"attach no", "serve disk full", "attach no", "serve disk full"}, "disk full"},
		{[]string{"serve disk full"}, "disk full"},
		{[]string{"nothing"}, "the stream ended"}, // as of an address that leads to nothing
		{[]string{"unreachable"}, "unreachable"},
	} {
		t.Run(strings.Join(tt.steps, ", "), func(t *testing.T) {
			t.Parallel()
			state, err := statedir.Open(layout.State(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			p := &scripted{t: t, steps: tt.steps}
			b := New(Config{Name: NameSocket, Carrier: p, State: state, Lease: time.Minute})
			s, err := b.first(t.Context(), wire.PlaceRequest{Op: wire.PlaceServe, ID: "run-1"})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error: %v, want %q", err, tt.want)
			}
			if err == nil {
				s.Kill()
			}
			if p.done != len(tt.steps) {
				t.Errorf("%d streams, want %d", p.done, len(tt.steps))
			}
		})
	}
}
