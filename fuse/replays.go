package fuse

import (
	"sync"
	"sync/atomic"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/fuse/watch"
	"agentsh/internal/wire"
)

// replays make inotify watchers inside the session see what the host changed. The
// kernel raises no event for a change behind a mount. So the server announces the change
// to the supervisor, which performs a like operation through the mount, and the kernel
// raises the event. The server recognises the supervisor by the thread number of its
// requests, which no command has. It changes nothing and answers with what is there.
type replays struct {
	m     *mount
	on    atomic.Bool
	tid   atomic.Uint32
	queue chan hostChange
	send  func(Replay)

	mu   sync.Mutex
	open map[entryName]announcement
	fake uint64 // number of the last inode that stood for a removed file
}

// entryName is an entry of a directory, which is given by its node number.
type entryName struct {
	parent uint64
	name   string
}

// announcement is a change of an entry's existence that the supervisor will replay.
type announcement struct {
	kind     ReplayKind
	fileType uint32
	fake     uint64 // of a removed entry that was looked up: the inode number given to it
}

// hostChange is a change to be replayed.
type hostChange struct {
	dir, known uint64 // node numbers; known is that of the entry before the change, or 0
	event      watch.Event
}

// Replay is one operation that the supervisor performs through the mount.
type Replay struct {
	Mount string     `json:"mount"` // tag
	Dir   wire.Name  `json:"dir"`   // relative to the mount
	Name  wire.Name  `json:"name"`  // empty: the directory itself
	Kind  ReplayKind `json:"kind"`
	Type  uint32     `json:"type"` // S_IFMT bits
}

// ReplayKind is a kind of operation.
type ReplayKind string

// The kinds of [Replay].
const (
	ReplayCreate     ReplayKind = "create"     // make an entry
	ReplayDelete     ReplayKind = "delete"     // remove it
	ReplayModify     ReplayKind = "modify"     // set its modification time
	ReplayAttributes ReplayKind = "attributes" // set both times
)

// Perform performs the operation below a mount. root is open at its root. It follows no
// symbolic link and leaves the mount nowhere.
func (r Replay) Perform(root int) error {
	dir := string(r.Dir)
	if dir == "" {
		dir = "."
	}
	const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inside})
	if err != nil {
		return err
	}
	defer tree.CloseFD(fd)
	name := string(r.Name)
	times := []unix.Timespec{{}, {}}
	switch {
	case r.Kind == ReplayCreate && r.Type == unix.S_IFDIR:
		return unix.Mkdirat(fd, name, 0)
	case r.Kind == ReplayCreate && r.Type == unix.S_IFLNK:
		return unix.Symlinkat(".", fd, name)
	case r.Kind == ReplayCreate:
		return unix.Mknodat(fd, name, r.Type, 0)
	case r.Kind == ReplayDelete && r.Type == unix.S_IFDIR:
		return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	case r.Kind == ReplayDelete:
		return unix.Unlinkat(fd, name, 0)
	case r.Kind == ReplayModify:
		times[0].Nsec = unix.UTIME_OMIT // the time of modification alone counts as a write, see fsnotify_change in the kernel
	}
	if name == "" {
		return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
	}
	return unix.UtimesNanoAt(fd, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

const (
	maxReplays = 1024       // further changes of a burst raise no event inside
	noDevice   = ^uint64(0) // device number of inodes that stand for removed files
)

func newReplays(m *mount) *replays {
	return &replays{m: m, queue: make(chan hostChange, maxReplays), open: map[entryName]announcement{}}
}

// begin announces changes from now on. It may be called on nil.
func (r *replays) begin(tid uint32, send func(Replay)) {
	if r == nil || r.on.Load() {
		return
	}
	r.tid.Store(tid)
	r.send = send
	r.on.Store(true)
	go r.run() // ends with the process: the kernel may wait for an approval
}

// from reports whether a request comes from the supervisor. It may be called on nil.
func (r *replays) from(tid uint32) bool { return r != nil && r.on.Load() && tid == r.tid.Load() }

// note queues a change.
func (r *replays) note(dir, known uint64, e watch.Event) {
	if r == nil || !r.on.Load() {
		return
	}
	select {
	case r.queue <- hostChange{dir, known, e}:
	default:
	}
}

func (r *replays) run() {
	for c := range r.queue {
		parent := r.m.tree.Node(c.dir)
		if parent == nil {
			continue
		}
		if paths := r.m.tree.Paths(parent); len(paths) > 0 {
			r.replay(c, paths[0])
		}
	}
}

// replay announces the operations that have the events of a change.
func (r *replays) replay(c hostChange, dir string) {
	step := Replay{Mount: r.m.tag, Dir: wire.Name(dir), Name: wire.Name(c.event.Name), Kind: ReplayAttributes}
	if c.event.Name == "" {
		r.send(step)
		return
	}
	var st unix.Stat_t
	op := c.event.Op
	if r.stat(tree.Join(dir, c.event.Name), &st) != nil {
		if op&(watch.Deleted|watch.MovedFrom) == 0 {
			return
		}
		if step.Type = unix.S_IFREG; op&watch.OnDir != 0 {
			step.Type = unix.S_IFDIR
		}
		if c.known != 0 {
			r.m.kernel.NotifyDelete(c.dir, c.known, c.event.Name)
		}
		r.announce(c, step, ReplayDelete)
		return
	}
	step.Type = st.Mode & unix.S_IFMT
	if op&(watch.Created|watch.MovedTo) != 0 {
		if r.replaced(c.known, &st) {
			r.m.kernel.NotifyDelete(c.dir, c.known, c.event.Name)
		}
		r.announce(c, step, ReplayCreate)
	}
	if op&watch.Modified != 0 {
		step.Kind = ReplayModify
		r.send(step)
	}
	if op&watch.Attributes != 0 {
		step.Kind = ReplayAttributes
		r.send(step)
	}
}

// replaced reports whether the known entry was another file than st.
func (r *replays) replaced(known uint64, st *unix.Stat_t) bool {
	if known == 0 {
		return false
	}
	r.m.tree.Moves.RLock()
	defer r.m.tree.Moves.RUnlock()
	n := r.m.tree.Node(known)
	return n != nil && !r.m.tree.Same(n, st)
}

func (r *replays) stat(rel string, st *unix.Stat_t) error {
	r.m.tree.Moves.RLock()
	defer r.m.tree.Moves.RUnlock()
	p, err := r.m.files.locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Stat(st)
}

// announce sends a change of an entry's existence.
func (r *replays) announce(c hostChange, step Replay, kind ReplayKind) {
	r.mu.Lock()
	if len(r.open) >= maxReplays {
		clear(r.open) // the supervisor could not perform them
	}
	r.open[entryName{c.dir, c.event.Name}] = announcement{kind: kind, fileType: step.Type}
	r.mu.Unlock()
	step.Kind = kind
	r.send(step)
}

// take ends an announcement. It reports false if there is none of that kind.
func (r *replays) take(at entryName, kind ReplayKind) (announcement, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.open[at]
	delete(r.open, at)
	return a, a.kind == kind
}

// lookup answers the supervisor's lookup of an announced entry with its former state.
func (r *replays) lookup(h *gofuse.InHeader, name string, out *gofuse.EntryOut) (code gofuse.Status, replayed bool) {
	if !r.from(h.Pid) {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := entryName{h.NodeId, name}
	a, announced := r.open[at]
	switch {
	case !announced:
		return 0, false
	case a.kind == ReplayCreate:
		return gofuse.ENOENT, true
	}
	r.m.tree.Moves.RLock()
	defer r.m.tree.Moves.RUnlock()
	parent, _, code := childPath(r.m.tree, h.NodeId, name)
	if !code.Ok() {
		return code, true
	}
	if r.m.tree.Child(parent, name) != nil {
		delete(r.open, at) // it is there again
		return 0, false
	}
	r.fake++
	a.fake = r.fake
	r.open[at] = a
	st := unix.Stat_t{Dev: noDevice, Ino: a.fake, Mode: a.fileType | 0o700, Nlink: 1}
	n := r.m.tree.Adopt(parent, name, &st)
	out.NodeId, out.Generation = n.ID(), 1
	r.m.attrs.fillAttr(&out.Attr, &st)
	out.Uid, out.Gid = r.m.files.owner.InsideUID, r.m.files.owner.InsideGID
	return gofuse.OK, true
}

// create answers the creation of an announced entry with the entry that is there.
func (r *replays) create(h *gofuse.InHeader, name string, out *gofuse.EntryOut,
	lookup func(*gofuse.InHeader, string, *gofuse.EntryOut) gofuse.Status,
) gofuse.Status {
	if _, ok := r.take(entryName{h.NodeId, name}, ReplayCreate); !ok {
		return gofuse.EPERM
	}
	code := lookup(h, name, out)
	if code.Ok() && out.NodeId == 0 {
		return gofuse.ENOENT
	}
	return code
}

// remove answers the removal of an announced entry, which is gone.
func (r *replays) remove(h *gofuse.InHeader, name string) gofuse.Status {
	a, ok := r.take(entryName{h.NodeId, name}, ReplayDelete)
	if !ok {
		return gofuse.EPERM
	}
	r.m.tree.Moves.RLock()
	defer r.m.tree.Moves.RUnlock()
	parent, _, code := childPath(r.m.tree, h.NodeId, name)
	if !code.Ok() {
		return code
	}
	child := r.m.tree.Child(parent, name)
	if child != nil && r.m.tree.Same(child, &unix.Stat_t{Dev: noDevice, Ino: a.fake}) {
		r.m.tree.Unlink(parent, name, 0)
	}
	return gofuse.OK
}

// attributes answers the supervisor's change of a file's times with the present ones.
func (r *replays) attributes(h *gofuse.InHeader, out *gofuse.AttrOut) gofuse.Status {
	r.m.tree.Moves.RLock()
	defer r.m.tree.Moves.RUnlock()
	n := r.m.tree.Node(h.NodeId)
	if n == nil {
		return gofuse.Status(unix.ESTALE)
	}
	var st unix.Stat_t
	if err := r.m.nodes.stat(n, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	r.m.attrs.fillAttr(&out.Attr, &st)
	return gofuse.OK
}
