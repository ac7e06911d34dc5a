package controller

import (
	"context"
	"time"

	"agentsh/controller/attach"
)

// listenForOperators lets operators attach to the sandbox, if its backend can.
func (r *run) listenForOperators(ctx context.Context) (err error) {
	to, ok := r.box.(attach.Relayer)
	if !ok {
		return nil
	}
	r.attached, err = attach.Listen(context.WithoutCancel(ctx), r.dir.Path, to, r.endBy)
	return err
}

// endBy ends the run for an operator: a sandbox that is retained is given up, a
// running run is stopped as by a signal. force gives up the results, too.
func (r *run) endBy(by string, force bool) {
	r.released.Do(func() { close(r.release) })
	if !r.keeping.Load() {
		r.interrupt(Interrupted{Signal: endSignal, By: by})
	}
	if force {
		r.hurry()
	}
}

// keepSandbox keeps the sandbox of a run that failed until its lease runs out,
// or somebody ends it.
func (r *run) keepSandbox(ctx context.Context) error {
	if ctx.Err() != nil || r.attached == nil {
		return nil
	}
	until := time.Now().Add(r.o.Keep).UTC()
	r.record.RetainedUntil = &until
	if err := r.dir.Write(r.record); err != nil {
		return err
	}
	r.keeping.Store(true)
	r.warn("the sandbox is kept until %s: 'agentctl sandbox shell %s' leads into it, 'agentctl sandbox delete %s' or Ctrl-C ends it",
		until.Local().Format(time.DateTime), r.box.ID(), r.box.ID())
	t := time.NewTimer(r.o.Keep)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-r.release:
	case <-r.box.Gone():
	}
	r.record.RetainedUntil = nil
	return nil
}
