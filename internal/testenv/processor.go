package testenv

import (
	"runtime"
	"testing"
	"time"
)

// GivesProcessorUp fails unless a wait in the kernel gives its processor of the Go runtime up at
// once. measure has one goroutine wait and returns how long others waited for the processor; plain:
// the wait is a usual call, whose processor the runtime's monitor takes away up to 10 ms later.
func GivesProcessorUp(t testing.TB, measure func(plain bool) time.Duration) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var own, usual time.Duration
	for i := range 200 { // a busy machine delays both
		for _, plain := range []bool{false, true} {
			for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
				// After a while the monitor looks every 10 ms.
			}
			if took := measure(plain); plain {
				usual += took
			} else {
				own += took
			}
		}
		if i >= 20 && own < usual/2 {
			return
		}
	}
	t.Errorf("others waited %v for its processor, and %v for that of usual calls", own, usual)
}
