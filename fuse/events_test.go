package fuse

import (
	"runtime"
	"testing"

	"agentsh/internal/wire"
)

// Each session has a file server: what its reporter reserves is reserved for all
// of them.
func TestReporterThatReportsNothingTakesLittleMemory(t *testing.T) {
	const most = 128 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := newReporter("s", nil, func(wire.Event, uint64) {})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("a reporter takes %d bytes before it reports anything, more than %d", got, most)
	}
	runtime.KeepAlive(r)
}
