package tools

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// twoTurns are those of two servers of one directory.
func twoTurns(t *testing.T) (a, b *Turns) {
	t.Helper()
	dir := t.TempDir()
	a, err := NewTurns(dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = NewTurns(dir); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// TestServersTakeTurns has each of two take the lock many times, and give up some waits.
func TestServersTakeTurns(t *testing.T) {
	a, b := twoTurns(t)
	var inside, both atomic.Int32
	var wg sync.WaitGroup
	for _, turns := range []*Turns{a, b} {
		wg.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 2 {
					go cancel()
				}
				leave, err := turns.take(ctx)
				if err == nil {
					if inside.Add(1) > 1 {
						both.Add(1)
					}
					inside.Add(-1)
					leave()
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n := both.Load(); n > 0 {
		t.Errorf("both had the lock %d times", n)
	}
}

// TestALockThatNobodyWantsIsGivenBack gives up a wait before the lock comes.
func TestALockThatNobodyWantsIsGivenBack(t *testing.T) {
	a, b := twoTurns(t)
	leave, err := a.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	cancel(gone)
	for range 10 {
		if _, err := b.take(ctx); !errors.Is(err, gone) {
			t.Fatal(err)
		}
	}
	leave()
	for waits := true; waits; runtime.Gosched() {
		b.mu.Lock()
		waits = b.result != nil
		b.mu.Unlock()
	}
	if leave, err = a.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func(d time.Duration) { turnWait = d }(turnWait)
	turnWait = time.Millisecond
	if _, err := b.take(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing was changed; call again, or end that program") {
		t.Error(err)
	}
	turnWait = time.Minute
	leave()
	if leave, err = b.take(t.Context()); err != nil { // by the wait that was given up
		t.Fatal(err)
	}
	leave()
}
