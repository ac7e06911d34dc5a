package channel

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"agentsh/internal/wire"
)

// highest is a writer that keeps the highest size of the heap at a write, in bytes.
type highest struct {
	n      uint64
	sample []metrics.Sample
}

func (h *highest) Write(p []byte) (int, error) {
	metrics.Read(h.sample)
	h.n = max(h.n, h.sample[0].Value.Uint64())
	return len(p), nil
}

// TestAFastPeerTakesNoMemoryWhereTheCollectorIsLate has a collector that does not start by itself.
func TestAFastPeerTakesNoMemoryWhereTheCollectorIsLate(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	h := &highest{sample: []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}}
	req := wire.ExecRequest{Argv: []string{"/bin/sh", "-c", "head -c 300000000 /dev/zero"}}
	_, err := connect(t, &handler{}).Run(context.Background(), req, wire.Streams{Stdout: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("at most %d MB", h.n/1e6)
	if h.n > 200e6 { // without the wait it is 375 MB
		t.Error("the packets of 300 MB stayed in memory")
	}
}
