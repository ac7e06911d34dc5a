package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/controller"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// world is a state directory with batches whose runs are functions.
type world struct {
	t     *testing.T
	state statedir.Dir
	o     Options
	spec  Spec

	mu     sync.Mutex
	starts map[string]int // by name
	events []string
}

// newWorld makes a batch of n runs a0, a1, ... and the function that is a run.
func newWorld(t *testing.T, n int, run func(ctx context.Context, name string, o controller.Options) controller.Result) *world {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, state: state, starts: map[string]int{}}
	w.spec = Spec{
		Name: "w", Out: filepath.Join(t.TempDir(), "out"), Caps: Caps{Runs: 4},
		Retries: Retries{Attempts: 3, Delay: time.Second, MaxDelay: time.Minute},
	}
	for i := range n {
		w.spec.Items = append(w.spec.Items, Item{Name: fmt.Sprint("a", i), Harness: "h.yaml", Repo: "r"})
	}
	w.o = Options{
		State: state, deaf: true,
		Prepare: func(Item) (controller.Options, error) { return controller.Options{State: state}, nil },
		Notify: func(e Event) {
			text := e.Kind + " " + e.Text
			if e.Run != nil {
				text = e.Kind + " " + e.Run.Name + " " + e.Run.State
			}
			w.events = append(w.events, text)
		},
		run: func(ctx context.Context, o controller.Options, runID string) (controller.Result, error) {
			w.count(o.Member.Name)
			now := time.Now().UTC()
			r := run(ctx, o.Member.Name, o)
			r.RunID, r.Started, r.Ended = runID, now, time.Now().UTC()
			return r, nil
		},
	}
	return w
}

// count counts the starts of a run.
func (w *world) count(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts[name]++
}

// start runs the batch and returns its end.
func (w *world) start(ctx context.Context) *View {
	w.t.Helper()
	b, err := Start(w.o, Stored{Spec: w.spec, File: "w.yaml"})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.end(b.Run(ctx))
}

func (w *world) end(v *View, err error) *View {
	w.t.Helper()
	if err != nil {
		w.t.Errorf("the batch: %v", err)
	}
	read, err := Find(w.state, v.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range read.State {
		if a, b := read.State[i].State, v.State[i].State; a != b {
			w.t.Errorf("run %d is %s, in its files %s", i, b, a)
		}
	}
	if read.Status != v.Status || read.Live || read.Counts.Done() != v.Counts.Done() {
		w.t.Errorf("%s %+v, in its files %s %v %+v", v.Status, v.Counts, read.Status, read.Live, read.Counts)
	}
	for _, name := range []string{socketFile, workDir} {
		if _, err := os.Lstat(filepath.Join(v.Path, name)); err == nil {
			w.t.Errorf("%s is left", name)
		}
	}
	return v
}

// resume goes on with a batch.
func (w *world) resume(ctx context.Context, id string) *View {
	w.t.Helper()
	b, err := Resume(w.o, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.end(b.Run(ctx))
}

func done() controller.Result {
	return controller.Result{Status: controller.StatusDone, Delivered: true}
}

func failed(status string, code int, end sandbox.EndKind) controller.Result {
	return controller.Result{
		Status:   status,
		ExitCode: code,
		Error:    &controller.ResultError{Step: "iterations", Message: "it failed", End: end},
	}
}

// stopped waits for the end of a run, and is its result then.
func stopped(ctx context.Context) controller.Result {
	<-ctx.Done()
	var i controller.Interrupted
	if !errors.As(context.Cause(ctx), &i) {
		panic(context.Cause(ctx))
	}
	return controller.Result{
		Status: controller.StatusCancelled, ExitCode: 128 + int(i.Signal), Delivered: true, Partial: true,
		Error: &controller.ResultError{Step: "iterations", Message: i.Error()},
	}
}

func TestTroubleOfTheInfrastructureAloneIsTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		first  controller.Result
		starts int
	}{
		"a sandbox that died":              {failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndDied), 2},
		"a sandbox that was killed":        {failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndKilled), 2},
		"a sandbox that was removed":       {failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndRemoved), 2},
		"a place that does not answer":     {failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndUnreachable), 2},
		"a sandbox that could not be made": {failed(controller.StatusFailed, controller.ExitSandbox, ""), 2},
		"a sandbox whose memory was full":  {failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndMemory), 1},
		"an agent that failed":             {failed(controller.StatusAgentFailed, controller.ExitAgentFailed, ""), 1},
		"an agent that took too long":      {failed(controller.StatusTimeout, controller.ExitTimeout, ""), 1},
		"output that is not valid":         {failed(controller.StatusValidationFailed, controller.ExitValidationFailed, ""), 1},
		"a scan that blocks":               {failed(controller.StatusBlocked, controller.ExitScan, ""), 1},
		"a wrong harness":                  {failed(controller.StatusFailed, controller.ExitConfiguration, ""), 1},
		"a post_script that failed":        {failed(controller.StatusPostScriptFailed, controller.ExitPostScriptFailed, ""), 1},
		"a sandbox that is not deleted": {controller.Result{Status: controller.StatusFailed, ExitCode: controller.ExitSandbox,
			Delivered: true, Error: &controller.ResultError{Step: "delete"}}, 1},
		"a sandbox that died with an agent": {controller.Result{Status: controller.StatusFailed, ExitCode: controller.ExitSandbox,
			Delivered: true, Partial: true, Error: &controller.ResultError{Step: "iterations"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := true
				w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result {
					if first {
						first = false
						return tt.first
					}
					return done()
				})
				v := w.start(t.Context())
				if w.starts["a0"] != tt.starts || (v.Status == StatusDone) != (tt.starts == 2) || v.State[0].Attempts != tt.starts {
					t.Errorf("%d starts, %s, %+v", w.starts["a0"], v.Status, v.State[0])
				}
			})
		})
	}
}

func TestRetriesWaitLongerEachTimeAndHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result {
			at = append(at, time.Now())
			return failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndDied)
		})
		w.spec.Retries = Retries{Attempts: 6, Delay: 10 * time.Second, MaxDelay: time.Minute}
		v := w.start(t.Context())
		if len(at) != 6 || v.Status != StatusFailed || v.State[0].Troubles != 5 || v.State[0].State != StateEnded {
			t.Fatalf("%d attempts, %s, %+v", len(at), v.Status, v.State[0])
		}
		for i, most := range []time.Duration{10, 20, 40, 60, 60} {
			most *= time.Second
			if d := at[i+1].Sub(at[i]); d < most/2 || d > most+time.Second {
				t.Errorf("attempt %d came after %s, at most %s", i+2, d, most)
			}
		}
	})
}

func TestOtherRunsGoOnWhileOneWaitsForItsNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		var mu sync.Mutex
		w := newWorld(t, 5, func(_ context.Context, name string, _ controller.Options) controller.Result {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			if name == "a0" && len(order) == 1 {
				return failed(controller.StatusFailed, controller.ExitSandbox, "")
			}
			return done()
		})
		w.spec.Caps.Runs, w.spec.Retries.Delay = 1, time.Hour
		w.spec.Retries.MaxDelay = time.Hour
		v := w.start(t.Context())
		if got := strings.Join(order, " "); got != "a0 a1 a2 a3 a4 a0" || v.Status != StatusDone {
			t.Errorf("%s, %s", got, v.Status)
		}
	})
}

func TestADeadlineStopsRunsAndStartsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 6, func(ctx context.Context, name string, _ controller.Options) controller.Result {
			if name == "a0" {
				return done()
			}
			return stopped(ctx)
		})
		w.spec.Deadline = time.Hour
		began := time.Now()
		v := w.start(t.Context())
		if took := time.Since(began); took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("took %s", took)
		}
		if v.Status != StatusDeadline || len(w.starts) != 5 || v.State[1].End.StoppedBy != StatusDeadline || v.Counts.Waiting != 5 {
			t.Errorf("%s, %v, %+v", v.Status, w.starts, v.Counts)
		}
		w.o.Deadline = time.Hour
		w.o.run = func(_ context.Context, o controller.Options, id string) (controller.Result, error) {
			w.count(o.Member.Name)
			r := done()
			r.RunID = id
			return r, nil
		}
		w.spec.Caps.Runs = 1
		if v = w.resume(t.Context(), v.ID); v.Status != StatusDone || w.starts["a0"] != 1 || w.starts["a1"] != 2 || w.starts["a5"] != 1 {
			t.Errorf("%s, %v", v.Status, w.starts)
		}
	})
}

// uses is a run that reports a use of a model, then waits for wait.
func uses(o controller.Options, u runtime.Usage) {
	o.Progress(controller.Update{Kind: controller.UpdateUsage, Usage: u})
}

func TestABudgetStopsRunsWhenItIsUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10, func(ctx context.Context, name string, o controller.Options) controller.Result {
			uses(o, runtime.Usage{Input: 60, Output: 40, CostUSD: 0.5})
			r := done()
			if name == "a3" { // it goes on
				uses(o, runtime.Usage{Input: 1000})
				r = stopped(ctx)
			}
			r.Usage = &runtime.Usage{Input: 60, Output: 40, CostUSD: 0.5}
			return r
		})
		w.spec.Caps.Runs = 1
		w.spec.Budget.Tokens = 1200
		v := w.start(t.Context())
		if v.Status != StatusBudget || len(w.starts) != 4 || v.State[3].End.StoppedBy != StatusBudget {
			t.Errorf("%s, %v, %+v", v.Status, w.starts, v.State[3].End)
		}
		if v.Usage.Tokens() != 400 || v.Usage.CostUSD != 2 || v.State[0].Usage.Tokens() != 100 {
			t.Errorf("%+v", v.Usage)
		}
	})
}

func TestRunsAtTheSameTimeDoNotExceedABudgetTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, func(_ context.Context, _ string, o controller.Options) controller.Result {
			<-time.After(time.Minute)
			r := done()
			r.Usage = &runtime.Usage{CostUSD: 1}
			return r
		})
		w.spec.Caps.Runs = 8
		w.spec.Budget.USD = 20
		v := w.start(t.Context())
		if v.Status != StatusBudget || v.Usage.CostUSD != 20 {
			t.Errorf("%s, $%v", v.Status, v.Usage.CostUSD)
		}
		w.o.Budget.USD = 30
		if v = w.resume(t.Context(), v.ID); v.Status != StatusBudget || v.Usage.CostUSD != 30 {
			t.Errorf("resumed: %s, $%v", v.Status, v.Usage.CostUSD)
		}
	})
}

func TestABudgetThatIsUsedUpByTheLastRunEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, func(context.Context, string, controller.Options) controller.Result {
			r := done()
			r.Usage = &runtime.Usage{Input: 10}
			return r
		})
		w.spec.Caps.Runs, w.spec.Budget.Tokens = 1, 20
		if v := w.start(t.Context()); v.Status != StatusDone {
			t.Errorf("%s, %+v", v.Status, v.Counts)
		}
	})
}

func TestASignalStopsABatchThatCanBeResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		w := newWorld(t, 6, func(ctx context.Context, name string, _ controller.Options) controller.Result {
			switch name {
			case "a0":
				return done()
			case "a1":
				return failed(controller.StatusAgentFailed, controller.ExitAgentFailed, "")
			}
			return stopped(ctx)
		})
		time.AfterFunc(time.Minute, func() { cancel(controller.Interrupted{Signal: syscall.SIGINT}) })
		v := w.start(ctx)
		if v.Status != StatusStopped || v.State[2].End.ExitCode != 130 || v.State[2].End.StoppedBy != StatusStopped {
			t.Errorf("%s, %+v", v.Status, v.State[2].End)
		}
		if !v.CanResume() {
			t.Error("it cannot be resumed")
		}
		w.o.run = func(_ context.Context, o controller.Options, id string) (controller.Result, error) {
			w.count(o.Member.Name)
			r := done()
			r.RunID = id
			return r, nil
		}
		w.spec.Caps.Runs = 1
		v = w.resume(t.Context(), v.ID)
		want := map[string]int{"a0": 1, "a1": 1, "a2": 2, "a3": 2, "a4": 2, "a5": 2}
		if !maps.Equal(w.starts, want) || v.Status != StatusFailed || v.Counts.Done() != 5 || v.CanResume() {
			t.Errorf("%v, %s, %+v", w.starts, v.Status, v.Counts)
		}
	})
}

func TestRunsAreStoppedByTheirLabels(t *testing.T) {
	var going sync.WaitGroup
	going.Add(2)
	w := newWorld(t, 6, func(ctx context.Context, name string, _ controller.Options) controller.Result {
		going.Done()
		return stopped(ctx)
	})
	w.spec.Caps.Runs, w.o.deaf = 2, false
	for i := range w.spec.Items {
		w.spec.Items[i].Labels = map[string]string{"parity": []string{"even", "odd"}[i%2]}
	}
	b, err := Start(w.o, Stored{Spec: w.spec, File: "w.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan *View)
	go func() { ended <- w.end(b.Run(context.Background())) }()
	going.Wait()
	view, err := Find(w.state, b.ID())
	if err != nil || !view.Live || view.Status != StatusRunning {
		t.Fatalf("%+v, %v", view, err)
	}
	if _, err := Resume(w.o, b.ID()); !errors.As(err, new(*InUse)) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("resumed while it goes on: %v", err)
	}
	going.Add(1) // a2 starts when a1 has ended
	stop := func(labels map[string]string, running, waiting int) {
		t.Helper()
		if s, d, err := view.Stop(t.Context(), labels); s != running || d != waiting || err != nil {
			t.Errorf("%v: stopped %d, dropped %d, %v", labels, s, d, err)
		}
	}
	stop(map[string]string{"parity": "none"}, 0, 0)
	stop(map[string]string{"parity": "odd"}, 1, 2)
	going.Wait()
	stop(map[string]string{"parity": "odd"}, 0, 0)
	stop(nil, 2, 1)
	v := <-ended
	if v.Status != StatusFailed || v.Counts.Dropped != 3 || v.Counts.Ended[controller.StatusCancelled] != 3 || v.CanResume() {
		t.Errorf("%s, %+v", v.Status, v.Counts)
	}
	if by := v.State[1].End.StoppedBy; !strings.HasPrefix(by, "operator ") || v.State[3].By != by {
		t.Errorf("stopped by %q, %q", by, v.State[3].By)
	}
	if !slices.Contains(w.events, "drop a5 dropped") {
		t.Errorf("events: %q", w.events)
	}
	if _, _, err := view.Stop(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "batch "+b.ID()) {
		t.Errorf("stopped after its end: %v", err)
	}
}

func TestTwoBatchesDoNotShareTheirResults(t *testing.T) {
	going, end := make(chan bool), make(chan bool)
	w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result {
		close(going)
		<-end
		return done()
	})
	b, err := Start(w.o, Stored{Spec: w.spec})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan *View)
	go func() { ended <- w.end(b.Run(context.Background())) }()
	<-going
	if _, err := Start(w.o, Stored{Spec: w.spec}); err == nil || !strings.Contains(err.Error(), "batch "+b.ID()+" of process ") {
		t.Errorf("a second one: %v", err)
	}
	close(end)
	if v := <-ended; v.Status != StatusDone {
		t.Error(v.Status)
	}
}

func TestABatchThatCannotBeRecordedStartsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *Batch
		w := newWorld(t, 9, func(ctx context.Context, name string, _ controller.Options) controller.Result {
			if name == "a2" {
				return stopped(ctx)
			}
			<-time.After(time.Second)
			if name == "a1" {
				_ = b.store.journal.file.Close()
			}
			return done()
		})
		w.spec.Caps.Runs = 3
		var err error
		if b, err = Start(w.o, Stored{Spec: w.spec, File: "w.yaml"}); err != nil {
			t.Fatal(err)
		}
		v, err := b.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "journal of the batch") || v.Status != StatusUnwritten ||
			v.Ended.Before(v.Began) || len(w.starts) > 4 {
			t.Errorf("%v, %s, ended %s, %v", err, v.Status, v.Ended, w.starts)
		}
	})
}

func TestWhatAKilledWriterLeftOfALineIsRemoved(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal.jsonl")
	j, all, err := openJournal(name, 10)
	if err != nil || len(all) != 0 {
		t.Fatal(all, err)
	}
	for i := range 3 {
		if err := j.add(Entry{Kind: entryStart, Item: i}); err != nil {
			t.Fatal(err)
		}
	}
	whole := j.size
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil || int64(len(data)) != whole {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	for cut := range data {
		if err := os.WriteFile(name, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		want := strings.Count(string(data[:cut]), "\n")
		j, all, err := openJournal(name, 1)
		if err != nil || len(all) != want {
			t.Fatalf("%d bytes: %d entries, %v", cut, len(all), err)
		}
		err = errors.Join(j.add(Entry{Kind: entryClose, Status: "x"}), j.close())
		if again, readErr := readJournal(name); err != nil || readErr != nil || len(again) != want+1 {
			t.Fatalf("%d bytes: then %d entries, %v %v", cut, len(again), err, readErr)
		}
	}
	if err := os.WriteFile(name, []byte("{\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openJournal(name, 1); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a broken line before others: %v", err)
	}
}
