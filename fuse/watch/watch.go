// Package watch tells which names of directories other processes change. A [Watcher]
// has one fanotify group. Its events name the directory and the entry, and say whether
// this process made the change: such events are dropped. A directory that fanotify does
// not accept is watched by inotify, whose events do not say who made the change.
//
// The package knows no mounts and no nodes: the caller numbers its directories.
package watch

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Op says what happened to a name, as bits.
type Op uint16

// The operations.
const (
	Created Op = 1 << iota
	Deleted
	Modified
	Attributes
	MovedFrom
	MovedTo
	OnDir // the entry is a directory
)

// Event is a change of an entry of a watched directory.
type Event struct {
	Dir  uint64 // number of the directory
	Name string // empty: the directory itself
	Op   Op
	PID  int // process that made the change; 0: unknown
	By   Mechanism
}

// Mechanism says how a directory is watched.
type Mechanism int

// The mechanisms.
const (
	None     Mechanism = iota // changes are not seen
	Fanotify                  // events say whether this process made the change
	Inotify                   // events do not say who made the change
)

// String returns the name of the mechanism.
func (m Mechanism) String() string { return [...]string{"none", "fanotify", "inotify"}[m] }

// Config has the functions that a watcher calls. They must return soon and must not
// call the watcher.
type Config struct {
	// Report receives the events of each mechanism in order, from one goroutine at a time.
	Report func([]Event)
	// Lost is called after events were lost: anything may have changed.
	Lost func()
	// Most is the greatest number of watched directories. 0 means [Share] of the limit
	// of the user.
	Most int
	// OnDemand: only [Watcher.Drain] reads the queues. Tests use it.
	OnDemand bool
}

// gather is the time after which the queue is read again, unless [Watcher.Drain] reads it
// before. Meanwhile the kernel merges repeated events of one name.
const gather = 5 * time.Millisecond

// longestEvent is more than the bytes of an event of either mechanism.
const longestEvent = 1024

// Watcher watches directories. It is safe for concurrent use.
type Watcher struct {
	config Config
	most   int
	pid    int32

	reading reading

	mu       sync.Mutex
	fan      queue // fanotify
	ino      queue // inotify; it is opened when it is needed
	ended    bool
	byKey    map[uint64]*directory
	byHandle map[string]*directory
	byWatch  map[int32]*directory
	oldest   *directory // in the order of Add
	newest   *directory
	stray    int // marks of forgotten directories that could not be removed
	readers  sync.WaitGroup
}

// reading is locked while queues are read and their events are reported. It is taken before
// Watcher.mu.
type reading struct {
	sync.Mutex
	buf   []byte
	begun atomic.Uint64 // how often the queues were read, with the present time
}

// directory is one watched directory under one number.
type directory struct {
	key    uint64
	handle string     // fanotify: filesystem and handle
	watch  int32      // inotify: its number; 0: fanotify
	same   *directory // the same directory under another number
	older  *directory
	newer  *directory
}

// New makes a watcher. Without fanotify and inotify it watches nothing.
func New(c Config) *Watcher {
	w := &Watcher{
		config: c, most: c.Most, pid: int32(os.Getpid()), reading: reading{buf: make([]byte, 64<<10)},
		byKey: map[uint64]*directory{}, byHandle: map[string]*directory{}, byWatch: map[int32]*directory{},
	}
	if w.most == 0 {
		w.most = Share()
	}
	if fd, err := unix.FanotifyInit(groupFlags, unix.O_RDONLY); err == nil {
		if w.fan, err = newQueue(fd, w.parseFanotify, fanotifyLength); err == nil {
			w.begin(w.fan)
		}
	}
	return w
}

// begin reads a queue from now on.
func (w *Watcher) begin(q queue) {
	if !w.config.OnDemand {
		w.readers.Go(func() { w.follow(q) })
	}
}

// follow reads all queues when q has events, at most once in the time of gather, until the
// watcher is closed.
func (w *Watcher) follow(q queue) {
	for q.wait() {
		w.drain(nil)
		<-time.After(gather)
		if !q.arm() {
			return
		}
	}
}

// Drain returns after every change has been reported that happened before the call. Changes
// during the call do not prolong it without end. Drain calls waits, if not nil, before it
// waits for a goroutine that reports changes.
func (w *Watcher) Drain(waits func()) { w.drain(waits) }

func (w *Watcher) drain(waits func()) {
	if before := w.reading.begun.Load(); !w.reading.TryLock() {
		if waits != nil {
			waits()
		}
		w.reading.Lock()
		if waits != nil && w.reading.begun.Load() > before {
			w.reading.Unlock() // another call has begun after this one, and has ended
			return
		}
	}
	defer w.reading.Unlock()
	w.reading.begun.Add(1)
	w.mu.Lock()
	queues := [...]queue{w.fan, w.ino}
	w.mu.Unlock()
	for _, q := range queues {
		if q.gate != nil {
			w.drainQueue(q)
		}
	}
}

// drainQueue reports the events that are in a queue now.
func (w *Watcher) drainQueue(q queue) {
	buf := w.reading.buf
	for rest := -1; rest != 0; {
		n, err := unix.Read(q.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		if rest < 0 && len(buf)-n <= longestEvent {
			rest = queued(q.fd)
		} else {
			rest = max(rest-q.length(buf[:n]), 0)
		}
		w.report(q.parse(buf[:n]))
		if len(buf)-n > longestEvent {
			return // the queue was empty then
		}
	}
}

// queued returns the length of a queue in the units of the kernel.
func queued(fd int) int {
	n, err := unix.IoctlGetUint32(fd, unix.TIOCINQ) // it has the number of FIONREAD
	if err != nil {
		return math.MaxInt
	}
	return int(n)
}

func (w *Watcher) report(events []Event, lost bool) {
	if lost {
		w.config.Lost()
	}
	if len(events) > 0 {
		w.config.Report(events)
	}
}

// Close ends the watcher. Report and Lost are not called afterwards.
func (w *Watcher) Close() {
	w.reading.Lock() // nobody reads a descriptor that is closed
	w.mu.Lock()
	queues := [...]queue{w.fan, w.ino}
	w.fan, w.ino, w.ended = queue{}, queue{}, true
	w.mu.Unlock()
	w.reading.Unlock()
	for _, q := range queues {
		if q.gate != nil {
			q.close()
		}
	}
	w.readers.Wait()
}

// Count returns the number of watched directories.
func (w *Watcher) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.byKey)
}

// ErrFull says that the greatest number of directories is watched.
var ErrFull = errors.New("the greatest number of directories is watched")

// Add watches the directory that fd is open at (O_PATH is enough), under the number
// key. Changes are reported from the time when Add returns. An error says why the
// directory cannot be watched.
func (w *Watcher) Add(key uint64, fd int) (Mechanism, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return None, fmt.Errorf("statfs: %w", err)
	}
	if err := watchable(&fs); err != nil {
		return None, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.byKey[key]; d != nil {
		w.drop(d)
	}
	if len(w.byKey)+w.stray >= w.most {
		return None, ErrFull
	}
	d := &directory{key: key}
	how, err := Fanotify, w.mark(d, fd, fs.Fsid)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		how, err = Inotify, w.addInotify(d, fd)
	}
	switch {
	case errors.Is(err, unix.ENOSPC):
		return None, ErrFull
	case err != nil:
		return None, err
	}
	w.add(d)
	return how, nil
}

// add registers a directory as the newest. The caller holds mu.
func (w *Watcher) add(d *directory) {
	w.byKey[d.key] = d
	if d.older = w.newest; d.older != nil {
		d.older.newer = d
	} else {
		w.oldest = d
	}
	w.newest = d
}

// Oldest returns the numbers of the n directories that were added first.
func (w *Watcher) Oldest(n int) []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []uint64
	for d := w.oldest; d != nil && len(keys) < n; d = d.newer {
		keys = append(keys, d.key)
	}
	return keys
}

// Identity identifies a directory that was forgotten but is still marked in the
// kernel.
type Identity string

// Forget ends the reports about a number. If the result is not empty, the caller
// passes it to [Watcher.Release]. removed says that the directory was removed: the
// kernel then removes the mark.
func (w *Watcher) Forget(key uint64, removed bool) Identity {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.byKey[key]
	if d == nil {
		return ""
	}
	w.drop(d)
	if d.watch != 0 || w.byHandle[d.handle] != nil || removed {
		return ""
	}
	w.stray++
	return Identity(d.handle)
}

// drop removes a directory from the tables. The caller holds mu.
func (w *Watcher) drop(d *directory) {
	delete(w.byKey, d.key)
	if d.older != nil {
		d.older.newer = d.newer
	} else {
		w.oldest = d.newer
	}
	if d.newer != nil {
		d.newer.older = d.older
	} else {
		w.newest = d.older
	}
	if d.watch == 0 {
		if rest := without(w.byHandle[d.handle], d); rest != nil {
			w.byHandle[d.handle] = rest
		} else {
			delete(w.byHandle, d.handle)
		}
		return
	}
	if rest := without(w.byWatch[d.watch], d); rest != nil {
		w.byWatch[d.watch] = rest
		return
	}
	delete(w.byWatch, d.watch)
	if w.ino.gate == nil {
		return // closed, and the watch with it
	}
	_, _ = unix.InotifyRmWatch(w.ino.fd, uint32(d.watch)) // fails if the directory was removed
}

// without removes d from a list of the numbers of one directory.
func without(list, d *directory) *directory {
	if list == d {
		return d.same
	}
	for at := list; at != nil; at = at.same {
		if at.same == d {
			at.same = d.same
			break
		}
	}
	return list
}

// Release removes the mark of a directory that was forgotten. fd is open where the
// directory was; negative: nothing is there. If the directory is elsewhere by now, its
// mark stays. Too many such marks end all: every directory is then forgotten, and Lost
// is called.
func (w *Watcher) Release(id Identity, fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.byHandle[string(id)] != nil, w.unmark(string(id), fd):
		w.stray--
	case w.stray > w.most/4:
		w.reset()
	}
}

// unmark removes the mark of a directory if fd is open at it.
func (w *Watcher) unmark(handle string, fd int) bool {
	if fd < 0 || w.fan.gate == nil {
		return false
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	have, err := handleOf(fd, fs.Fsid)
	return err == nil && have == handle &&
		unix.FanotifyMark(w.fan.fd, unix.FAN_MARK_REMOVE|markFlags, eventMask, fd, ".") == nil
}

// reset removes all marks and forgets all directories.
func (w *Watcher) reset() {
	if w.fan.gate != nil {
		_ = unix.FanotifyMark(w.fan.fd, unix.FAN_MARK_FLUSH, 0, unix.AT_FDCWD, "") // removes what there is
	}
	for w.oldest != nil {
		w.drop(w.oldest)
	}
	w.stray = 0
	if !w.ended {
		w.readers.Go(w.config.Lost) // the caller of Release may hold locks that Lost needs
	}
}
