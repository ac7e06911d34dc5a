// Package approve asks a person about requests that a policy wants approved.
//
// The caller of [Asker.Ask] waits on a goroutine that nobody else needs. Every outcome but
// an allow denies: no approver, no time left, a question that is too long, a full queue, an
// audit log that cannot be written.
package approve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Asker asks a person. Ask returns when there is an answer, when the time of the question
// is over, or when ctx ends, as it does when the requester has ended. The answer covers
// exactly the content of the question.
type Asker interface {
	Ask(ctx context.Context, q wire.Question) wire.Answer
}

// MaxPending is the most questions of one session that wait at a time.
const MaxPending = 64

// DefaultTimeout is the time for an answer if neither the rule nor approvals.timeout has
// one.
const DefaultTimeout = time.Minute

// Config is what a [Queue] works with.
type Config struct {
	Session string
	// Emit writes an audit event. If it fails, the question is denied.
	Emit func(wire.Event) error
	// Settings are read for each question.
	Settings func() Settings
}

// Settings select the approver.
type Settings struct {
	// Timeout of a question that names none; 0: [DefaultTimeout].
	Timeout time.Duration
	// Present denies a question at once if no approver follows the queue. Otherwise the
	// question waits for one.
	Present bool
	// Absent says what to do if Present and no approver follows; empty: see [Queue.Absent].
	Absent string
	// Closed is the reason why questions are denied at once; empty: they are not.
	Closed string
	// Program answers instead of the queue; nil: none.
	Program func(context.Context, wire.Question) (wire.Answer, error)
}

// Queue holds the questions of one session until they are answered. It is safe
// for concurrent use.
type Queue struct {
	cfg Config

	mu        sync.Mutex
	next      uint64
	pending   []*pending
	followers map[string]int    // by the command whose questions they answer; "": all
	nobody    string            // why there is no follower; empty: not known
	always    map[string]string // what is allowed for the session, and by whom
	denied    map[string]string // what a process was denied, and by whom
	changed   chan struct{}     // closed and replaced at each change
	closed    bool
}

var _ Asker = (*Queue)(nil)

type pending struct {
	wire.Pending
	answer chan wire.Answer // has room for one
}

// New returns an empty queue.
func New(cfg Config) *Queue {
	return &Queue{
		cfg: cfg, followers: map[string]int{}, always: map[string]string{}, denied: map[string]string{}, changed: make(chan struct{}),
	}
}

// Absent sets why nobody follows the queue, for refusals of questions.
func (q *Queue) Absent(why string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nobody = why
}

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
		return q.record(question, deny(refusal))
	}
	if err := q.cfg.Emit(event(question, "begin")); err != nil {
		return deny("audit: " + err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if settings.Program != nil {
		return q.record(question, program(ctx, question, settings))
	}
	if answer := q.remembered(question); answer.By != "" {
		return q.record(question, answer)
	}
	p, refusal := q.enter(question, timeout, settings)
	if refusal != "" {
		return q.record(question, deny(refusal))
	}
	return q.record(question, q.wait(ctx, p, timeout))
}

// refuse returns why a question is not asked at all, or an empty string.
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

// program gets the answer of Settings.Program.
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

// enter adds a question to the queue, or returns why not.
func (q *Queue) enter(question wire.Question, timeout time.Duration, settings Settings) (*pending, string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return nil, "the session ends"
	case settings.Present && q.followers[""]+q.followers[question.Command] == 0:
		return nil, "no approver is there: " + cmp.Or(settings.Absent, q.nobody, "run 'agentsh approve' on a terminal, beside the session")
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

// wait waits for the answer to a question and removes it from the queue.
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
		return deny("the requester has ended")
	}
	return <-p.answer // it was answered at the same moment
}

// remove removes a question. It returns false if the question was answered already.
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

// notify wakes the followers. It is called with mu held.
func (q *Queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// record writes an answer to the audit log. If that fails, it denies.
func (q *Queue) record(question wire.Question, answer wire.Answer) wire.Answer {
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
		Type: wire.EventApproval, Phase: phase, Command: question.Command, Op: question.Kind, Path: string(question.Subject),
		Argv: question.Argv, Process: question.Process, Rule: question.Rule, Mechanism: "approval", Message: question.Message,
	}
}

// Answer answers the question with an id. It returns an error if the question was answered
// already or its time is over.
func (q *Queue) Answer(a wire.ApprovalAnswer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.pending, func(p *pending) bool { return p.ID == a.ID })
	if i < 0 {
		return &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("no question %.64q waits: it was answered, or its time is over", a.ID)}
	}
	if a.By == "" && (a.Allow || a.Reason == "") {
		return &wire.Error{Code: wire.CodeRefused, Message: "an answer needs the name of the approver"}
	}
	answer := wire.Answer{Allow: a.Allow, By: a.By}
	if !a.Allow && a.Reason != "" {
		answer.Reason = text.Short(a.Reason, maxReason)
	}
	key := same(q.pending[i].Question)
	if a.By != "" && !a.Allow {
		q.deny(q.pending[i].Question, a.By)
	}
	q.pending[i].answer <- answer
	q.pending = slices.Delete(q.pending, i, i+1)
	if a.Allow && a.Always && len(q.always) < maxAlways {
		q.always[key] = a.By + ", for the session"
		q.pending = slices.DeleteFunc(q.pending, func(p *pending) bool {
			repeated := same(p.Question) == key
			if repeated {
				p.answer <- wire.Answer{Allow: true, By: q.always[key]}
			}
			return repeated
		})
	}
	q.notify()
	return nil
}

// maxReason bounds the reason of a denial, in characters.
const maxReason = 400

// maxAlways bounds the answers that hold for a session. Beyond them each question is
// asked.
const maxAlways = 1000

// same is equal for questions that ask for the same action by the same rule: all that a
// person was shown of it.
func same(question wire.Question) string {
	question.Process, question.Command, question.TimeoutMS = nil, "", 0
	key, err := json.Marshal(question)
	if err != nil {
		return "" // it has texts and numbers only
	}
	return string(key)
}

// again is equal for the attempts of one process to execute the same arguments. A shell
// tries each directory of PATH, as long as it is refused. Empty: it is no such attempt.
func again(question wire.Question) string {
	if question.Kind != wire.AskExec || question.Process == nil {
		return ""
	}
	argv, err := json.Marshal(question.Argv)
	if err != nil {
		return "" // they are texts
	}
	return fmt.Sprintf("%d %d %s", question.Process.PID, question.Process.StartTime, argv)
}

// maxDenied bounds the denials that are remembered.
const maxDenied = 1000

// deny remembers that a person denied an exec of a process. It is called with mu held.
func (q *Queue) deny(question wire.Question, by string) {
	if len(q.denied) == maxDenied {
		clear(q.denied)
	}
	if key := again(question); key != "" {
		q.denied[key] = by
	}
}

// remembered returns the answer that was given to the same question before; the zero
// value: none.
func (q *Queue) remembered(question wire.Question) wire.Answer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if by := q.denied[again(question)]; by != "" {
		return wire.Answer{By: by}
	}
	if q.closed || len(q.always) == 0 {
		return wire.Answer{}
	}
	by := q.always[same(question)]
	return wire.Answer{Allow: by != "", By: by}
}

// Forget has everything asked again. A policy that is replaced calls it.
func (q *Queue) Forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.always)
}

// List returns the questions that wait, oldest first.
func (q *Queue) List() []wire.Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.list("")
}

// list is the questions of a command, or of all.
func (q *Queue) list(command string) []wire.Pending {
	out := make([]wire.Pending, 0, len(q.pending))
	for _, p := range q.pending {
		if command == "" || p.Command == command {
			out = append(out, p.Pending)
		}
	}
	return out
}

// Follow calls fn with the questions that wait, now and after each change. It returns when
// ctx ends, fn returns an error or the queue is closed. Until then an approver is present.
// With a command, fn gets its questions alone, and only where [Settings.Present] asks whoever
// is there: the caller of a command then answers for it.
func (q *Queue) Follow(ctx context.Context, command string, fn func([]wire.Pending) error) error {
	q.follow(command, 1)
	defer q.follow(command, -1)
	for {
		present := command == "" || q.cfg.Settings().Present
		q.mu.Lock()
		list, changed, closed := q.list(command), q.changed, q.closed
		q.mu.Unlock()
		if !present {
			list = nil
		}
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

func (q *Queue) follow(command string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.followers[command] += n; q.followers[command] == 0 {
		delete(q.followers, command)
	}
}

// Close denies the questions that wait, and all later ones.
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
