package remote

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// reaching is a backend at a scripted place that begins to reach it.
func reaching(t *testing.T, steps ...string) (*Backend, *scripted) {
	t.Helper()
	state, err := statedir.Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	p := &scripted{t: t, steps: steps}
	b := New(Config{Name: NameSocket, Carrier: p, State: state, Lease: time.Minute})
	b.Reach(t.Context(), "run-1")
	return b, p
}

func TestTheFirstRequestHasTheStreamThatWasOpenedBefore(t *testing.T) {
	for _, tt := range []struct {
		steps  []string
		change func(*reached)
		want   string // of the error
	}{
		{[]string{"serve ok"}, nil, ""},
		{[]string{"serve cut", "attach ok"}, nil, ""},
		{[]string{"serve disk full"}, nil, "disk full"},
		{[]string{"unreachable"}, nil, "unreachable"},
		{[]string{"nothing"}, nil, "the stream ended"},
		{[]string{"greeting", "serve ok"}, func(r *reached) { r.at = r.at.Add(-2 * reachedWait) }, ""},
		{[]string{"greeting", "serve ok"}, func(r *reached) { close(r.stream.(*piped).gone) }, ""},
	} {
		t.Run(strings.Join(tt.steps, ", "), func(t *testing.T) {
			t.Parallel()
			b, p := reaching(t, tt.steps...)
			r := b.reached["run-1"]
			<-r.done
			if tt.change != nil {
				tt.change(r)
			}
			s, err := b.first(t.Context(), wire.PlaceRequest{Op: wire.PlaceServe, ID: "run-1"})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error: %v, want %q", err, tt.want)
			}
			b.Forget("run-1")
			if err == nil {
				if n, err := s.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "closed") {
					t.Errorf("the stream of the sandbox was closed here: %v", err)
				}
				s.Kill()
			}
			if p.done != len(tt.steps) || len(b.reached) != 0 {
				t.Errorf("%d streams, want %d; left: %v", p.done, len(tt.steps), b.reached)
			}
		})
	}
}

func TestAStreamThatNobodyHasIsForgotten(t *testing.T) {
	b, _ := reaching(t, "greeting")
	r := b.reached["run-1"]
	<-r.done
	b.Reach(t.Context(), "run-1") // the second one is none: the place has one step
	b.Forget("run-2")
	b.Forget("run-1")
	b.Forget("run-1")
	if _, err := r.stream.Write([]byte("x")); err == nil {
		t.Error("the stream is open")
	}
	if len(b.reached) != 0 {
		t.Error(b.reached)
	}
}

// A place that never answers holds up neither the end of a run nor a run that is cancelled.
func TestReachingIsCancelled(t *testing.T) {
	b, _ := reaching(t, "silent")
	began := time.Now()
	b.Forget("run-1")

	ctx, cancel := context.WithCancel(t.Context())
	b, _ = reaching(t, "silent")
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := b.first(ctx, wire.PlaceRequest{Op: wire.PlaceServe, ID: "run-1"}); !errors.Is(err, context.Canceled) {
			t.Errorf("error: %v", err)
		}
	})
	cancel()
	first.Wait()
	if took := time.Since(began); took > answerWait/2 {
		t.Errorf("took %s", took)
	}
}
