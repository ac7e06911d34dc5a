package fuse

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// statusAsk is returned by a handler if the operation needs an approval first. It
// never reaches the kernel: [asker] requests the approval and calls the handler again.
const statusAsk gofuse.Status = -1

// killPeriod is the interval in which the server checks whether a waiting caller was
// killed. The kernel announces only the first signal. The caller cannot end before its
// request is answered.
const killPeriod = 250 * time.Millisecond

// approvals stores the approval requests and the approved queries of waiting requests,
// by thread id. A thread has one request at a time.
type approvals struct {
	put func(context.Context, wire.Question) wire.Answer // nil: approvals are not available

	mu      sync.Mutex
	open    map[uint32]verdict // verdict that the request of a thread waits for
	granted map[uint32][]query // queries that were approved for the request of a thread
}

func newApprovals(put func(context.Context, wire.Question) wire.Answer) *approvals {
	return &approvals{put: put, open: map[uint32]verdict{}, granted: map[uint32][]query{}}
}

// can reports whether an approval can be requested for a thread.
func (a *approvals) can(tid uint32) bool { return a.put != nil && tid != 0 }

func (a *approvals) allowed(tid uint32, x query) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.granted[tid] {
		if g == x {
			return true
		}
	}
	return false
}

func (a *approvals) wait(tid uint32, v verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[tid] = v
}

func (a *approvals) next(tid uint32) verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.open[tid]
	delete(a.open, tid)
	return v
}

func (a *approvals) grant(tid uint32, x query) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted[tid] = append(a.granted[tid], x)
}

func (a *approvals) forget(tid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.granted, tid)
}

// asker calls a handler. If a rule requires an approval, asker requests it and then
// calls the handler again. It holds no lock while it waits, and other requests
// continue. The second call evaluates everything anew, so an approval applies only to
// the path that was shown.
type asker struct {
	access *access
	kernel *kernel
}

// decided returns the answer of a handler.
func (k *asker) decided(tid uint32, do func() gofuse.Status) gofuse.Status {
	return k.decidedBy(tid, k.approved, do)
}

// decidedCached is like decided, for a request whose answer the kernel caches. The
// rules may be replaced while it waits for an approval. See [current].
func (k *asker) decidedCached(tid uint32, do func() gofuse.Status) gofuse.Status {
	return k.decidedBy(tid, func(tid uint32, v verdict) bool {
		k.access.rules.caching.RUnlock()
		defer k.access.rules.caching.RLock()
		return k.approved(tid, v)
	}, do)
}

func (k *asker) decidedBy(tid uint32, approved func(uint32, verdict) bool, do func() gofuse.Status) gofuse.Status {
	code := do()
	if code != statusAsk {
		return code
	}
	k.kernel.StepAside()
	defer k.access.approvals.forget(tid)
	for code == statusAsk {
		v := k.access.approvals.next(tid)
		if !approved(tid, v) {
			return gofuse.EACCES
		}
		k.access.approvals.grant(tid, v.query)
		code = do()
	}
	return code
}

// approved requests the approval of one verdict and reports the answer.
func (k *asker) approved(tid uint32, v verdict) bool {
	p := k.access.reporter.resolve.process(tid)
	q := wire.Question{
		Kind: wire.EventFile, Subject: wire.Name(v.op.String() + " " + k.access.files.inside(v.rel)), Process: p, Message: v.diag.Message,
	}
	if v.dec.Rule != nil {
		q.Rule = v.dec.Rule.At()
		q.TimeoutMS = v.dec.Rule.ApproveTimeout.Milliseconds()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go whenKilled(ctx, p.PID, cancel) // ends with ctx
	answer := k.access.approvals.put(ctx, q)
	reason := answer.Reason
	if answer.By != "" {
		reason = strings.TrimSpace("by " + answer.By + " " + reason)
	}
	v.diag.Message = strings.TrimSpace(v.diag.Message + " (" + reason + ")")
	if !answer.Allow {
		v.diag.Hint = answer.Hint(v.diag.Hint)
		v.dec.Effect = policy.Deny
	}
	k.access.report(tid, "", v)
	return answer.Allow
}

// whenKilled calls dead when a process has ended or has been sent SIGKILL.
func whenKilled(ctx context.Context, pid int, dead func()) {
	if pid == 0 {
		return
	}
	tick := time.NewTicker(killPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if killed(pid) {
				dead()
				return
			}
		}
	}
}

// killed reports whether a thread of a process has SIGKILL pending. If a signal ends a
// process, all its threads have it pending. See complete_signal in kernel/signal.c.
func killed(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	const sigkill = 1 << 8
	for _, task := range tasks {
		pending, err := strconv.ParseUint(statusField(dir+"/"+task.Name()+"/status", "SigPnd:"), 16, 64)
		if err == nil && pending&sigkill != 0 {
			return true
		}
	}
	return false
}

// questions are the approval requests that the server has sent to the supervisor.
type questions struct {
	ch *channel

	mu      sync.Mutex
	next    uint64
	open    map[uint64]chan wire.Answer
	refused int // callers of refuse that have not called resume
}

// replacedRules is the answer to a question that was asked by replaced rules.
var replacedRules = wire.Answer{Reason: "the rules were replaced meanwhile: try again"}

// refuse answers every question with a denial until resume is called.
func (q *questions) refuse() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused++
	for id, waiting := range q.open {
		waiting <- replacedRules
		delete(q.open, id)
	}
}

// resume sends questions to the supervisor again.
func (q *questions) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused--
}

// put sends a question to the supervisor. It waits for the answer or for the end of
// ctx.
func (q *questions) put(ctx context.Context, question wire.Question) wire.Answer {
	answer := make(chan wire.Answer, 1)
	q.mu.Lock()
	if q.refused > 0 {
		q.mu.Unlock()
		return replacedRules
	}
	q.next++
	id := q.next
	q.open[id] = answer
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.open, id)
		q.mu.Unlock()
	}()
	if err := q.ch.send(reply{Ask: &asked{ID: id, Question: &question}}); err != nil {
		return wire.Answer{Reason: "the supervisor cannot be asked: " + err.Error()}
	}
	select {
	case a := <-answer:
		if a == replacedRules {
			_ = q.ch.send(reply{Ask: &asked{ID: id}}) // a broken socket ends the server
		}
		return a
	case <-ctx.Done():
		_ = q.ch.send(reply{Ask: &asked{ID: id}}) // a broken socket ends the server
		return wire.Answer{Reason: "the requester has ended"}
	}
}

// answer delivers an answer of the supervisor to the waiting request.
func (q *questions) answer(a *answered) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiting := q.open[a.ID]; waiting != nil {
		waiting <- a.Answer
		delete(q.open, a.ID)
	}
}
