package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/internal/statedir"
)

// Options configure a batch.
type Options struct {
	State statedir.Dir
	// Prepare makes the options of a run. The batch sets its Out, Member, Progress and Force.
	Prepare func(Item) (controller.Options, error)
	// Collect cleans up after killed controllers. It is called when no run is left to be taken over.
	Collect func(context.Context) error
	// Notify gets what happens, one call at a time; nil: nobody.
	Notify func(Event)
	Force  context.Context // its end stops the extraction of work after a stop; may be nil
	// Deadline and Budget of a resumed batch, in the place of those of its file.
	Deadline time.Duration // from now; 0: that of the file
	Budget   Budget        // zero fields: those of the file
	Once     bool          // [Start] makes no second batch of a file

	// Of tests.
	run, takeOver func(context.Context, controller.Options, string) (controller.Result, error)
	deaf          bool // nobody can stop runs: a bubble of package synctest has no socket
}

// Kinds of an [Event].
const (
	EventStart   = "start" // of a run
	EventEnd     = "end"   // of a run
	EventDrop    = "drop"  // a run will not be started
	EventWarning = "warning"
	EventStop    = "stop" // no further run starts
)

// Event is something that happened to a batch.
type Event struct {
	Kind string    `json:"event"`
	Time time.Time `json:"time"`
	Run  *ItemView `json:"run,omitempty"`
	Text string    `json:"text,omitempty"` // warning, stop: the reason
}

// Batch is a batch on which this process works. The loop alone changes its queue and its maps;
// what the runs tell it meanwhile, and what others look at, is below mu.
type Batch struct {
	o       Options
	store   store
	shared  *controller.Shared
	queue   *queue
	taking  int   // runs that are taken over and have not ended
	stopped *stop // nil: runs are started

	kick  chan struct{} // the usage has changed
	ended chan ending
	ask   chan request

	mu      sync.Mutex
	view    *View
	running map[int]*going

	notifying sync.Mutex
}

// store is where a batch is.
type store struct {
	path    string
	lock    *os.File
	journal *journal
}

func (s store) close() error { return errors.Join(s.journal.close(), s.lock.Close()) }

// going is a run that goes on.
type going struct {
	cancel context.CancelCauseFunc
	usage  runtime.Usage // so far
	by     string        // who stopped it; empty: nobody
	taken  bool          // over from a killed process
}

// ending is the end of an attempt.
type ending struct {
	item   int
	result controller.Result
}

// stop is why no further run starts.
type stop struct {
	status string // of the batch
	why    string
	cause  error // of the end of runs
	err    error // that the batch ends with; nil: none
}

// Start makes a new batch. The caller calls [Batch.Run].
func Start(o Options, s Stored) (*Batch, error) {
	s.Version, s.Created = 1, time.Now().UTC()
	s.ID = idPrefix + record.NewRunID(s.Created)
	path, lock, err := makeFirst(o, s)
	if err != nil {
		return nil, err
	}
	b, err := newBatch(o, path, lock)
	if err != nil {
		return nil, errors.Join(err, statedir.RemoveTree(path), lock.Close())
	}
	return b, nil
}

// Resume opens a batch whose process has ended. The error is an [*InUse] if another process works on
// it. The caller calls [Batch.Run].
func Resume(o Options, id string) (*Batch, error) {
	path, lock, err := takeDir(o.State, id)
	if err != nil {
		return nil, err
	}
	b, err := newBatch(o, path, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return b, nil
}

// makeFirst makes the directory of a new batch, unless another one has its results in the same place, or is
// the one that [Options].Once means.
func makeFirst(o Options, s Stored) (path string, lock *os.File, err error) {
	if err := os.MkdirAll(o.State.Batches(), 0o700); err != nil {
		return "", nil, fmt.Errorf("make batch: %w", err)
	}
	if s.Dir == "" {
		if s.Dir, err = os.Getwd(); err != nil {
			return "", nil, err
		}
	}
	starting, err := statedir.TakeLock(filepath.Join(o.State.Batches(), startFile), unix.LOCK_EX)
	if err != nil {
		return "", nil, fmt.Errorf("make batch: %w", err)
	}
	defer starting.Close()
	all, err := List(o.State)
	if v := ofFile(all, s); v != nil && o.Once {
		return "", nil, fmt.Errorf("batch %s of the same file has just been made: %w", v.ID, &InUse{v.Process})
	}
	if err != nil && o.Once {
		return "", nil, err
	}
	for _, v := range all { // one that cannot be read is not live
		if v.Live && v.absolute(v.Out) == s.absolute(s.Out) {
			return "", nil, fmt.Errorf("batch %s of process %d has its results in %s: name another directory with --out", v.ID, v.Process, s.Out)
		}
	}
	return makeDir(o.State, s)
}

func newBatch(o Options, path string, lock *os.File) (*Batch, error) {
	s, err := readStored(path)
	if err != nil {
		return nil, err
	}
	j, all, err := openJournal(filepath.Join(path, journalFile), 2*len(s.Items)+len(s.Items)/2+100)
	if err != nil {
		return nil, err
	}
	shared, err := controller.NewShared(filepath.Join(path, workDir))
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	b := &Batch{
		o: o, store: store{path, lock, j}, shared: shared, view: newView(path, s), queue: newQueue(s.Items, s.Caps),
		running: map[int]*going{}, kick: make(chan struct{}, 1), ended: make(chan ending), ask: make(chan request),
	}
	if o.Notify == nil {
		b.o.Notify = func(Event) {}
	}
	b.view.Live = true
	b.view.replay(all)
	b.setLimits(len(all) == 0)
	return b, nil
}

// setLimits sets the deadline and the budget.
func (b *Batch) setLimits(first bool) {
	v, d := b.view, b.o.Deadline
	if d == 0 && first {
		d = v.Deadline
	}
	if d > 0 {
		v.Ends = time.Now().UTC().Add(d)
	}
	if t := b.o.Budget.Tokens; t > 0 {
		v.Budget.Tokens = t
	}
	if d := b.o.Budget.USD; d > 0 {
		v.Budget.USD = d
	}
}

// ID is the id of the batch.
func (b *Batch) ID() string { return b.view.ID }

// View returns the state of the batch.
func (b *Batch) View() *View {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := *b.view
	v.State, v.SandboxEnds = slices.Clone(b.view.State), maps.Clone(b.view.SandboxEnds)
	v.count()
	for i, g := range b.running {
		v.State[i].Usage.Add(g.usage)
		v.Usage.Add(g.usage)
	}
	return &v
}

// Run works on the batch until all runs have ended, or until ctx, the deadline, the budget or a
// person ends it. To stop it, cancel ctx with the cause [controller.Interrupted]: runs that go on
// are then stopped, and their work is taken out. Run releases the batch. The error says why it could
// not go on; failed runs are none.
func (b *Batch) Run(ctx context.Context) (*View, error) {
	err := b.begin(ctx)
	var c *control
	if err == nil && !b.o.deaf {
		c, err = b.listen(ctx)
	}
	if err == nil {
		err = errors.Join(b.loop(ctx), c.close())
	}
	b.mu.Lock()
	b.view.count()
	b.view.Live = false
	status := b.status(err)
	b.mu.Unlock()
	if closed := b.add(Entry{Kind: entryClose, Status: status}); closed != nil {
		err = errors.Join(err, closed)
		b.view.Status, b.view.Ended = StatusUnwritten, time.Now().UTC()
	}
	return b.View(), errors.Join(err, b.shared.Close(), b.store.close())
}

// status is the status of a batch that ends.
func (b *Batch) status(err error) string {
	c := b.view.Counts
	switch {
	case b.stopped != nil:
		return b.stopped.status
	case err != nil:
		return StatusStopped
	case c.Failed() > 0 || c.Dropped > 0:
		return StatusFailed
	}
	return StatusDone
}

// begin records this process, and finds out what became of runs that were going on when the last
// one was killed.
func (b *Batch) begin(ctx context.Context) error {
	if err := b.add(Entry{Kind: entryOpen, Process: os.Getpid(), Ends: b.view.Ends, Budget: &b.view.Budget}); err != nil {
		return err
	}
	taken, err := b.recover(ctx)
	if err != nil {
		return err
	}
	for i := range b.view.State {
		if s := b.view.State[i].State; s == StateWaiting || s == StateRetrying {
			b.queue.add(i)
		}
	}
	return b.takeOver(ctx, taken)
}

// collect cleans up after killed controllers, once, when no run is left to be taken over.
func (b *Batch) collect(ctx context.Context) {
	if b.o.Collect == nil {
		return
	}
	if err := b.o.Collect(ctx); err != nil && ctx.Err() == nil {
		b.notify(Event{Kind: EventWarning, Text: "earlier runs: " + err.Error()})
	}
	b.o.Collect = nil
}

// add writes an entry to the journal and applies it.
func (b *Batch) add(e Entry) error {
	if err := b.store.journal.add(e); err != nil {
		return err
	}
	e.Time = time.Now().UTC()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view.apply(e)
	return nil
}

func (b *Batch) notify(e Event) {
	e.Time = time.Now().UTC()
	b.notifying.Lock()
	defer b.notifying.Unlock()
	b.o.Notify(e)
}

// item returns a copy of the state of a run.
func (b *Batch) item(i int) *ItemView {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.view.State[i]
	return &one
}

// loop starts runs and waits for their ends.
func (b *Batch) loop(ctx context.Context) error {
	deadline := make(<-chan time.Time)
	if !b.view.Ends.IsZero() {
		t := time.NewTimer(time.Until(b.view.Ends))
		defer t.Stop()
		deadline = t.C
	}
	interrupted := ctx.Done()
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		if b.taking == 0 {
			b.collect(ctx)
		}
		wait := b.startSome(ctx)
		if len(b.running) == 0 && (b.stopped != nil || b.queue.waiting == 0) {
			break
		}
		if later.Stop(); wait > 0 {
			later.Reset(wait)
		}
		select {
		case e := <-b.ended:
			b.end(e)
		case <-later.C:
		case <-b.kick:
		case r := <-b.ask:
			r.answer <- b.drop(r)
		case <-deadline:
			b.halt(&stop{status: StatusDeadline, why: "the deadline of the batch has come", cause: by("the deadline of the batch")})
			deadline = nil
		case <-interrupted:
			cause := context.Cause(ctx)
			b.halt(&stop{status: StatusStopped, why: cause.Error(), cause: cause})
			interrupted = nil
		}
	}
	if b.stopped != nil {
		return b.stopped.err
	}
	return nil
}

// by is the cause of the end of a run by something outside of it.
func by(who string) error { return controller.Interrupted{Signal: syscall.SIGTERM, By: who} }

// halt has no further run start, and stops those that go on.
func (b *Batch) halt(s *stop) {
	if b.stopped != nil {
		return
	}
	b.stopped = s
	b.notify(Event{Kind: EventStop, Text: s.why})
	for _, g := range b.running {
		if g.by == "" {
			g.by = s.status
		}
		g.cancel(s.cause)
	}
}

// startSome starts as many runs as may start. wait is the time until another one may; 0: not before
// something happens.
func (b *Batch) startSome(ctx context.Context) (wait time.Duration) {
	for b.stopped == nil && b.taking == 0 && len(b.running)+b.queue.waiting > 0 {
		if used := b.overBudget(); used != "" {
			b.halt(&stop{status: StatusBudget, why: used, cause: by("the budget of the batch")})
			return 0
		}
		if !b.mayStart() {
			return 0
		}
		item, ok, wait := b.queue.next(time.Now())
		if !ok {
			return wait
		}
		if err := b.start(ctx, item, ""); err != nil {
			b.queue.end(item)
			b.unwritten(err)
		}
	}
	return 0
}

// unwritten stops the batch because its journal cannot be written.
func (b *Batch) unwritten(err error) {
	b.halt(&stop{status: StatusUnwritten, why: err.Error(), cause: by("a full or broken disk"), err: err})
}

// start starts an attempt of a run, or takes over one that another process had started.
func (b *Batch) start(ctx context.Context, item int, taken string) error {
	runID := taken
	attempt := b.view.State[item].Attempts
	if taken == "" {
		runID = record.NewRunID(time.Now())
		attempt++
		if err := b.add(Entry{Kind: entryStart, Item: item, Attempt: attempt, RunID: runID}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b.mu.Lock()
	b.running[item] = &going{cancel: cancel, taken: taken != ""}
	b.mu.Unlock()
	b.notify(Event{Kind: EventStart, Run: b.item(item)})
	one := b.view.Items[item]
	go func() { // ends with the run, whose end the loop waits for
		defer cancel(nil)
		b.ended <- ending{item, b.attempt(ctx, item, one, runID, taken != "")}
	}()
	return nil
}
