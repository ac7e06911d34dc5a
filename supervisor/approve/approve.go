// Package approve has a person decide what a policy leaves to one.
//
// Whoever holds a rule calls [Asker.Ask] and waits, away from any loop that
// others wait for. Whatever is not an answer denies: no approver, no time left, a
// question too long to be shown, a full queue, an audit log that takes nothing.
package approve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"agentsh/internal/wire"
)

// Asker asks a person. Ask returns when there is an answer, when the time of the
// question is over or when ctx ends, as it does when whoever waits is gone. The
// answer covers exactly what the question says.
type Asker interface {
	Ask(ctx context.Context, q wire.Question) wire.Answer
}

// MaxPending is how many questions of one session wait at a time.
const MaxPending = 64

// DefaultTimeout is how long an answer is waited for where neither the rule nor
// approvals.timeout says.
const DefaultTimeout = time.Minute

// Config is what a [Queue] works with.
type Config struct {
	Session string
	// Emit writes an audit event. Its error denies what was asked.
	Emit func(wire.Event) error
	// Settings are read for each question.
	Settings func() Settings
}

// Settings say who is asked.
type Settings struct {
	// Timeout of a question that names none; 0: [DefaultTimeout].
	Timeout time.Duration
	// Present has only approvers that follow the queue asked: without one a
	// question is denied at once. Else anybody may still come.
	Present bool
	// Closed says why nobody can be asked at all; empty: somebody can.
	Closed string
	// Program asks in place of a person at the queue; nil: none.
	Program func(context.Context, wire.Question) (wire.Answer, error)
}

// Queue holds the questions of one session until they are answered. It is safe
// for concurrent use.
type Queue struct {
	cfg Config

	mu        sync.Mutex
	next      uint64
	pending   []*pending
	followers int
	changed   chan struct{} // closed and replaced at each change
	closed    bool
}

var _ Asker = (*Queue)(nil)

type pending struct {
	wire.Pending
	answer chan wire.Answer // takes one
}

// New returns an empty queue.
func New(cfg Config) *Queue { return &Queue{cfg: cfg, changed: make(chan struct{})} }

// Ask asks one question. See [Asker].
func (q *Queue) Ask(ctx context.Context, question wire.Question) wire.Answer {
	question.Session = q.cfg.Session
	settings := q.cfg.Settings()
	timeout := time.Duration(question.TimeoutMS) * time.Millisecond
	if timeout <= 0 {
		timeout = settings.Timeout
	}
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	question.TimeoutMS = timeout.Milliseconds()
	if refusal := refuse(question, settings); refusal != "" {
		return q.told(question, deny(refusal))
	}
	if err := q.cfg.Emit(event(question, "begin")); err != nil {
		return deny("audit: " + err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if settings.Program != nil {
		return q.told(question, program(ctx, question, settings))
	}
	p, refusal := q.enter(question, timeout, settings.Present)
	if refusal != "" {
		return q.told(question, deny(refusal))
	}
	return q.told(question, q.wait(ctx, p, timeout))
}

// refuse tells why a question is not asked at all.
func refuse(question wire.Question, settings Settings) string {
	if settings.Closed != "" {
		return settings.Closed
	}
	size := len(question.Subject)
	for _, arg := range question.Argv {
		size += len(arg) + 1
	}
	for _, f := range question.Files {
		size += len(f.Path) + len(f.SHA256)
	}
	if len(question.Subject) > wire.MaxSubject || size > wire.MaxQuestion {
		return "it is too long to be shown to a person"
	}
	return ""
}

func deny(reason string) wire.Answer { return wire.Answer{Reason: reason} }

// program has a program answer.
func program(ctx context.Context, question wire.Question, settings Settings) wire.Answer {
	answer, err := settings.Program(ctx, question)
	if err != nil {
		return deny(err.Error())
	}
	if ctx.Err() != nil {
		return deny("no answer in time")
	}
	return answer
}

// enter puts a question into the queue, or says why not.
func (q *Queue) enter(question wire.Question, timeout time.Duration, present bool) (*pending, string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return nil, "the session ends"
	case present && q.followers == 0:
		return nil, "no approver is there"
	case len(q.pending) >= MaxPending:
		return nil, fmt.Sprintf("%d questions wait already", MaxPending)
	}
	q.next++
	now := time.Now()
	p := &pending{answer: make(chan wire.Answer, 1)}
	p.Pending = wire.Pending{ID: strconv.FormatUint(q.next, 10), Question: question, Asked: now, Ends: now.Add(timeout)}
	q.pending = append(q.pending, p)
	q.notify()
	return p, ""
}

// wait waits for the answer to a question and takes it out of the queue.
func (q *Queue) wait(ctx context.Context, p *pending, timeout time.Duration) wire.Answer {
	select {
	case answer := <-p.answer:
		return answer
	case <-ctx.Done():
	}
	if q.remove(p) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return deny(fmt.Sprintf("no answer within %s", timeout))
		}
		return deny("who asked for it is gone")
	}
	return <-p.answer // it was answered at the same moment
}

// remove takes a question out; false: somebody was faster.
func (q *Queue) remove(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.pending, p)
	if i < 0 {
		return false
	}
	q.pending = slices.Delete(q.pending, i, i+1)
	q.notify()
	return true
}

// notify wakes the followers. mu is held.
func (q *Queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// told records an answer. One that cannot be recorded is a denial.
func (q *Queue) told(question wire.Question, answer wire.Answer) wire.Answer {
	e := event(question, "end")
	e.Decision, e.By, e.Message = "deny", answer.By, answer.Reason
	if answer.Allow {
		e.Decision = "allow"
	}
	if err := q.cfg.Emit(e); err != nil {
		return deny("audit: " + err.Error())
	}
	return answer
}

// event describes a question for the audit log.
func event(question wire.Question, phase string) wire.Event {
	return wire.Event{
		Type: wire.EventApproval, Phase: phase, Command: question.Command, Op: question.Kind, Path: question.Subject,
		Argv: question.Argv, Process: question.Process, Rule: question.Rule, Mechanism: "approval", Message: question.Message,
	}
}

// Answer answers the question of an id. The error says that no such question
// waits: it was answered, or its time was over.
func (q *Queue) Answer(a wire.ApprovalAnswer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.pending, func(p *pending) bool { return p.ID == a.ID })
	if i < 0 {
		return &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("no question %.64q waits: it was answered, or its time is over", a.ID)}
	}
	if a.By == "" {
		return &wire.Error{Code: wire.CodeRefused, Message: "an answer names who gives it"}
	}
	q.pending[i].answer <- wire.Answer{Allow: a.Allow, By: a.By}
	q.pending = slices.Delete(q.pending, i, i+1)
	q.notify()
	return nil
}

// List is what waits, oldest first.
func (q *Queue) List() []wire.Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.list()
}

func (q *Queue) list() []wire.Pending {
	out := make([]wire.Pending, len(q.pending))
	for i, p := range q.pending {
		out[i] = p.Pending
	}
	return out
}

// Follow calls fn with what waits, now and after each change, until ctx ends, fn
// returns an error or the queue is closed. Meanwhile an approver is there.
func (q *Queue) Follow(ctx context.Context, fn func([]wire.Pending) error) error {
	q.mu.Lock()
	q.followers++
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		q.followers--
		q.mu.Unlock()
	}()
	for {
		q.mu.Lock()
		list, changed, closed := q.list(), q.changed, q.closed
		q.mu.Unlock()
		if closed {
			return nil
		}
		if err := fn(list); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close denies what waits and all that is asked later.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	for _, p := range q.pending {
		p.answer <- deny("the session ends")
	}
	q.pending = nil
	q.notify()
}
