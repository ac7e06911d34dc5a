package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/listen"
	"agentsh/internal/text"
)

// request asks the process of a batch to stop runs.
type request struct {
	Labels map[string]string `json:"labels"` // empty: all runs
	by     string
	answer chan reply
}

// reply is the answer to a [request].
type reply struct {
	Stopped int    `json:"stopped"` // runs that were going on
	Dropped int    `json:"dropped"` // runs that were waiting
	Error   string `json:"error,omitempty"`
}

// Bounds of a request.
const (
	maxRequest  = 64 << 10 // bytes
	requestWait = 10 * time.Second
)

// control answers requests of other processes of this user, on a socket in the directory of the
// batch.
type control struct {
	dir      *os.File // opened so that the name of the socket is short
	path     string
	listener net.Listener
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// address is that of the socket. It is valid while the file is open. See unix(7).
func address(dir *os.File) string {
	return fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), socketFile)
}

// listen answers requests until the control is closed.
func (b *Batch) listen(ctx context.Context) (*control, error) {
	dir, err := os.Open(b.store.path)
	if err != nil {
		return nil, err
	}
	c := &control{dir: dir, path: filepath.Join(b.store.path, socketFile)}
	_ = os.Remove(c.path) // of a killed process
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if c.listener, err = channel.Listen(ctx, address(dir)); err != nil {
		c.cancel()
		return nil, errors.Join(fmt.Errorf("listen for requests: %w", err), dir.Close())
	}
	c.wg.Go(func() {
		accepting := &listen.Sparing{Listener: c.listener}
		for {
			conn, err := accepting.Accept()
			if err != nil {
				return // it was closed
			}
			c.wg.Go(func() { b.serve(ctx, conn) })
		}
	})
	return c, nil
}

// close may be called on a nil control.
func (c *control) close() error {
	if c == nil {
		return nil
	}
	c.cancel()
	_ = c.listener.Close() // it may be closed already
	c.wg.Wait()
	err := os.Remove(c.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // its listener has removed it
	}
	return errors.Join(err, c.dir.Close())
}

// serve answers one request.
func (b *Batch) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	peer, err := channel.CheckCaller(conn)
	if err != nil || conn.SetDeadline(time.Now().Add(requestWait)) != nil {
		return
	}
	var r request
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&r); err != nil {
		return
	}
	r.by, r.answer = "operator "+userName(peer.Uid), make(chan reply, 1)
	select {
	case b.ask <- r:
		_ = json.NewEncoder(conn).Encode(<-r.answer) // a caller that has gone reads no answer
	case <-ctx.Done():
	}
}

// userName is the name of a user, or the number of one without a name.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return text.Short(u.Username, 40)
	}
	return "uid " + id
}

// drop stops the runs with some labels, and has those that wait never start.
func (b *Batch) drop(r request) reply {
	b.mu.Lock()
	matches := func(i int) bool {
		return b.view.Items[i].Matches(r.Labels) && !b.view.State[i].dropped
	}
	var waiting, running []int
	for i := range b.view.State {
		switch b.view.State[i].State {
		case StateWaiting, StateRetrying:
			if matches(i) {
				waiting = append(waiting, i)
			}
		case StateRunning:
			if matches(i) {
				running = append(running, i)
			}
		}
	}
	b.mu.Unlock()
	all := slices.Concat(waiting, running)
	if len(all) == 0 {
		return reply{}
	}
	if err := b.add(Entry{Kind: entryDrop, Items: all, By: r.by}); err != nil {
		b.unwritten(err)
		return reply{Error: err.Error()}
	}
	chosen := map[int]bool{}
	for _, i := range waiting {
		chosen[i] = true
	}
	b.queue.remove(func(i int) bool { return chosen[i] })
	for _, i := range waiting {
		b.notify(Event{Kind: EventDrop, Run: b.item(i)})
	}
	for _, i := range running {
		g := b.running[i]
		g.by = r.by
		g.cancel(by(r.by))
	}
	return reply{Stopped: len(running), Dropped: len(waiting)}
}

// Stop asks the process of a batch to stop the runs with some labels: those that go on are stopped
// as by Ctrl-C, those that wait are not started. Without labels these are all runs. It returns the
// numbers of both.
func (v *View) Stop(ctx context.Context, labels map[string]string) (stopped, dropped int, err error) {
	dir, err := os.Open(v.Path)
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	conn, err := channel.Dial(ctx, address(dir))
	if err != nil {
		return 0, 0, fmt.Errorf("batch %s: %w", v.ID, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * requestWait)); err != nil {
		return 0, 0, err
	}
	var answer reply
	err = json.NewEncoder(conn).Encode(request{Labels: labels})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&answer)
	}
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("batch %s: its process ends or does not answer: %w", v.ID, err)
	case answer.Error != "":
		return 0, 0, fmt.Errorf("batch %s: %s", v.ID, answer.Error)
	}
	return answer.Stopped, answer.Dropped, nil
}
