package supervisor

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// startHeapPercent is GOGC until a process has been at work for a quiet period: a start
// allocates a few MiB, and its one collection would cost more than all of it. What was not
// collected is returned when the process is quiet.
const startHeapPercent = 400

// laterHeapPercent is what GOGC is after that.
var laterHeapPercent = 100

// delayCollection is for a process that has just started.
func delayCollection() { laterHeapPercent = debug.SetGCPercent(startHeapPercent) }

// returnMemoryWhenQuiet has this process return unused memory to the kernel
// whenever it allocates little, until it ends. The Go runtime by itself retains
// 4 MiB for the next burst. An idle session needs a quarter of that, and each
// session has two such processes.
var returnMemoryWhenQuiet = sync.OnceFunc(func() {
	go func() {
		<-time.After(settlePeriod)
		heap := newHeapWatch()
		started := false
		for range time.Tick(quietPeriod) {
			if !started {
				started = true
				debug.SetGCPercent(laterHeapPercent)
			}
			if heap.quiet() {
				debug.FreeOSMemory()
			}
		}
	}()
})

// quietPeriod is the time in which a process must allocate little before it returns
// memory.
const quietPeriod = 2 * time.Second

// settlePeriod is how long a process is not looked at after its start. A look empties the caches
// of the allocator, which takes a page for each size of objects: more than all that a command of
// a session of its own allocates.
const settlePeriod = 500 * time.Millisecond

// Bytes allocated: at most in a quiet period, and at least since the last return.
const (
	quietBytes = 64 << 10
	worthBytes = 2 << 20
)

// heapWatch follows the allocations of this process. One goroutine may use it.
type heapWatch struct {
	stats       runtime.MemStats // runtime/metrics would itself retain more than can be returned
	last, freed uint64           // bytes allocated up to the last call of quiet, and up to the last return
}

func newHeapWatch() *heapWatch {
	w := &heapWatch{}
	w.last = w.allocated()
	return w
}

func (w *heapWatch) allocated() uint64 {
	runtime.ReadMemStats(&w.stats)
	return w.stats.TotalAlloc
}

// quiet reports whether little was allocated since the last call, and enough since
// the last return to be worth one.
func (w *heapWatch) quiet() bool {
	now := w.allocated()
	quiet := now-w.last < quietBytes && now-w.freed > worthBytes
	if w.last = now; quiet {
		w.freed = now
	}
	return quiet
}
