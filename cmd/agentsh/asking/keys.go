package asking

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// keys reads a terminal for two: a question gets what is typed while it listens,
// else the command whose input it is. It reads nothing that neither of them wants.
type keys struct {
	r io.Reader
	// deadline ends a read that nobody wants any more. If it is nil, the reader is the
	// command's input, and the next bytes are the command's.
	deadline func(time.Time) error

	mu      sync.Mutex
	changed *sync.Cond
	typed   func([]byte) // gets the input of a question; nil: none listens
	gone    func()       // is called at the end of the input meanwhile
	wanted  bool         // the command waits for input
	closed  bool
	buf     []byte // for the command
	err     error  // the end of the command's input
}

// newKeys reads r until it is closed.
func newKeys(r io.Reader, deadline func(time.Time) error) *keys {
	k := &keys{r: r, deadline: deadline}
	k.changed = sync.NewCond(&k.mu)
	go k.pump() // ends with close, or with the process where a read never returns
	return k
}

// listen passes the input on to a question until ignore is called.
func (k *keys) listen(typed func([]byte), gone func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.typed, k.gone = typed, gone
	if k.deadline != nil {
		_ = k.deadline(time.Time{}) // a read would report the error
	}
	k.changed.Broadcast()
}

// ignore ends listen.
func (k *keys) ignore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.typed, k.gone = nil, nil
	if k.deadline != nil {
		_ = k.deadline(time.Now()) // without it the next bytes are dropped
	}
}

// pass gives bytes to the command as if they were typed.
func (k *keys) pass(b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deadline == nil {
		k.buf = append(k.buf, b...)
		k.changed.Broadcast()
	}
}

func (k *keys) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.changed.Broadcast()
}

func (k *keys) pump() {
	b := make([]byte, 4096)
	for k.await() {
		n, err := k.r.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if !k.deliver(b[:n], err) {
			return
		}
	}
}

// await waits until somebody wants input. It returns false at the end.
func (k *keys) await() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.typed == nil && (!k.wanted || len(k.buf) > 0) && !k.closed {
		k.changed.Wait()
	}
	return !k.closed
}

// deliver passes on what was read. It returns false if there is no more.
func (k *keys) deliver(b []byte, err error) bool {
	k.mu.Lock()
	typed, gone := k.typed, k.gone
	if typed == nil {
		defer k.mu.Unlock()
		if k.deadline == nil {
			k.buf, k.err = append(k.buf, b...), err
			k.changed.Broadcast()
			return err == nil
		}
		return true
	}
	if err != nil && !errors.Is(err, io.EOF) {
		k.err = err
		k.changed.Broadcast()
	}
	k.mu.Unlock()
	if len(b) > 0 {
		typed(b)
	}
	if err != nil {
		gone()
	}
	return true
}

// Read reads the command's input.
func (k *keys) Read(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = true
	k.changed.Broadcast()
	for len(k.buf) == 0 && k.err == nil && !k.closed {
		k.changed.Wait()
	}
	k.wanted = false
	n := copy(p, k.buf)
	k.buf = append(k.buf[:0], k.buf[n:]...)
	switch {
	case n > 0:
		return n, nil
	case k.err != nil:
		return 0, k.err
	}
	return 0, io.ErrUnexpectedEOF // closed: the command has ended
}
