package telemetry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/internal/text"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Bounds of the queue.
const (
	maxQueue   = 8192 // events and spans that wait; further ones are not sent
	maxRequest = 512  // in one request
	gather     = 500 * time.Millisecond
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
	retryTime  = 5 * time.Minute
	// maxRetryAfter bounds what a collector asks for.
	maxRetryAfter = 2 * time.Minute
)

// item is an event or a span that waits.
type item struct {
	log  sdklog.Record
	span sdktrace.ReadOnlySpan // nil: it is an event
	of   *tally
}

// tally counts what is exported of a run. The mutex of the queue guards it.
type tally struct {
	added, sent, lost int
	why               string // the last error
}

func (t *tally) waiting() int { return t.added - t.sent - t.lost }

// queue sends events and spans in the background, in their order. Safe for concurrent use.
type queue struct {
	client *client

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   chan struct{} // closed when the sender has ended

	mu      sync.Mutex
	items   []item
	all     tally
	counted string        // why the metrics were not sent last; empty: they were
	busy    time.Time     // start of the request that is going on; zero: there is none
	urgent  bool          // somebody waits for the end: nothing is tried again
	changed chan struct{} // closed at each change
}

func newQueue(c *client) *queue {
	q := &queue{client: c, done: make(chan struct{}), changed: make(chan struct{})}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	go q.send() // ends with close
	return q
}

// change wakes those that wait. The caller holds the mutex.
func (q *queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// add adds an item. If the queue is full or closed, the item is counted as lost.
func (q *queue) add(i item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i.of.added++
	q.all.added++
	switch {
	case q.ctx.Err() != nil:
		q.lose(i.of, "the export has ended")
	case len(q.items) >= maxQueue:
		q.lose(i.of, "the collector is too slow, or away")
	default:
		q.items = append(q.items, i)
		if len(q.items) == 1 || len(q.items) == maxRequest {
			q.change()
		}
	}
}

// lose counts an item that is not sent. An earlier reason, which names the cause, is kept.
func (q *queue) lose(of *tally, why string) {
	for _, t := range []*tally{of, &q.all} {
		t.lost++
		if t.why == "" || !strings.HasPrefix(why, "the ") {
			t.why = why
		}
	}
}

// send sends until the queue is closed.
func (q *queue) send() {
	defer close(q.done)
	for {
		items := q.next()
		if items == nil {
			return
		}
		q.deliver(items)
	}
}

// next waits for items, and a moment for more of them. nil: the queue is closed.
func (q *queue) next() []item {
	var more <-chan time.Time
	for {
		q.mu.Lock()
		n, changed := len(q.items), q.changed
		if q.ctx.Err() != nil {
			q.mu.Unlock()
			return nil
		}
		if n >= maxRequest || n > 0 && (q.urgent || more == closedTimer) {
			n = min(n, maxRequest)
			items := q.items[:n:n]
			q.items = q.items[n:]
			q.mu.Unlock()
			return items
		}
		q.mu.Unlock()
		if n > 0 && more == nil {
			more = time.After(gather)
		}
		select {
		case <-more:
			more = closedTimer
		case <-changed:
		case <-q.ctx.Done():
		}
	}
}

// closedTimer marks that the time for more items is over.
var closedTimer = make(<-chan time.Time)

// deliver sends items, and counts what became of them.
func (q *queue) deliver(items []item) {
	var logs []sdklog.Record
	var spans []sdktrace.ReadOnlySpan
	for _, i := range items {
		if i.span == nil {
			logs = append(logs, i.log)
		} else {
			spans = append(spans, i.span)
		}
	}
	if len(logs) > 0 {
		rejected, err := q.try("logs", func(ctx context.Context) error { return q.client.logs.Export(ctx, logs) })
		q.note(items, false, rejected, err)
	}
	if len(spans) > 0 {
		rejected, err := q.try("traces", func(ctx context.Context) error { return q.client.spans.ExportSpans(ctx, spans) })
		q.note(items, true, rejected, err)
	}
}

// note counts what became of the events, or the spans, of a request. With rejected, the collector
// has taken the others; it does not say which ones, and the last ones are counted.
func (q *queue) note(items []item, spans bool, rejected int64, err error) {
	all := err != nil && rejected == 0
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = time.Time{}
	for _, i := range slices.Backward(items) {
		if (i.span != nil) != spans {
			continue
		}
		if all || rejected > 0 {
			rejected--
			q.lose(i.of, cause(err))
			continue
		}
		i.of.sent++
		q.all.sent++
	}
	q.change()
}

// try sends a request. It is sent again if the collector cannot be reached or asks for it. Once somebody waits for the
// end it is sent a last time.
func (q *queue) try(signal string, export func(context.Context) error) (rejected int64, err error) {
	began := time.Now()
	for delay := retryFirst; ; delay = min(2*delay, retryMost) {
		q.mu.Lock()
		last := q.urgent
		q.busy = time.Now()
		q.mu.Unlock()
		rejected, err = q.client.post(q.ctx, signal, export)
		var a *again
		if !errors.As(err, &a) || last || time.Since(began) > retryTime || !q.pause(max(delay, a.after)) {
			return rejected, err
		}
	}
}

// pause waits before a request is sent again, not longer than until somebody waits for the end. It returns false if
// the export has ended.
func (q *queue) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		q.mu.Lock()
		q.busy = time.Time{}
		urgent, changed := q.urgent, q.changed
		q.mu.Unlock()
		switch {
		case q.ctx.Err() != nil:
			return false
		case urgent:
			return true
		}
		select {
		case <-t.C:
			return true
		case <-changed:
		case <-q.ctx.Done():
		}
	}
}

// flush waits until a run, or with nil all, has nothing that waits, and reports whether that is so. It does not wait longer than
// [endWait] after the start of a request that has no answer.
func (q *queue) flush(ctx context.Context, of *tally) bool {
	if of == nil {
		of = &q.all
	}
	q.mu.Lock()
	q.urgent = true
	began := q.busy
	q.change()
	q.mu.Unlock()
	if !began.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, began.Add(endWait))
		defer cancel()
	}
	for {
		q.mu.Lock()
		waiting, changed := of.waiting(), q.changed
		q.mu.Unlock()
		if waiting == 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// close ends the export. What waits is lost.
func (q *queue) close() {
	q.cancel()
	<-q.done
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		q.lose(i.of, "the collector did not take them in time")
	}
	q.items = nil
}

// total is what became of everything, and the last error.
func (q *queue) total() (sent, lost int, why string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	why = q.all.why
	if why == "" {
		why = q.counted
	}
	return q.all.sent, q.all.lost, why
}

// lost is the number of items that were not sent.
func (q *queue) lost() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.all.lost)
}

// cause is an error of an export on one short line. A collector may answer with anything.
func cause(err error) string {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return "the collector did not answer in time"
	}
	return text.Short(strings.Join(strings.Fields(clean(err.Error())), " "), maxCause)
}

// watched sends metrics, and notes whether they were sent.
type watched struct{ queue *queue }

func (watched) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func (watched) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (w watched) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	why := ""
	export := func(ctx context.Context) error { return w.queue.client.metrics.Export(ctx, m) }
	if _, err := w.queue.client.post(ctx, "metrics", export); err != nil {
		why = cause(err) // not again: the next ones have these counts
	}
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.queue.counted = why
	return nil
}

func (watched) ForceFlush(context.Context) error { return nil }
func (watched) Shutdown(context.Context) error   { return nil }
