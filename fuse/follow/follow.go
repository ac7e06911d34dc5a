// Package follow keeps the directories that the kernel caches under watch. It connects
// the nodes of package tree with the watcher of package watch: a directory is watched
// before the first answer about one of its entries, and released when the kernel
// forgets it. When too many are watched, the oldest are released.
package follow

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/fuse/watch"
)

// Follower watches the directories of all mounts of a server.
type Follower struct {
	watcher *watch.Watcher
	pause   time.Duration // between two releases of the oldest directories
	most    int

	// mu is taken before the lock of a tree.
	mu         sync.Mutex
	mounts     []*Mount
	generation int // increases when the watcher forgets everything

	// pending is taken after the lock of a tree, and nothing is taken after it.
	pending  sync.Mutex
	released []release
	full     bool

	expiries expiries

	wake       chan struct{}
	ended      chan struct{}
	background sync.WaitGroup
}

// release is a directory that the kernel forgot and whose mark is still set.
type release struct {
	mount *Mount
	id    watch.Identity
	path  string
}

// Mount is one mount whose directories are watched. All methods may be called on nil,
// which watches nothing.
type Mount struct {
	follower *Follower
	number   uint64
	config   MountConfig

	dropping atomic.Bool
	again    atomic.Bool
}

// MountConfig has what a follower needs of a mount.
type MountConfig struct {
	Tree    *tree.Tree
	Backing tree.Backing
	// Changed is called for each change of another process, in their order.
	Changed func(dir uint64, e watch.Event)
	// ForgetNames makes the kernel look up every name and absence again. It waits for
	// nothing. It reports false if the kernel cannot do that.
	ForgetNames func() bool
	// Lost is called at once if anything may have changed. It waits for nothing.
	Lost func()
	// Everything is called later if anything may have changed.
	Everything func()
}

// evictPause bounds how often the oldest directories are released: the kernel drops
// every name then.
const evictPause = 10 * time.Second

// New starts a follower. most is the greatest number of watched directories; 0 means
// the share of one session, [watch.Share]. With onDemand, changes are reported in calls of
// [Follower.Settle] alone.
func New(most int, onDemand bool) *Follower {
	if most == 0 {
		most = watch.Share()
	}
	f := &Follower{most: most, pause: evictPause, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	f.watcher = watch.New(watch.Config{Most: most, Report: f.report, Lost: f.lost, OnDemand: onDemand})
	f.background.Go(f.work)
	return f
}

// Close ends the follower.
func (f *Follower) Close() {
	f.watcher.Close()
	close(f.ended)
	f.background.Wait()
}

// Add begins to follow the directories of a mount.
func (f *Follower) Add(c MountConfig) *Mount {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &Mount{follower: f, number: uint64(len(f.mounts)), config: c}
	f.mounts = append(f.mounts, m)
	c.Tree.Host.OnRelease(m.release)
	return m
}

func (m *Mount) key(id uint64) uint64 { return m.number<<32 | id }

// find returns the mount and the node number of a key.
func (f *Follower) find(key uint64) (*Mount, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[key>>32], key & (1<<32 - 1)
}

// Look watches a directory if it is not watched yet. fd is open at it. The caller calls
// it before it reads what it answers about an entry.
func (m *Mount) Look(n *tree.Node, fd int) {
	if m == nil || m.config.Tree.Host.Watched(n) {
		return
	}
	f := m.follower
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || !m.config.Tree.Same(n, &st) {
		return // the host has moved another directory there
	}
	f.mu.Lock()
	generation := f.generation
	f.mu.Unlock()
	if _, err := f.watcher.Add(m.key(n.ID()), fd); err != nil {
		if errors.Is(err, watch.ErrFull) {
			f.later(func() { f.full = true })
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.generation == generation {
		m.config.Tree.Host.SetWatched(n.ID(), true)
	}
}

// later changes what the background goroutine has to do, and wakes it.
func (f *Follower) later(change func()) {
	f.pending.Lock()
	change()
	f.pending.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// release forgets a directory that the kernel forgot. The caller holds the lock of the
// tree.
func (m *Mount) release(id uint64, path string, removed bool) {
	identity := m.follower.watcher.Forget(m.key(id), removed)
	if identity != "" {
		m.follower.later(func() {
			m.follower.released = append(m.follower.released, release{m, identity, path})
		})
	}
}

func (f *Follower) report(events []watch.Event) {
	for _, e := range events {
		m, id := f.find(e.Dir)
		m.config.Changed(id, e)
		f.expiries.bound()
	}
}

// lost makes every directory unwatched, since its changes may have been lost. It is
// watched again at its next use.
func (f *Follower) lost() {
	f.mu.Lock()
	f.generation++
	mounts := f.mounts
	for _, m := range mounts {
		m.config.Tree.Host.UnwatchAll()
	}
	f.mu.Unlock()
	for _, m := range mounts {
		m.config.Lost()
	}
	for _, m := range mounts {
		m.drop()
	}
}

// drop calls Everything in another goroutine, once at a time.
func (m *Mount) drop() {
	m.again.Store(true)
	if !m.dropping.CompareAndSwap(false, true) {
		return
	}
	go func() { // ends with the mount: the kernel may wait for an approval
		for m.again.Swap(false) {
			m.config.Everything()
		}
		m.dropping.Store(false)
		if m.again.Load() {
			m.drop()
		}
	}()
}

// work removes marks of forgotten directories, and releases the oldest directories if
// too many are watched.
func (f *Follower) work() {
	var last time.Time
	for {
		select {
		case <-f.wake:
		case <-f.ended:
			return
		}
		f.pending.Lock()
		released := f.released
		f.released = nil
		evict := f.full && time.Since(last) >= f.pause
		f.full = false
		f.pending.Unlock()
		for _, r := range released {
			f.unmark(r)
		}
		if evict {
			f.evict()
			last = time.Now()
		}
	}
}

func (f *Follower) unmark(r release) {
	fd := -1
	if dir, err := r.mount.config.Backing.OpenDir(r.path); err == nil {
		defer dir.Close()
		fd = dir.DirFD
	}
	f.watcher.Release(r.id, fd)
}

// evict releases an eighth of the directories, those that were watched first. Their
// changes are reported until the kernel caches nothing of them for long.
func (f *Follower) evict() {
	concerned := map[*Mount]bool{}
	oldest := f.watcher.Oldest(max(f.watcher.Count()/8, 1))
	for _, key := range oldest {
		m, id := f.find(key)
		m.config.Tree.Host.SetWatched(id, false)
		concerned[m] = true
	}
	for m := range concerned {
		m.config.Lost()
	}
	for _, r := range f.forget(oldest) {
		f.unmark(r)
	}
	for m := range concerned {
		m.drop()
	}
}

// forget ends the reports about directories, but not about those that are watched again. It
// returns the marks to remove.
func (f *Follower) forget(keys []uint64) (marked []release) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++ // a Look that has begun sets no mark
	for _, key := range keys {
		m, path := f.mounts[key>>32], ""
		t := m.config.Tree
		if n := t.Node(key & (1<<32 - 1)); n != nil {
			if t.Host.Watched(n) {
				continue
			}
			if paths := t.Paths(n); len(paths) > 0 {
				path = paths[0]
			}
		}
		if identity := f.watcher.Forget(key, false); identity != "" {
			marked = append(marked, release{m, identity, path})
		}
	}
	return marked
}

// Count returns the number of directories that are watched.
func (f *Follower) Count() int { return f.watcher.Count() }
