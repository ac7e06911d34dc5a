package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"agentsh/controller/webhook"
	"agentsh/internal/wire"
)

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
		"see doc/approvals.md", "policy %s: approvals: {via: webhook}: no webhook is configured", shortName(p.harness.Path(p.harness.Policy)))
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
