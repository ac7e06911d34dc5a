package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/controller/agenthost"
	"agentsh/controller/attach"
	"agentsh/controller/sandbox"
	"agentsh/controller/webhook"
	"agentsh/internal/wire"
)

// box is the sandbox of a run, with the goroutines that depend on it.
type box struct {
	sandbox  sandbox.Sandbox
	side     *agenthost.Side // of an agent's program on the host, set by agent_host; nil: there is none
	hello    wire.Hello      // of the supervisor
	attached *attach.Server  // nil: operators cannot attach
	events   chan struct{}   // closed after the event stream has ended; nil: not started
	deleted  chan error      // receives the result of the deletion; nil: not started
	stopping atomic.Bool     // the end of the event stream is expected
	unforce  func() bool     // cancels endOnForce; nil: it was not called

	working sync.WaitGroup // what [box.background] started
	unwork  []context.CancelFunc
}

// forcedStop is the time that a supervisor has to end by itself after a second
// interruption.
const forcedStop = time.Second

// endOnForce ends the sandbox when forced ends. Everything that waits for its
// supervisor then fails.
func (b *box) endOnForce(forced context.Context) {
	b.unforce = context.AfterFunc(forced, func() {
		ctx, cancel := context.WithTimeout(context.Background(), forcedStop)
		defer cancel()
		b.stopping.Store(true)
		_ = b.sandbox.Stop(ctx) // the deletion calls it again and reports the error
	})
}

// ready waits until the supervisor answers.
func (b *box) ready(ctx context.Context, limit time.Duration) (wire.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the sandbox did not answer within %s", limit))
	defer cancel()
	hello, err := b.sandbox.Ready(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return hello, fmt.Errorf("sandbox %s: %w", b.sandbox.ID(), err)
	}
	return hello, nil
}

// follow counts events until the supervisor is gone; stop waits for it. Events
// after an early end of the stream are not missed: they are counted from the
// audit log at the end.
func (b *box) follow(ctx context.Context, c *counts, p progress) {
	b.events = make(chan struct{})
	go func() {
		defer close(b.events)
		err := b.sandbox.Events(ctx, wire.EventRequest{}, func(e wire.Event) error {
			c.add(e)
			return nil
		})
		if err != nil && !b.stopping.Load() && b.gone() == nil {
			p.warn("the event stream ended early: %v", err)
		}
	}()
}

// listen lets operators attach to the sandbox, if its backend supports that.
func (b *box) listen(ctx context.Context, dir string, c *control) (err error) {
	if to, ok := b.sandbox.(attach.Relayer); ok {
		b.attached, err = attach.Listen(context.WithoutCancel(ctx), dir, to, c.stopRun)
	}
	return err
}

// gone returns the reason if the supervisor ended by itself. The connection
// breaks shortly before the reason is known, so gone waits up to one second. It
// may be called on a nil box.
func (b *box) gone() error {
	if b == nil || b.stopping.Load() {
		return nil
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-b.sandbox.Gone():
		return b.sandbox.Cause()
	case <-t.C:
		return nil
	}
}

// stop ends everything in the sandbox. A second call is no error.
func (b *box) stop(ctx context.Context, p progress) error {
	b.stopping.Store(true)
	b.attached.Stop()
	b.endWork()
	err := b.sandbox.Stop(ctx)
	if b.events != nil {
		<-b.events
	}
	b.closeDoor(p)
	return err
}

// closeDoor removes what lets operators in. Files of it that cannot be removed are no reason to lose the agent's work.
func (b *box) closeDoor(p progress) {
	if err := b.attached.Close(); err != nil {
		p.warn("files that let operators in were not removed: %v", err)
	}
}

// background works for the sandbox until the box stops it.
func (b *box) background(ctx context.Context, work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.unwork = append(b.unwork, cancel)
	b.working.Go(func() { work(ctx) })
}

// endWork ends what works for the sandbox.
func (b *box) endWork() {
	for _, cancel := range b.unwork {
		cancel()
	}
	b.working.Wait()
}

// keep leaves the sandbox to other controllers, and returns the end of its lease.
func (b *box) keep(ctx context.Context, p progress) (time.Time, error) {
	b.stopping.Store(true)
	if b.unforce != nil {
		b.unforce()
	}
	b.attached.Stop()
	b.endWork()
	until, err := b.sandbox.Keep(ctx)
	if b.events != nil {
		<-b.events
	}
	b.closeDoor(p)
	return until, err
}

// startDelete deletes the stopped sandbox in the background; waitDeleted returns
// its end.
func (b *box) startDelete(ctx context.Context) {
	b.deleted = make(chan error, 1)
	go func() { b.deleted <- b.sandbox.Delete(context.WithoutCancel(ctx)) }()
}

func (b *box) waitDeleted() error {
	err := <-b.deleted
	if b.unforce != nil {
		b.unforce()
	}
	return err
}

// approver is a sandbox whose questions can be answered.
type approver interface {
	FollowApprovals(ctx context.Context, command string, fn func([]wire.Pending) error) error
	Answer(ctx context.Context, a wire.ApprovalAnswer) error
}

// checkApprovals rejects a policy whose questions nobody would answer.
func checkApprovals(p plan, to *webhook.Sender) error {
	if p.policy.Approvals().Via != "webhook" || to != nil {
		return nil
	}
	return badConfig("write approvals: {webhook: URL, key_file: FILE} in agentctl.yaml, or give --approval-webhook and --approval-key; "+
		"see doc/batch.md", "policy %s: approvals: {via: webhook}: no webhook is configured", shortName(p.harness.Path(p.harness.Policy)))
}

// approvals are the questions of a sandbox that are sent to a webhook.
type approvals struct {
	to       *webhook.Sender
	about    webhook.Run
	sandbox  approver
	progress progress

	asked   sync.WaitGroup
	present chan struct{} // closed when the supervisor has said which questions wait
	mu      sync.Mutex
	going   map[string]context.CancelFunc // by the id of a question
}

// follow has the questions of a sandbox answered until its supervisor is gone or ctx ends.
func (a *approvals) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.asked.Wait()
	defer cancel()
	first := true
	return a.sandbox.FollowApprovals(ctx, "", func(list []wire.Pending) error {
		if first {
			close(a.present)
			first = false
		}
		a.update(ctx, list)
		return nil
	})
}

// update asks new questions, and stops asking those that do not wait any more.
func (a *approvals) update(ctx context.Context, list []wire.Pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := map[string]bool{}
	for _, p := range list {
		waiting[p.ID] = true
		if a.going[p.ID] != nil {
			continue
		}
		// The supervisor's clock may be another one: the time is counted from now.
		one, cancel := context.WithTimeout(ctx, p.Ends.Sub(p.Asked))
		a.going[p.ID] = cancel
		a.asked.Go(func() {
			defer cancel()
			a.ask(one, p)
		})
	}
	for id, cancel := range a.going {
		if !waiting[id] {
			cancel()
			delete(a.going, id)
		}
	}
}

// answerTime is how long a supervisor may take to accept an answer.
const answerTime = 10 * time.Second

// ask asks one question. Without an answer in time the supervisor denies it by itself.
func (a *approvals) ask(ctx context.Context, p wire.Pending) {
	answer, err := a.to.Ask(ctx, a.about, p)
	var refused *webhook.Refusal
	switch {
	case errors.As(err, &refused):
		answer = wire.ApprovalAnswer{ID: p.ID, Reason: refused.Reason}
		a.progress.warn("question %s: %v", p.ID, err)
	case err != nil && errors.Is(err, context.Canceled):
		return // somebody else has answered, or the run ends
	case err != nil:
		a.progress.warn("question %s is denied: no answer in time: %v", p.ID, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if err := a.sandbox.Answer(ctx, answer); err != nil && !errors.As(err, new(*wire.Error)) { // else it was answered meanwhile
		a.progress.warn("answer question %s: %v", p.ID, err)
	}
}

// approve has the questions of the sandbox answered by the webhook until [box.stop].
func (b *box) approve(ctx context.Context, to *webhook.Sender, about webhook.Run, p progress) {
	sandbox, can := b.sandbox.(approver)
	if !can || to == nil {
		return
	}
	a := &approvals{to: to, about: about, sandbox: sandbox, progress: p, going: map[string]context.CancelFunc{}, present: make(chan struct{})}
	ended := make(chan struct{})
	b.background(ctx, func(ctx context.Context) {
		defer close(ended)
		if err := a.follow(ctx); err != nil && !b.stopping.Load() && ctx.Err() == nil && b.gone() == nil {
			p.warn("questions are not sent to the webhook any more: %v", err)
		}
	})
	select { // a question before that would be denied
	case <-a.present:
	case <-ended:
	}
}
