package supervisor

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// returnMemoryWhenQuiet has this process return the memory that it no longer uses
// whenever it has become quiet, until it ends. The Go runtime by itself keeps
// 4 MiB for the next burst, of which a session that waits has use for a quarter,
// and there are two such processes for each session.
var returnMemoryWhenQuiet = sync.OnceFunc(func() {
	go func() {
		heap := newHeapWatch()
		for range time.Tick(quietPeriod) {
			if heap.quiet() {
				debug.FreeOSMemory()
			}
		}
	}()
})

// quietPeriod is how long a process that allocates little is watched before it
// gives memory back.
const quietPeriod = 2 * time.Second

// What is quiet, and what is worth a collection, in bytes allocated.
const (
	quietBytes = 64 << 10
	worthBytes = 2 << 20
)

// heapWatch follows what this process allocates. It is for one goroutine.
type heapWatch struct {
	stats       runtime.MemStats // runtime/metrics would itself keep more than can be given back
	last, freed uint64           // bytes allocated before the last look, and before it was last quiet
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

// quiet reports whether little was allocated since the last look, and much since
// it was last quiet.
func (w *heapWatch) quiet() bool {
	now := w.allocated()
	quiet := now-w.last < quietBytes && now-w.freed > worthBytes
	if w.last = now; quiet {
		w.freed = now
	}
	return quiet
}
