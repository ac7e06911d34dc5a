package batch

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"time"

	"agentsh/controller"
)

// attempt is one attempt of a run.
func (b *Batch) attempt(ctx context.Context, item int, one Item, runID string, taken bool) controller.Result {
	o, err := b.options(item, one, runID)
	if err != nil {
		now := time.Now().UTC()
		return controller.Result{
			RunID: runID, Status: controller.StatusFailed, ExitCode: controller.ExitConfiguration, Started: now, Ended: now,
			Error: &controller.ResultError{Step: "load", Message: err.Error()},
		}
	}
	run := b.o.run
	if run == nil {
		run = func(ctx context.Context, o controller.Options, _ string) (controller.Result, error) {
			return controller.Run(ctx, o)
		}
	}
	if taken {
		if run = b.o.takeOver; run == nil {
			run = controller.TakeOver
		}
	}
	r, _ := run(ctx, o, runID) // the result has the error
	if taken && !r.Delivered && r.Trouble() {
		if err := controller.Forget(context.WithoutCancel(ctx), o, runID); err != nil {
			b.notify(Event{Kind: EventWarning, Run: b.item(item), Text: err.Error()})
		}
	}
	return r
}

// options are those of a run.
func (b *Batch) options(item int, one Item, runID string) (controller.Options, error) {
	o, err := b.o.Prepare(one)
	if err != nil {
		return o, err
	}
	o.Out, o.Force = filepath.Join(b.view.Out, one.Name), b.o.Force
	o.Member = controller.Member{Batch: b.view.ID, Name: one.Name, RunID: runID, Labels: one.Labels, Shared: b.shared}
	o.Progress = func(u controller.Update) { b.update(item, u) }
	return o, nil
}

// update handles the progress of a run.
func (b *Batch) update(item int, u controller.Update) {
	switch u.Kind {
	case controller.UpdateStep:
		b.mu.Lock()
		b.view.State[item].Step = u.Step
		b.mu.Unlock()
	case controller.UpdateUsage:
		b.mu.Lock()
		if g := b.running[item]; g != nil {
			g.usage.Add(u.Usage)
		}
		b.mu.Unlock()
		select {
		case b.kick <- struct{}{}:
		default: // the loop looks soon
		}
	case controller.UpdateWarning:
		b.notify(Event{Kind: EventWarning, Run: b.item(item), Text: u.Text})
	}
}

// end records the end of an attempt.
func (b *Batch) end(x ending) {
	b.mu.Lock()
	g := b.running[x.item]
	delete(b.running, x.item)
	b.mu.Unlock()
	b.queue.end(x.item)
	if g.taken {
		b.taking--
	}
	state := b.item(x.item)
	e := endOf(x.result)
	b.decide(state, g, e, x.result.Trouble())
	if err := b.add(Entry{Kind: entryEnd, Item: x.item, Attempt: state.Attempts, RunID: state.RunID, End: e}); err != nil {
		b.unwritten(err) // the next process finds the end in the run's record
		return
	}
	state = b.item(x.item)
	switch {
	case state.State == StateRetrying:
		at := time.Now().Add(b.delay(state.Troubles))
		b.mu.Lock()
		b.view.State[x.item].NotBefore = at.UTC()
		b.mu.Unlock()
		b.queue.again(x.item, at)
	case state.State == StateWaiting && g.taken && g.by == "":
		b.queue.again(x.item, time.Time{})
	}
	b.notify(Event{Kind: EventEnd, Run: b.item(x.item)})
}

// decide says what stopped an attempt, and whether another one follows.
func (b *Batch) decide(state *ItemView, g *going, e *End, trouble bool) {
	switch {
	case e.Status == controller.StatusCancelled && g.by != "":
		e.StoppedBy = g.by
		e.Again = !state.dropped
	case e.Status == controller.StatusCancelled:
		e.StoppedBy = "operator" // of this run alone
	case trouble && g.taken: // its controller was killed: that is no trouble of the run, however often it happens
		e.StoppedBy, e.Again = StatusAbandoned, !state.dropped
	case trouble && !state.dropped:
		e.Again = state.Troubles+1 < b.view.Retries.Attempts
	}
}

// delay is the time before the attempt after a number of troubles. It is spread, so that runs that
// failed together do not come back together.
func (b *Batch) delay(troubles int) time.Duration {
	r := b.view.Retries
	d := r.MaxDelay
	if shift := troubles - 1; shift < 32 && r.Delay<<shift > 0 && r.Delay<<shift < d {
		d = r.Delay << shift
	}
	return d/2 + rand.N(d/2+1)
}
