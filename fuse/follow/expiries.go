package follow

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// expiries are the names that the kernel is being told to look up again. The kernel takes
// such a notice when nobody uses the name's directory. Until then it may answer by what it
// knew before.
type expiries struct {
	some atomic.Int32 // the length of open

	mu   sync.Mutex
	open map[*expiry]struct{}
}

// expiry is one name on the way.
type expiry struct {
	mount *Mount
	dir   uint64
	taken chan struct{} // closed when the kernel has taken the notice
}

// Expiring records that the kernel is told to look up a name again, in the directory with
// the number dir. Nothing newer may be answered before. The caller calls taken when the
// kernel has taken the notice.
func (m *Mount) Expiring(dir uint64) (taken func()) {
	if m == nil {
		return func() {}
	}
	e := &expiry{m, dir, make(chan struct{})}
	x := &m.follower.expiries
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[*expiry]struct{}{}
	}
	x.open[e] = struct{}{}
	x.some.Add(1)
	return func() {
		close(e.taken)
		x.end(e)
	}
}

func (x *expiries) end(e *expiry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, open := x.open[e]; open {
		delete(x.open, e)
		x.some.Add(-1)
	}
}

// list returns the names on the way.
func (x *expiries) list() []*expiry {
	x.mu.Lock()
	defer x.mu.Unlock()
	var list []*expiry
	for e := range x.open {
		list = append(list, e)
	}
	return list
}

// expireTime bounds the wait for names. It is longer than the kernel takes for a
// directory that nobody uses.
const expireTime = 2 * time.Millisecond

// Settle is called before a request about a node of m is answered. It returns when the
// kernel uses nothing any more that the host changed before the call. So no command sees a
// change of the host, but not an earlier one. m may be nil. waits is called before Settle
// waits.
func (f *Follower) Settle(m *Mount, node uint64, waits func()) {
	f.watcher.Drain(waits)
	if f.expiries.some.Load() == 0 {
		return
	}
	f.expiries.overtake(f.expiries.awaited(m, node, waits))
}

// mostExpiries bounds the names on the way. There are more of them where the host makes
// names in a directory that is in use for long, and where no request settles anything.
const mostExpiries = 1024

// bound lets all names expire at once if too many are on the way.
func (x *expiries) bound() {
	if x.some.Load() > mostExpiries {
		x.overtake(x.list())
	}
}

// overtake makes the kernel look up every name of the mounts concerned again.
func (x *expiries) overtake(late []*expiry) {
	byMount := map[*Mount][]*expiry{}
	for _, e := range late {
		byMount[e.mount] = append(byMount[e.mount], e)
	}
	for concerned, list := range byMount {
		concerned.config.ForgetNames()
		for _, e := range list {
			x.end(e)
		}
	}
}

// awaited waits for the names on the way and returns those that the kernel has not taken in
// time. It does not wait if the request itself may use the directory of one.
func (x *expiries) awaited(m *Mount, node uint64, waits func()) (late []*expiry) {
	list := x.list()
	own := func(e *expiry) bool { return e.mount == m && e.dir == node }
	if !slices.ContainsFunc(list, own) {
		waits()
		timeout, stop := context.WithTimeout(context.Background(), expireTime)
		defer stop()
		for _, e := range list {
			select {
			case <-e.taken:
			case <-timeout.Done():
			}
		}
	}
	return slices.DeleteFunc(list, func(e *expiry) bool {
		select {
		case <-e.taken:
			return true
		default:
			return false
		}
	})
}
