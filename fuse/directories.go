package fuse

import (
	"io"
	"math"
	"sync"
	"sync/atomic"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/follow"
	"agentsh/fuse/tree"
	"agentsh/policy"
)

// directories answers requests that list directories.
type directories struct {
	tree      *tree.Tree
	files     *files
	access    *access
	nodes     *nodeFiles
	attrs     attributes
	handles   *openFiles
	follow    *follow.Mount
	kernel    *kernel
	folding   *folding
	habits    *habits
	noOpenDir bool // the kernel lists without handles
}

// openDir evaluates the rules for listing and opens a handle. If listings may be
// cached it answers ENOSYS instead. The kernel then lists without handles and caches
// listings, and readDir evaluates the rules. See fuse_file_open in fs/fuse/file.c.
func (o *directories) openDir(in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	if o.noOpenDir {
		return gofuse.ENOSYS
	}
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n, rel, code := dirPath(o.tree, in.NodeId)
	if !code.Ok() {
		return code
	}
	v := o.access.decide(query{policy.OpList, rel})
	if code := o.access.apply(in.Pid, "", v); !code.Ok() {
		return code
	}
	fd, err := o.files.openList(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	out.Fh = o.handles.add(o.handles.prepare(n, fd, 0))
	out.OpenFlags = gofuse.FOPEN_CACHE_DIR | gofuse.FOPEN_KEEP_CACHE
	return gofuse.OK
}

// releaseDir closes a handle made by openDir.
func (o *directories) releaseDir(in *gofuse.ReleaseIn) {
	if h := o.handles.drop(in.Fh); h != nil {
		o.handles.put(h)
	}
}

func (o *directories) readDir(in *gofuse.ReadIn, out *gofuse.DirEntryList, plus bool) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	var fd int
	fresh := false
	parent, rel, code := o.present(in.NodeId)
	if h := o.handles.get(in.Fh); h != nil {
		defer o.handles.put(h)
		h.dirMu.Lock()
		defer h.dirMu.Unlock()
		if parent != h.node {
			return o.listMoved(h, in, out, plus)
		}
		fd = h.fd
	} else {
		if !code.Ok() {
			return code
		}
		if code := o.access.permit(in.Pid, "", query{policy.OpList, rel}); !code.Ok() {
			return code
		}
		if in.Offset == o.endOffset() {
			return gofuse.OK
		}
		var err error
		if fd, err = o.files.openList(rel); err != nil {
			return gofuse.Status(errno(err))
		}
		defer tree.CloseFD(fd)
		fresh = true
	}
	if !o.files.redirected(rel) {
		o.follow.Look(parent, fd)
	}
	l := listing{parent: parent, rel: rel, fd: fd, plus: plus, fresh: fresh, thread: in.Pid}
	l.silent = o.access.silentIn(o.access.rules.now()).hasEntries(rel)
	l.names = plus && o.habits.namesOnly(in.Pid, in.NodeId, in.Offset == 0)
	return gofuse.Status(errno(o.list(l, in.Offset, out)))
}

// present resolves a directory for a request that the kernel does not repeat after ESTALE.
// If the host has moved or removed it, the result is what its path leads to, or ENOENT: a
// plain directory that was removed answers so.
func (o *directories) present(id uint64) (*tree.Node, string, gofuse.Status) {
	n := o.tree.Node(id)
	if n == nil {
		return nil, "", gofuse.ENOENT
	}
	n, err := o.nodes.present(n)
	if err != nil {
		return nil, "", gofuse.Status(errno(err))
	}
	return dirPath(o.tree, n.ID())
}

// listMoved lists an open directory that has lost its path. Its entries have no path, so
// the kernel gets their names only. The rules for its last path apply.
func (o *directories) listMoved(h *handle, in *gofuse.ReadIn, out *gofuse.DirEntryList, plus bool) gofuse.Status {
	rel, ok := o.tree.Host.Last(h.node)
	if !ok {
		return gofuse.ENOENT
	}
	return gofuse.Status(errno(o.list(listing{parent: h.node, rel: rel, fd: h.fd, plus: plus, moved: true, thread: in.Pid}, in.Offset, out)))
}

// endOffset returns the position behind the last entry, on each filesystem that has it: ext4
// and tmpfs among others. No entry can follow. See DIR_OFFSET_EOD in fs/libfs.c.
func (o *directories) endOffset() uint64 {
	if o.files.backing.FS == unix.TMPFS_MAGIC {
		return endOfTmpfs()
	}
	return math.MaxInt64
}

var endOfTmpfs = sync.OnceValue(func() uint64 {
	if kernelAtLeast6(14) {
		return math.MaxInt32
	}
	return math.MaxInt64
})

// list fills out with the entries from position off. Positions are those of the
// backing.
func (o *directories) list(l listing, off uint64, out *gofuse.DirEntryList) error {
	if off != 0 || !l.fresh {
		if _, err := unix.Seek(l.fd, int64(off), io.SeekStart); err != nil {
			return err
		}
	}
	end := o.endOffset()
	bp := listBuffers.Get().(*[]byte)
	defer listBuffers.Put(bp)
	for {
		size, err := device.Retry(func() (int, error) { return unix.Getdents(l.fd, *bp) })
		if err != nil || size == 0 {
			return err
		}
		for buf := (*bp)[:size]; len(buf) > 0; {
			var e gofuse.DirEntry
			buf = buf[e.Parse(buf):]
			if !o.listEntry(l, e, out) || e.Off == end {
				return nil
			}
		}
	}
}

// listEntry adds one entry and reports whether there may be room for more. It omits those
// that are [access.unlisted]. It lists an entry by name alone if every stat
// of it needs an event or an approval.
func (o *directories) listEntry(l listing, e gofuse.DirEntry, out *gofuse.DirEntryList) bool {
	dots := e.Name == "." || e.Name == ".."
	v := verdict{dec: policy.Decision{Effect: policy.Allow}}
	judged := !dots && !l.silent
	if judged {
		v = o.access.decide(query{policy.OpStat, tree.Join(l.rel, e.Name)})
	}
	if judged && o.access.unlisted(v) {
		return true
	}
	if !l.plus {
		return out.AddDirEntry(e)
	}
	entry := out.AddDirLookupEntry(e)
	if entry == nil {
		return false
	}
	if dots {
		return true
	}
	if v.dec.Effect != policy.Allow || l.moved {
		return true // the lookup that follows evaluates the rules and reports
	}
	if l.names && e.Mode&unix.S_IFMT == unix.S_IFREG {
		return true
	}
	attrs := o.attrs.since()
	var st unix.Stat_t
	if o.files.redirects.has(tree.Join(l.rel, e.Name)) || (tree.Entry{DirFD: l.fd, Name: e.Name}).Stat(&st) != nil {
		return true // a redirected name leads elsewhere: the lookup that follows finds it
	}
	if o.folding.folds(tree.Entry{DirFD: l.fd, Name: e.Name}, tree.Join(l.rel, e.Name), &st) {
		return true
	}
	n := o.nodes.adopt(tree.NamedPath{Link: tree.Link{Parent: l.parent, Name: e.Name}, Path: tree.Join(l.rel, e.Name)}, &st)
	out.FixMode(st.Mode)
	attrs.to(l.thread).fillEntry(entry, l.parent, n, &st, true)
	return true
}

// fsyncDir makes the entries of a directory durable.
func (o *directories) fsyncDir(in *gofuse.FsyncIn) gofuse.Status {
	o.tree.Moves.RLock()
	n, rel, code := o.present(in.NodeId)
	if !code.Ok() && code != gofuse.ENOENT {
		o.tree.Moves.RUnlock()
		return code
	}
	fd, err, sync := -1, error(unix.ENOENT), unix.Fsync
	if code.Ok() && n.ID() == in.NodeId {
		fd, err = o.files.openList(rel)
	}
	if tree.Absent(err) { // what commands made there is where the host has moved the directory
		sync = unix.Syncfs
		fd, err = o.files.openList("")
	}
	o.tree.Moves.RUnlock()
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer tree.CloseFD(fd)
	o.kernel.StepAside()
	return gofuse.Status(errno(sync(fd)))
}

// listing is the state of reading one directory.
type listing struct {
	parent *tree.Node
	rel    string
	fd     int
	plus   bool
	names  bool   // files are listed by name: see habits
	silent bool   // the rules allow all entries: see silentPart
	fresh  bool   // nothing was read from fd yet
	moved  bool   // the directory has lost its path
	thread uint32 // that reads it
}

var listBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// habits tell programs that look at the files that they list from those that need the names
// alone, such as find. The kernel asks for attributes with each listing, and makes an inode of
// each entry that has some: this takes most of the time of a first find. So after some
// directories a thread gets one whose files have names only. If nobody looks such a file up,
// the next ones are like it; if somebody does, the attributes come back, and the next trial is
// later. Directories always have attributes: who lists a tree enters them.
//
// It is safe for concurrent use.
type habits struct {
	mu      sync.Mutex
	threads map[uint32]*habit
	bare    map[uint64]*habit // of the threads that listed a directory by names, by its node
	any     atomic.Bool       // bare has entries
}

// habit is what one thread does. The mutex of habits guards it.
type habit struct {
	listed int    // directories with attributes since the last trial
	trial  int    // after so many
	bare   bool   // files are listed by name
	dir    uint64 // node of the last directory, whose listing goes on as it began
	names  bool   // of that listing
}

// Bounds of habits, and when trials are made.
const (
	maxHabits  = 256
	firstTrial = 8
	laterTrial = 8 // times as many directories as before the last trial
	lastTrial  = 4096
)

// namesOnly reports whether a thread gets the files of a directory by name. first: the listing
// begins.
func (o *habits) namesOnly(thread uint32, dir uint64, first bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.threads[thread]
	if h == nil {
		if len(o.threads) >= maxHabits || o.threads == nil {
			o.threads, o.bare = map[uint32]*habit{}, map[uint64]*habit{}
			o.any.Store(false)
		}
		h = &habit{trial: firstTrial}
		o.threads[thread] = h
	}
	if !first && h.dir == dir {
		return h.names
	}
	if !h.bare {
		h.listed++
		h.bare = h.listed > h.trial
	}
	h.dir, h.names = dir, h.bare
	if h.names {
		if len(o.bare) >= maxHabits {
			clear(o.bare)
		}
		o.bare[dir] = h
		o.any.Store(true)
	}
	return h.names
}

// lookedUp says that a file of a directory was looked up.
func (o *habits) lookedUp(dir uint64) {
	if !o.any.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.bare[dir]
	if h == nil || !h.bare {
		return
	}
	h.bare, h.listed, h.trial = false, 0, min(h.trial*laterTrial, lastTrial)
}
