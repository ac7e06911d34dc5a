package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// alive is a sandbox whose supervisor has not ended while gone is open.
type alive struct {
	sandbox.Sandbox
	gone  chan struct{}
	cause error
}

func (a alive) Gone() <-chan struct{} { return a.gone }
func (a alive) Cause() error          { return a.cause }
func (alive) ID() string              { return "s" }

// A step that fails keeps its reason if nobody knows why the sandbox is gone.
func TestAnEndWithoutAReasonReplacesNone(t *testing.T) {
	state, err := statedir.Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cause error
		want  string
	}{
		"without a reason": {sandbox.ErrGone, "sandbox is gone: refused by the supervisor"},
		"with a reason":    {fmt.Errorf("%w: supervisor: killed", sandbox.ErrGone), "sandbox is gone: supervisor: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := record.Create(state, record.NewRunID(time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			ended := alive{gone: make(chan struct{}), cause: tt.cause}
			close(ended.gone)
			r := &run{journal: &journal{dir: dir}, box: &box{sandbox: ended}, counts: &counts{observer: nobody{}}}
			refused := errors.New("refused by the supervisor")
			got := r.step(t.Context(), step{name: "wait_ready", do: func(*run, context.Context) error { return refused }})
			f := new(Failure)
			if !errors.As(got, &f) || f.Err.Error() != tt.want {
				t.Errorf("%v, want %s", got, tt.want)
			}
			if err := dir.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A step asks for the end of the supervisor only if its failure may be due to it. The
// clock of the test advances only when everything waits.
func TestAFailedAgentCostsNoExtraTime(t *testing.T) {
	state, err := statedir.Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		err    error
		waited time.Duration
	}{
		"an agent that failed":           {fail(ExitAgentFailed, "", errors.New("the agent exited with status 3")), 0},
		"an agent that ran out of time":  {fail(ExitTimeout, "", errors.New("the agent did not end")), 0},
		"an output that is not valid":    {fail(ExitValidationFailed, "", errors.New("not valid")), 0},
		"a finding":                      {fail(ExitScan, "", errors.New("a secret")), 0},
		"a supervisor known to be gone":  {sandbox.ErrGone, 0},
		"an error of the sandbox":        {errors.New("broken pipe"), time.Second},
		"an agent lost with its sandbox": {fail(ExitSandbox, "", errors.New("the agent was lost")), time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, err := record.Create(state, record.NewRunID(time.Now()))
				if err != nil {
					t.Fatal(err)
				}
				r := &run{journal: &journal{dir: dir}, box: &box{sandbox: alive{gone: make(chan struct{})}}, counts: &counts{observer: nobody{}}}
				start := time.Now()
				got := r.step(context.Background(), step{name: "iterations", do: func(*run, context.Context) error { return tt.err }})
				if waited := time.Since(start); waited != tt.waited {
					t.Errorf("the step took %s, want %s", waited, tt.waited)
				}
				if !errors.Is(got, tt.err) && !errors.As(got, new(*Failure)) {
					t.Errorf("%v", got)
				}
				if err := dir.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
