package egress

import (
	"context"
	"sync"
	"time"
)

// bucket limits a session to a number of bytes per second. A nil bucket has no
// limit.
type bucket struct {
	rate  float64       // bytes per second
	burst time.Duration // bytes that may pass at once, as the time they take at rate

	mu   sync.Mutex
	free time.Time // when all bytes taken so far have had their time
}

// burstTime is the longest silence that allows a burst afterwards.
const burstTime = 50 * time.Millisecond

func newBucket(rate int64) *bucket { return &bucket{rate: float64(rate), burst: burstTime} }

// take waits until n bytes may pass, or ctx ends. Callers are served in the order
// of their calls.
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

// reserve takes n bytes. It returns how long to wait before they may pass.
func (b *bucket) reserve(n int, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if start := now.Add(-b.burst); b.free.Before(start) {
		b.free = start
	}
	b.free = b.free.Add(time.Duration(float64(n) / b.rate * float64(time.Second)))
	return b.free.Sub(now)
}
