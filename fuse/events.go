package fuse

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// Limits of the event stream. Repeats of an event within a window are counted instead
// of sent. For one rule and operation only the first paths are sent as separate
// events.
const (
	eventWindow  = time.Second
	eventQueue   = 4096
	eventsPerOp  = 64
	eventsTotal  = 4096 // different events of one window that are counted separately
	mechanism    = "fuse"
	approveWords = "approval is needed and nobody can give it here"
)

// report is one decision that becomes an event.
type report struct {
	tid   uint32
	event wire.Event
	done  chan struct{} // not an event: closed when all earlier reports were sent
	await uint64        // number of an event that the operation waits for; 0: none
}

// recordTimeout is how long a denied operation waits until its event is recorded. The
// supervisor explains the denial to the process, which must still exist.
const recordTimeout = 100 * time.Millisecond

// eventKey identifies equal reports.
type eventKey struct {
	tid                    uint32
	path, target, op, rule string
}

// burstKey groups reports that differ only in process and path.
type burstKey struct{ op, rule, decision string }

// tally counts reports that were not sent separately.
type tally struct {
	report report
	sent   int
	more   int
}

// reporter turns decisions into events without delaying the operation. It prevents a
// walk over a denied tree from flooding the log.
type reporter struct {
	session string
	resolve *resolver
	send    func(e wire.Event, number uint64)
	queue   chan *report // of pointers: the queue is nearly always empty, but its memory stays allocated

	mu     sync.Mutex
	known  map[uint32]*wire.Process // found in this window
	begun  bool
	seen   map[eventKey]*tally
	bursts map[burstKey]*tally
	lost   int // reports that did not fit in the queue

	number  uint64                   // of the last awaited event
	awaited map[uint64]chan struct{} // closed when the event of that number is recorded
}

func newReporter(session string, resolve *resolver, send func(e wire.Event, number uint64)) *reporter {
	return &reporter{
		session: session, resolve: resolve, send: send,
		queue:  make(chan *report, eventQueue),
		known:  map[uint32]*wire.Process{},
		seen:   map[eventKey]*tally{},
		bursts: map[burstKey]*tally{},

		awaited: map[uint64]chan struct{}{},
	}
}

// run sends events until ctx is done, and then the remaining ones.
func (r *reporter) run(ctx context.Context) {
	tick := time.NewTicker(eventWindow)
	defer tick.Stop()
	for {
		select {
		case rep := <-r.queue:
			r.deliver(rep)
		case <-tick.C:
			r.flush()
		case <-ctx.Done():
			for {
				select {
				case rep := <-r.queue:
					r.deliver(rep)
				default:
					r.flush()
					return
				}
			}
		}
	}
}

func (r *reporter) deliver(rep *report) {
	if rep.done != nil {
		r.flush()
		close(rep.done)
		return
	}
	r.send(rep.event, rep.await)
}

// identify finds the process behind a request while the request is still waiting for
// its answer. The process may end afterwards.
func (r *reporter) identify(rep *report) {
	if rep.tid == 0 {
		return
	}
	r.mu.Lock()
	p := r.known[rep.tid]
	r.mu.Unlock()
	if p == nil {
		p = r.resolve.process(rep.tid)
		r.mu.Lock()
		r.known[rep.tid] = p
		r.mu.Unlock()
	}
	rep.event.Process = p
}

// begin starts the event stream. Earlier requests come from the set-up of the session,
// which inspects its own mounts.
func (r *reporter) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = true
}

// drain waits until all earlier decisions were sent.
func (r *reporter) drain(ctx context.Context) {
	done := make(chan struct{})
	select {
	case r.queue <- &report{done: done}:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// add queues one decision. If the decision is sent separately, add finds its process at
// once. It waits for the record of a denial, at most [recordTimeout], and for nothing
// else.
func (r *reporter) add(rep report) {
	if !r.single(&rep) {
		return
	}
	r.identify(&rep)
	sent := rep // allocated here: a report that is only counted needs no allocation
	var recorded chan struct{}
	if sent.event.Process != nil && sent.event.Decision == policy.Deny.String() {
		recorded = make(chan struct{})
		r.mu.Lock()
		r.number++
		sent.await = r.number
		r.awaited[sent.await] = recorded
		r.mu.Unlock()
		defer r.recorded(sent.await)
	}
	select {
	case r.queue <- &sent:
	default:
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
		return
	}
	if recorded != nil {
		timer := time.NewTimer(recordTimeout)
		defer timer.Stop()
		select {
		case <-recorded:
		case <-timer.C:
		}
	}
}

// recorded ends the wait for an event.
func (r *reporter) recorded(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done := r.awaited[number]; done != nil {
		close(done)
		delete(r.awaited, number)
	}
}

// single completes a report and reports whether it is sent separately. Otherwise the
// report is counted.
func (r *reporter) single(rep *report) bool {
	e := &rep.event
	e.Time, e.Session, e.Type, e.Mechanism = time.Now(), r.session, wire.EventFile, mechanism
	var rule string
	if e.Rule != nil {
		rule = e.Rule.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun {
		return false
	}
	key := eventKey{rep.tid, e.Path, e.Target, e.Op, rule}
	if t := r.seen[key]; t != nil {
		t.more++
		return false
	}
	group := burstKey{e.Op, rule, e.Decision}
	burst := r.bursts[group]
	if burst == nil {
		burst = &tally{report: *rep}
		r.bursts[group] = burst
	}
	if burst.sent >= eventsPerOp || len(r.seen) >= eventsTotal {
		burst.more++
		return false
	}
	burst.sent++
	r.seen[key] = &tally{report: *rep}
	return true
}

// fault reports a failure of the server itself.
func (r *reporter) fault(message string) {
	rep := report{event: wire.Event{Time: time.Now(), Session: r.session, Type: wire.EventFault, Mechanism: mechanism,
		Decision: policy.Deny.String(), Message: message}}
	select {
	case r.queue <- &rep:
	default:
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
	}
}

// flush sends the counts of the window that ends.
func (r *reporter) flush() {
	r.mu.Lock()
	seen, bursts, lost := r.seen, r.bursts, r.lost
	if len(seen)+len(bursts)+lost == 0 {
		r.mu.Unlock()
		return
	}
	r.seen, r.bursts, r.lost = map[eventKey]*tally{}, map[burstKey]*tally{}, 0
	r.mu.Unlock()
	for _, t := range seen {
		if t.more > 0 {
			t.report.event.Count = t.more
			r.mu.Lock()
			t.report.event.Process = r.known[t.report.tid]
			r.mu.Unlock()
			r.deliver(&t.report)
		}
	}
	for _, t := range bursts {
		if t.more > 0 {
			e := t.report.event
			e.Path, e.Target, e.Count = "", "", t.more
			e.Message = strings.TrimSpace(e.Message + " (on further paths)")
			r.send(e, 0)
		}
	}
	r.mu.Lock()
	clear(r.known)
	r.mu.Unlock()
	if lost > 0 {
		r.send(wire.Event{Time: time.Now(), Session: r.session, Type: wire.EventFault, Mechanism: mechanism,
			Count: lost, Message: fmt.Sprintf("%d file events came too fast to be told singly", lost)}, 0)
	}
}

// shown makes a file name printable: bytes that are not UTF-8 become \xNN.
func shown(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		c, size := utf8.DecodeRuneInString(s)
		if c == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[0])
		} else {
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}
