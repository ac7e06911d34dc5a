package tools

import (
	"context"
	"errors"
	"fmt"

	"agentsh/internal/wire"
)

// opening is the wait for a sandbox that is still made. Its tools are listed meanwhile, and calls wait.
type opening struct {
	done chan struct{} // closed when there is a sandbox, or none will come
	err  error         // why none comes; set before done is closed
}

// NewOpening makes the tools of a sandbox that is not there yet. Clients can connect: many wait for some seconds
// only. The caller opens it by [Toolbox.Open] or [Fail], once, and closes it. Of cfg only the names and the
// log count. The sandbox has a history.
func NewOpening(cfg Config) *Toolbox {
	t := newToolbox(cfg)
	t.addHistory()
	return t
}

// Open gives the tools their sandbox. See [New] for ctx.
func (t *Toolbox) Open(ctx context.Context, cfg Config) error {
	refused, err := NewRefused(ctx, cfg.Sandbox)
	if err != nil {
		Fail(t, err)
		return err
	}
	if cfg.History == nil {
		cfg.History = noHistory{}
	}
	t.cfg.Sandbox, t.cfg.Dir, t.cfg.Env, t.cfg.Run, t.cfg.History = cfg.Sandbox, cfg.Dir, cfg.Env, cfg.Run, cfg.History
	t.cfg.Turns = cfg.Turns
	t.refused, t.life = refused, ctx
	close(t.opening.done)
	return nil
}

// Fail says that there will be no sandbox. All calls fail with the reason.
func Fail(t *Toolbox, err error) {
	t.opening.err = fmt.Errorf("there is no sandbox: %w", err)
	close(t.opening.done)
}

// noHistory is the history of a sandbox that has none.
type noHistory struct{}

var errNoHistory = errors.New("this sandbox remembers no states")

func (noHistory) Dir() string                                                 { return "" }
func (noHistory) Changes(context.Context, bool, func(Change) error) error     { return errNoHistory }
func (noHistory) Create(context.Context, string) (c wire.Checkpoint, e error) { return c, errNoHistory }
func (noHistory) List(context.Context) ([]wire.Checkpoint, error)             { return nil, errNoHistory }
func (noHistory) Rollback(context.Context, string, func(wire.Change) error) error {
	return errNoHistory
}

// wait waits for the sandbox.
func (o *opening) wait(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	default:
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
