package egress

import (
	"io"
	"runtime/debug"
	"slices"
	"sync"
)

// registry holds what a proxy has open, so that it can be listed and closed.
type registry struct {
	serving sync.WaitGroup // goroutines of the proxy; Add only while not closed, or from one of them

	mu        sync.Mutex
	listeners map[io.Closer]struct{}
	clients   map[*client]struct{}
	flows     map[uint64]*flow
	lastID    uint64 // of a flow
	closed    bool
}

func newRegistry() *registry {
	return &registry{listeners: map[io.Closer]struct{}{}, clients: map[*client]struct{}{}, flows: map[uint64]*flow{}}
}

// addListener registers what close closes. It returns false after close.
func (r *registry) addListener(l io.Closer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.listeners[l] = struct{}{}
	r.serving.Add(1)
	return true
}

// removeListener closes a listener. It ends what addListener began.
func (r *registry) removeListener(l io.Closer) {
	r.mu.Lock()
	delete(r.listeners, l)
	r.mu.Unlock()
	_ = l.Close() // close may have been faster
	r.serving.Done()
}

// addClient registers a client unless there are limit of them; full reports that.
// After close it registers none.
func (r *registry) addClient(c *client, limit int) (added, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, false
	}
	if len(r.clients) >= limit {
		return false, true
	}
	r.clients[c] = struct{}{}
	collection.count(1)
	return true, false
}

// Collection of garbage: with this many clients, their connections are most of the heap
// and live long. A heap that may only grow by a part of it between two collections
// needs a fifth less memory.
const (
	manyClients = 128
	fewClients  = 64
	manyPercent = 20
)

// collection sets how much the heap may grow between collections. There is one setting
// for all proxies of a process.
var collection collector

type collector struct {
	mu      sync.Mutex
	clients int
	many    bool // there are many clients
	percent int  // growth of the heap before there were
}

// count adds clients.
func (c *collector) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients += n
	switch {
	case c.clients >= manyClients && !c.many:
		c.many, c.percent = true, debug.SetGCPercent(manyPercent)
	case c.clients < fewClients && c.many:
		c.many = false
		debug.SetGCPercent(c.percent)
	}
}

func (r *registry) removeClient(c *client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.clients[c]; ok {
		delete(r.clients, c)
		collection.count(-1)
	}
}

// addFlow registers a flow and gives it its id.
func (r *registry) addFlow(f *flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	f.id = r.lastID
	r.flows[f.id] = f
}

func (r *registry) removeFlow(f *flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flows, f.id)
}

// openFlows returns the flows, oldest first.
func (r *registry) openFlows() []*flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*flow, 0, len(r.flows))
	for _, f := range r.flows {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *flow) int { return int(a.id) - int(b.id) })
	return list
}

// close closes the listeners, calls stop, and returns the clients.
func (r *registry) close(stop func()) []*client {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	stop()
	for l := range r.listeners {
		_ = l.Close() // its Serve method closes it too
	}
	clients := make([]*client, 0, len(r.clients))
	for c := range r.clients {
		clients = append(clients, c)
	}
	return clients
}
