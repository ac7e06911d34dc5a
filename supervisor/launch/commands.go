package launch

import (
	"fmt"
	"syscall"
	"time"
)

// add enters a new command.
func (c *commands) add(i *Init) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	p := &Process{
		init:   i,
		serial: c.serial,
		marked: make(chan struct{}),
		exited: make(chan struct{}),
		known:  make(chan struct{}),
		empty:  make(chan struct{}),
	}
	c.known[p.serial] = p
	return p
}

// drop removes a command that has no process.
func (c *commands) drop(p *Process, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[p.serial] == p {
		delete(c.known, p.serial)
		p.abort(err)
	}
}

// fail notes why the init is about to end.
func (c *commands) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
}

// ended ends all commands of an init that has ended.
func (c *commands) abort(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		err = c.failure
	} else if ended(err) {
		err = ErrSessionEnded
	}
	for serial, p := range c.known {
		p.abort(err)
		delete(c.known, serial)
	}
	c.failure = err
}

// Sizes of reports about commands without their first byte: see init.h.
const (
	reportSize = 15 // padding and the serial number
	exitSize   = 39 // struct exit_msg
)

// why is why the init ended; nil: it runs.
func (c *commands) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// report handles a message about a command. An error is [ErrMalformed].
func (c *commands) report(m *message) error {
	least := reportSize
	if m.kind == msgExit {
		least = exitSize
	}
	if len(m.data) < least {
		return fmt.Errorf("%w: %d bytes of kind %q", ErrMalformed, len(m.data), m.kind)
	}
	serial := order.Uint64(m.data[7:])
	c.mu.Lock()
	p := c.known[serial]
	if m.kind == msgEmpty {
		delete(c.known, serial)
	}
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	switch m.kind {
	case msgMarked:
		close(p.marked)
	case msgExit:
		p.reportExit(m.data)
	case msgTree:
		p.reportTree(m.data[reportSize:])
	case msgEmpty:
		p.reportEmpty()
	}
	return nil
}

// reportExit handles struct exit_msg of init.h, after its first byte.
func (p *Process) reportExit(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = Status{
		wait: syscall.WaitStatus(order.Uint32(b[3:])),
		Rusage: Rusage{
			User:   time.Duration(order.Uint64(b[15:])) * time.Microsecond,
			System: time.Duration(order.Uint64(b[23:])) * time.Microsecond,
			MaxRSS: int64(order.Uint64(b[31:])) << 10,
		},
	}
	close(p.exited)
}

// reportTree notes the processes that were left when the first one ended.
func (p *Process) reportTree(pids []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; len(pids) >= 4; pids = pids[4:] {
		p.leftover = append(p.leftover, int(order.Uint32(pids)))
	}
	p.reportLeftover()
}

func (p *Process) reportEmpty() {
	p.mu.Lock()
	p.reportLeftover()
	p.mu.Unlock()
	close(p.empty)
}
