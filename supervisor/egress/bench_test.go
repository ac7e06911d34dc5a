package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// bare is the proxy without policy that ours is held against: net/http, and
// io.Copy both ways.
func bare(tb testing.TB, to string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up, err := net.Dial("tcp", to)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		down, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			tb.Error(err)
			return
		}
		if _, err := io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			tb.Error(err)
		}
		go func() {
			_, _ = io.Copy(up, down)
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(down, up)
		_ = down.Close()
		_ = up.Close()
	}))
	tb.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// source answers the first byte of a connection with so many bytes.
func source(tb testing.TB, size int64) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	block := make([]byte, 256<<10)
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var one [1]byte
				if _, err := io.ReadFull(c, one[:]); err != nil {
					return
				}
				for left := size; left > 0; {
					n, err := c.Write(block[:min(int64(len(block)), left)])
					if err != nil {
						return
					}
					left -= int64(n)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// fetch asks a proxy for a tunnel and reads size bytes through it.
func fetch(proxy string, size int64) error {
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(guard))
	fmt.Fprintf(c, "CONNECT bench.test:443 HTTP/1.1\r\nHost: bench.test:443\r\n\r\n")
	in := bufio.NewReaderSize(c, 128)
	if _, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect}); err != nil {
		return err
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, in)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d", n, size)
	}
	return err
}

// ways are the two proxies in front of one source.
func ways(b *testing.B, size int64) (ours, plain string) {
	from := source(b, size)
	w := newWorld(b, `network_rules: [{name: all, domains: ["*"], decision: allow}]`, nil)
	w.place(from, "192.0.2.1", 443, "bench.test")
	return w.proxy, bare(b, from)
}

// BenchmarkThroughput reads 64 MiB through a tunnel of the proxy and of one
// without policy in turn, and reports the ratio of the medians.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 << 20
	ours, plain := ways(b, size)
	compare(b, func(p string) error { return fetch(p, size) }, plain, ours, func(plain, ours time.Duration) {
		b.ReportMetric(float64(plain)/float64(ours), "of-plain")
		b.ReportMetric(float64(size)/(1<<20)/ours.Seconds(), "MiB/s")
	})
}

// BenchmarkLatency opens a tunnel and gets one byte, as above, and reports what
// the policy adds at the median.
func BenchmarkLatency(b *testing.B) {
	ours, plain := ways(b, 1)
	compare(b, func(p string) error { return fetch(p, 1) }, plain, ours, func(plain, ours time.Duration) {
		b.ReportMetric(float64((ours - plain).Microseconds()), "us-added")
		b.ReportMetric(float64(plain.Microseconds()), "us-plain")
	})
}

func compare(b *testing.B, do func(string) error, plain, ours string, report func(plain, ours time.Duration)) {
	var times [2][]time.Duration
	for round := 0; b.Loop(); round++ {
		for i := range 2 {
			which := (i + round) % 2
			start := time.Now()
			if err := do([]string{plain, ours}[which]); err != nil {
				b.Fatal(err)
			}
			times[which] = append(times[which], time.Since(start))
		}
	}
	for _, t := range times {
		slices.Sort(t)
	}
	report(times[0][len(times[0])/2], times[1][len(times[1])/2])
}
