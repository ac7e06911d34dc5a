package batch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"agentsh/controller"
	"agentsh/controller/sandbox"
)

func TestOfBatchesThatStartTogetherOneIsMade(t *testing.T) {
	for _, c := range []struct {
		name  string
		once  bool
		apart bool // their results have places of their own
		want  int
	}{{"for the same results", false, false, 1}, {"of the same file, once", true, true, 1}, {"each for itself", false, true, 8}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result { return done() })
			w.o.Once = c.once
			var made []*Batch
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					spec := w.spec
					if c.apart {
						spec.Out = filepath.Join(spec.Out, fmt.Sprint(i))
					}
					b, err := Start(w.o, Stored{Spec: spec, File: "w.yaml", Digest: "d"})
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						made = append(made, b)
					} else if c.once != errors.As(err, new(*InUse)) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if len(made) != c.want {
				t.Errorf("%d were made, want %d", len(made), c.want)
			}
			for _, b := range made {
				w.end(b.Run(t.Context()))
			}
		})
	}
}

func TestABatchIsFoundByItsFile(t *testing.T) {
	w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result { return done() })
	b, err := Start(w.o, Stored{Spec: w.spec, File: "b.yaml", Dir: "/one", Digest: "d"})
	if err != nil {
		t.Fatal(err)
	}
	w.end(b.Run(t.Context()))
	for _, c := range []struct {
		file, dir, digest string
		want              bool
	}{
		{"b.yaml", "/one", "d", true}, {"one/b.yaml", "/", "d", true}, {"/one/b.yaml", "/two", "d", true},
		{"b.yaml", "/two", "d", false}, {"c.yaml", "/one", "d", false}, {"b.yaml", "/one", "e", false},
	} {
		if v, err := OfFile(w.state, c.file, c.dir, c.digest); err != nil || (v != nil) != c.want {
			t.Errorf("%+v: %v, %v", c, v, err)
		}
	}
}

// What was cut off when agentctl was killed is no trouble of its run: it starts again, however often that happens.
func TestARunThatCannotBeTakenOverStartsAgain(t *testing.T) {
	w := newWorld(t, 1, func(context.Context, string, controller.Options) controller.Result { return done() })
	w.o.takeOver = func(context.Context, controller.Options, string) (controller.Result, error) {
		return failed(controller.StatusFailed, controller.ExitSandbox, sandbox.EndDied), nil
	}
	b, err := Start(w.o, Stored{Spec: w.spec, File: "w.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	const crashes = 5 // more than a run has attempts
	for n := range crashes {
		if err := b.add(Entry{Kind: entryStart, Item: 0, Attempt: n + 1, RunID: fmt.Sprint("r", n)}); err != nil {
			t.Fatal(err)
		}
		if err := b.takeOver(t.Context(), []int{0}); err != nil {
			t.Fatal(err)
		}
		b.end(<-b.ended)
		if one := b.item(0); one.State != StateWaiting || one.Troubles != 0 || b.queue.waiting != 1 || b.taking != 0 {
			t.Fatalf("after crash %d: %+v, %d wait", n, one, b.queue.waiting)
		}
		b.queue.remove(func(int) bool { return true })
	}
	if v := w.end(b.Run(t.Context())); v.Status != StatusDone || w.starts["a0"] != 1 || v.State[0].Attempts != crashes+1 {
		t.Errorf("%s, %d starts, %+v", v.Status, w.starts["a0"], v.State[0])
	}
}
