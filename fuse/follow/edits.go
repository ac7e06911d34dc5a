package follow

import (
	"strings"
	"sync"
	"time"

	"agentsh/fuse/watch"
)

// Edit is what other processes did to one path within a second.
type Edit struct {
	Path    string // relative to the mount
	Op      watch.Op
	Count   int
	Existed bool // a file was there before, as far as is known
	// Unsure says that a command may have written it past the server.
	Unsure bool
}

// Edits collects changes of other processes by path and reports them once a second. It
// leaves out what the session itself wrote in another way than through its server. All
// methods may be called on nil.
type Edits struct {
	tell func(list []Edit, events, more int)

	mu      sync.Mutex
	pending map[string]*Edit
	told    int // events of this window
	more    int // changes of this window that get no event of their own
	timer   bool
	known   map[string]time.Time // paths that the supervisor wrote, with everything below
	direct  map[string]time.Time // files that commands wrote past the server
}

// Bounds of [Edits].
const (
	editWindow = time.Second
	ownWindow  = 2 * time.Second // after a write of the session its events may still arrive
	maxEdits   = 16 << 10
	maxKnown   = 4 << 10
	maxEvents  = 64 // in a window, whoever flushes it
)

// NewEdits returns an empty collection. tell is called from a goroutine of its own, or by
// Flush. The first changes of list, events of them, get an event each. more counts those of
// a second that get none; it is not 0 once a second at most.
func NewEdits(tell func(list []Edit, events, more int)) *Edits {
	return &Edits{tell: tell, pending: map[string]*Edit{}, known: map[string]time.Time{}, direct: map[string]time.Time{}}
}

// Note adds a change.
func (s *Edits) Note(e Edit) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isKnown(e.Path) || e.Unsure && time.Since(s.direct[e.Path]) < ownWindow {
		return
	}
	if !s.timer {
		s.timer = true
		time.AfterFunc(editWindow, func() { s.flush(true) })
	}
	if have := s.pending[e.Path]; have != nil {
		have.Op |= e.Op
		have.Unsure = have.Unsure && e.Unsure
		have.Count++
		return
	}
	if len(s.pending) >= maxEdits {
		s.more++
		return
	}
	e.Count = 1
	s.pending[e.Path] = &e
}

// Direct says that a command wrote to a file past the server. Unsure edits are not told.
func (s *Edits) Direct(path string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	remember(s.direct, path)
	if e := s.pending[path]; e != nil && e.Unsure {
		delete(s.pending, path)
	}
}

// remember stores a path and the time. It forgets old ones when there are many.
func remember(paths map[string]time.Time, path string) {
	now := time.Now()
	if len(paths) >= maxKnown {
		for p, at := range paths {
			if now.Sub(at) > ownWindow {
				delete(paths, p)
			}
		}
	}
	if len(paths) < maxKnown {
		paths[path] = now
	}
}

// Wrote says that the supervisor wrote at a path, or below it.
func (s *Edits) Wrote(path string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	remember(s.known, path)
	delete(s.pending, path)
	if path == "" || len(s.pending) == 0 {
		return
	}
	for p := range s.pending {
		if strings.HasPrefix(p, path) && p[len(path)] == '/' {
			delete(s.pending, p)
		}
	}
}

// isKnown reports whether the supervisor wrote at a path or above it. The caller holds mu.
func (s *Edits) isKnown(path string) bool {
	if len(s.known) == 0 {
		return false
	}
	for {
		if at, ok := s.known[path]; ok {
			if time.Since(at) < ownWindow {
				return true
			}
			delete(s.known, path)
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return false
		}
		path = path[:i]
	}
}

// Flush reports what was collected. The rest of its second has the same bound of events.
func (s *Edits) Flush() {
	if s != nil {
		s.flush(false)
	}
}

// flush reports what was collected. ends says that the window is over.
func (s *Edits) flush(ends bool) {
	s.mu.Lock()
	list := make([]Edit, 0, len(s.pending))
	for _, e := range s.pending {
		list = append(list, *e)
	}
	s.pending = map[string]*Edit{}
	events, more := min(len(list), maxEvents-s.told), 0
	s.told += events
	s.more += len(list) - events
	if ends {
		more = s.more
		s.told, s.more, s.timer = 0, 0, false
	}
	s.mu.Unlock()
	if len(list) > 0 || more > 0 {
		s.tell(list, events, more)
	}
}
