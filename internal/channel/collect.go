package channel

import (
	"net"
	"runtime"
	"runtime/metrics"
	"sync"
)

// A collectingConn is a connection to a peer that may send as fast as it can. Package ssh
// allocates each packet. Where the collector gets no processor, the packets of a fast peer take
// memory without a bound: a thread that is not scheduled for half a second costs 100 MB. A
// reader that finds the collector late waits for it, and the peer waits for the reader.
type collectingConn struct {
	net.Conn
	read    int // bytes since the last look
	samples []metrics.Sample
}

const (
	collectPiece = 4 << 20 // bytes between two looks, of some microseconds each
	collectLate  = 8 << 20 // bytes of garbage beyond what the collector allows itself
)

// collecting serializes the collections, so that readers who find the same garbage start one.
var collecting sync.Mutex

func newCollectingConn(conn net.Conn) *collectingConn {
	return &collectingConn{Conn: conn, samples: []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, // with what is garbage and not freed yet
		{Name: "/gc/heap/live:bytes"},                // after the last collection
	}}
}

// Read implements [net.Conn]. One goroutine may call it at a time, as that of package ssh does.
func (c *collectingConn) Read(p []byte) (int, error) {
	if c.read >= collectPiece {
		c.read = 0
		c.collect()
	}
	n, err := c.Conn.Read(p)
	c.read += n
	return n, err
}

// collect waits for a collection if the collector is late.
func (c *collectingConn) collect() {
	if !c.late() {
		return
	}
	collecting.Lock()
	defer collecting.Unlock()
	if c.late() {
		runtime.GC()
	}
}

func (c *collectingConn) late() bool {
	metrics.Read(c.samples)
	return c.samples[0].Value.Uint64() > 2*c.samples[1].Value.Uint64()+collectLate
}
