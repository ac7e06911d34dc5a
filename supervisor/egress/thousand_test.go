package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"
)

// Each of 1,000 tunnels is open while the others are, and carries its own bytes.
func TestAThousandTunnelsAtOnce(t *testing.T) {
	const tunnels = 1000
	w := newWorld(t, lookedInto, nil)
	w.place(talker(t, ""), "192.0.2.1", 9, "plain.test")
	before := descriptors(t)
	errs := make(chan error, tunnels)
	counted := make(chan struct{})
	var open, wg sync.WaitGroup
	open.Add(tunnels)
	for i := range tunnels {
		wg.Go(func() {
			c, in, err := w.tunnel("plain.test:9")
			open.Done()
			if err != nil {
				errs <- fmt.Errorf("tunnel %d: %w", i, err)
				return
			}
			defer c.Close()
			<-counted
			line := fmt.Sprintf("line of tunnel %d\n", i)
			if _, err := io.WriteString(c, line); err != nil {
				errs <- fmt.Errorf("tunnel %d: %w", i, err)
				return
			}
			if got, err := in.ReadString('\n'); err != nil || got != "you said "+line {
				errs <- fmt.Errorf("tunnel %d got %q, %w", i, got, err)
			}
		})
	}
	open.Wait()
	if n := descriptors(t) - before; n < 3*tunnels || n > 4*tunnels+16 { // the server may not have accepted all yet
		t.Errorf("%d tunnels with both their ends hold %d descriptors", tunnels, n)
	}
	close(counted)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	ended := 0
	for _, e := range w.finished() {
		if e.Phase == "end" && e.Target == "plain.test:9" {
			ended++
		}
	}
	if ended != tunnels {
		t.Errorf("%d of %d tunnels are recorded", ended, tunnels)
	}
}

// tunnel is connect for other goroutines than the test's.
func (w *world) tunnel(to string) (net.Conn, *bufio.Reader, error) {
	c, err := net.Dial("tcp", w.proxy)
	if err != nil {
		return nil, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(guard))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, in, nil
}

// descriptors is how many this process has open.
func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
