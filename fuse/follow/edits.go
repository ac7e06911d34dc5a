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
	known   recent // paths that the supervisor wrote, with everything below
	direct  recent // files that commands wrote past the server
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
	return &Edits{tell: tell, pending: map[string]*Edit{}, known: newRecent(), direct: newRecent()}
}

// Note adds a change.
func (s *Edits) Note(e Edit) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isKnown(e.Path) || e.Unsure && time.Since(s.direct.at[e.Path]) < ownWindow {
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
	s.direct.add(path, time.Now())
	if e := s.pending[path]; e != nil && e.Unsure {
		delete(s.pending, path)
	}
}

// recent has paths with a time, of which those of the last ownWindow count.
type recent struct {
	at    map[string]time.Time
	swept time.Time // when old paths were looked for
}

func newRecent() recent { return recent{at: map[string]time.Time{}} }

// sweepInterval is the shortest time between two searches for old paths. A search looks at all of them.
const sweepInterval = ownWindow / 8

// add stores a path. It forgets old ones when there are many.
func (r *recent) add(path string, now time.Time) {
	if len(r.at) >= maxKnown && now.Sub(r.swept) >= sweepInterval {
		r.swept = now
		for p, at := range r.at {
			if now.Sub(at) > ownWindow {
				delete(r.at, p)
			}
		}
	}
	if len(r.at) < maxKnown {
		r.at[path] = now
	}
}

// below reports whether a path above was stored at the same time.
func (r *recent) below(path string, now time.Time) bool {
	for {
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return false
		}
		path = path[:i]
		if at, ok := r.at[path]; ok && at.Equal(now) {
			return true
		}
	}
}

// Wrote says that the supervisor wrote at paths, or below them. A path below an earlier one of
// the list costs no memory.
func (s *Edits) Wrote(paths ...string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, path := range paths {
		if s.known.below(path, now) {
			delete(s.pending, path)
			continue
		}
		s.known.add(path, now)
		s.forget(path)
	}
}

// forget drops the changes at and below a path. The caller holds mu.
func (s *Edits) forget(path string) {
	delete(s.pending, path)
	if path == "" {
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
	if len(s.known.at) == 0 {
		return false
	}
	for {
		if at, ok := s.known.at[path]; ok {
			if time.Since(at) < ownWindow {
				return true
			}
			delete(s.known.at, path)
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
