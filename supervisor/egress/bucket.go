package egress

import (
	"context"
	"sync"
	"time"
)

// bucket holds a session to a number of bytes per second. A nil one holds
// nothing.
type bucket struct {
	rate  float64       // bytes per second
	burst time.Duration // what may pass at once, as the time it is worth

	mu   sync.Mutex
	free time.Time // when everything that was taken has been paid
}

// burstTime is how long a session may have been silent to its advantage.
const burstTime = 50 * time.Millisecond

func newBucket(rate int64) *bucket { return &bucket{rate: float64(rate), burst: burstTime} }

// take waits until n bytes may pass, or ctx ends. Waiters take turns in the
// order of their calls.
func (b *bucket) take(ctx context.Context, n int) {
	if b == nil || n <= 0 {
		return
	}
	wait := b.reserve(n, time.Now())
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reserve takes n bytes and returns how long to wait for them.
func (b *bucket) reserve(n int, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if start := now.Add(-b.burst); b.free.Before(start) {
		b.free = start
	}
	b.free = b.free.Add(time.Duration(float64(n) / b.rate * float64(time.Second)))
	return b.free.Sub(now)
}
