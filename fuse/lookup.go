package fuse

import (
	"errors"
	"slices"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/follow"
	"agentsh/fuse/tree"
	"agentsh/policy"
)

// lookups answers requests that read names and attributes: LOOKUP, GETATTR, READLINK,
// STATFS.
type lookups struct {
	tree    *tree.Tree
	files   *files
	access  *access
	nodes   *nodeFiles
	attrs   attributes
	folding *folding
	repos   *repositories
	habits  *habits
	follow  *follow.Mount
}

// lookup finds an entry. See fuse(4) for the meaning of a zero node number.
func (o *lookups) lookup(h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	parent, rel, code := childPath(o.tree, h.NodeId, name)
	if code == gofuse.Status(syscall.ESTALE) {
		return o.lookupMoved(h, name, out)
	}
	if !code.Ok() {
		return code
	}
	v := o.access.decide(query{policy.OpStat, rel})
	if code := o.access.apply(h.Pid, "", v); !code.Ok() {
		return code
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	if !o.files.redirected(rel) {
		o.follow.Look(parent, p.DirFD)
	}
	attrs, absences := o.attrs.since(), o.tree.Host.Absences()
	var st unix.Stat_t
	at := tree.NamedPath{Link: tree.Link{Parent: parent, Name: name}, Path: rel}
	fd, err := o.nodes.retries.stat(h.Pid, p, &st)
	defer func() {
		if fd >= 0 {
			tree.CloseFD(fd)
		}
	}()
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOENT):
		if old := o.tree.Child(parent, name); old != nil {
			o.nodes.lost(old, at)
		}
		if v.dec.Effect == policy.Allow && o.attrs.kernel.caches && !o.attrs.kernel.busy() {
			if !o.tree.Host.TellAbsent(parent, name, absences) {
				return gofuse.OK
			}
			out.SetEntryTimeout(o.attrs.age(o.attrs.absences && o.tree.Host.Watched(parent) && !o.files.redirected(rel)))
			return gofuse.OK
		}
		return gofuse.ENOENT
	default:
		return gofuse.Status(errno(err))
	}
	if o.folding.folds(p, rel, &st) {
		return o.access.refuseFolding(h.Pid, rel)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		o.habits.lookedUp(h.NodeId)
	}
	n := o.nodes.adopt(at, &st)
	o.nodes.retries.found(h.Pid, n, rel, fd)
	fd = -1
	attrs.to(h.Pid).fillEntry(out, parent, n, &st, v.dec.Effect == policy.Allow)
	return gofuse.OK
}

// lookupMoved finds an entry of a directory that the host has replaced, while the kernel
// may still use it: it answers with what the path now leads to, and nothing is cached.
// ESTALE would reach the caller of mkdir(2), link(2), symlink(2) and mknod(2). Those
// repeat the request that follows, but not the lookup. See filename_create in fs/namei.c.
func (o *lookups) lookupMoved(h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	n := o.tree.Node(h.NodeId)
	dir, ok := o.tree.Host.Former(n)
	if !ok {
		return gofuse.ENOENT
	}
	rel := tree.Join(dir, name)
	v := o.access.decide(query{policy.OpStat, rel})
	if code := o.access.apply(h.Pid, "", v); !code.Ok() {
		return code
	}
	p, err := o.files.locate(rel)
	var st unix.Stat_t
	if err == nil {
		defer p.Close()
		err = p.Stat(&st)
	}
	switch {
	case tree.Absent(err):
		return gofuse.ENOENT
	case err != nil:
		return gofuse.Status(errno(err))
	case o.folding.folds(p, rel, &st):
		return o.access.refuseFolding(h.Pid, rel)
	}
	parent, err := o.nodes.place(dir)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	found := o.nodes.adopt(tree.NamedPath{Link: tree.Link{Parent: parent, Name: name}, Path: rel}, &st)
	o.attrs.to(h.Pid).fillEntry(out, parent, found, &st, false)
	return gofuse.OK
}

// getAttr answers stat.
func (o *lookups) getAttr(in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n, at := o.tree.Cached(in.NodeId, policy.OpStat)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	_, all := o.tree.Bindings(n)
	if all = o.nodes.retries.paths(in.Pid, n, all); len(all) == 0 {
		return o.getFormerAttr(in, n, out)
	}
	cache := true
	if at.Allowed {
		all = nil
	}
	for _, rel := range all {
		v := o.access.decide(query{policy.OpStat, rel})
		if code := o.access.apply(in.Pid, "", v); !code.Ok() {
			return code
		}
		cache = cache && v.dec.Effect == policy.Allow
	}
	if cache && !at.Allowed {
		o.tree.CacheAllowed(n, policy.OpStat, at.Generation)
	}
	attrs := o.attrs.since()
	var st unix.Stat_t
	if err := o.nodes.stat(n, &st); err != nil && !o.nodes.retries.attributes(in.Pid, n, &st) {
		if err == unix.ESTALE { //nolint:errorlint // stat returns bare numbers
			return o.getFormerAttr(in, n, out)
		}
		return gofuse.Status(errno(err))
	}
	if st.Nlink == 0 && o.tree.Host.Missing(n) == unix.ESTALE {
		st.Nlink = 1 // a link(2) of the name is sent, and looked up again
	}
	attrs.fillAttr(&out.Attr, &st)
	told := attrs.to(in.Pid).tell(nil, n, &st)
	if !o.repos.staged(n, &out.Attr) && cache && !told.Passing {
		out.SetTimeout(o.attrs.age(told.Watched))
	}
	return gofuse.OK
}

// getFormerAttr answers for a file that has lost its path on the host and that is not
// open here. It answers with what the path now leads to, and nothing is cached. ESTALE
// would reach the caller of fstat(2), which does not look the path up again. A regular file
// or link that went gives ESTALE, unless the call is known to be by descriptor: open(2)
// asks for the mode of a file before it makes a new one.
func (o *lookups) getFormerAttr(in *gofuse.GetAttrIn, n *tree.Node, out *gofuse.AttrOut) gofuse.Status {
	rel, ok := o.tree.Host.Former(n)
	if !ok {
		return gofuse.ENOENT
	}
	if code := o.access.permit(in.Pid, "", query{policy.OpStat, rel}); !code.Ok() {
		return code
	}
	p, err := o.files.locate(rel)
	var st unix.Stat_t
	if err == nil {
		err = p.Stat(&st)
		p.Close()
	}
	switch {
	case err == nil && st.Mode&unix.S_IFMT == n.Kind():
		o.attrs.fillAttr(&out.Attr, &st)
		return gofuse.OK
	case err != nil && !tree.Absent(err):
		return gofuse.Status(errno(err))
	case (n.Kind() == unix.S_IFREG || n.Kind() == unix.S_IFLNK) && !inFstat(in.Pid):
		return gofuse.Status(syscall.ESTALE)
	}
	return gofuse.ENOENT
}

// statx answers statx(2) for a caller that asks for the time of birth. The kernel then
// caches that time.
func (o *lookups) statx(in *gofuse.StatxIn, out *gofuse.StatxOut) gofuse.Status {
	get := gofuse.GetAttrIn{InHeader: in.InHeader, Flags_: in.GetattrFlags, Fh_: in.Fh}
	var got gofuse.AttrOut
	if code := o.getAttr(&get, &got); !code.Ok() {
		return code
	}
	a := &got.Attr
	out.AttrValid, out.AttrValidNsec = got.AttrValid, got.AttrValidNsec
	out.Statx = gofuse.Statx{
		Mask: unix.STATX_BASIC_STATS, Blksize: a.Blksize, Nlink: a.Nlink, Uid: a.Uid, Gid: a.Gid, Mode: uint16(a.Mode),
		Ino: a.Ino, Size: a.Size, Blocks: a.Blocks,
		Atime:     gofuse.SxTime{Sec: a.Atime, Nsec: a.Atimensec},
		Mtime:     gofuse.SxTime{Sec: a.Mtime, Nsec: a.Mtimensec},
		Ctime:     gofuse.SxTime{Sec: a.Ctime, Nsec: a.Ctimensec},
		RdevMajor: unix.Major(uint64(a.Rdev)), RdevMinor: unix.Minor(uint64(a.Rdev)),
	}
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n := o.tree.Node(in.NodeId)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	fd, own, err := o.nodes.pin(0, n, nil)
	if err != nil {
		return gofuse.OK // the time of birth is not known any more
	}
	if own {
		defer tree.CloseFD(fd)
	}
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st) == nil && st.Mask&unix.STATX_BTIME != 0 {
		out.Mask |= unix.STATX_BTIME
		out.Btime = gofuse.SxTime{Sec: uint64(st.Btime.Sec), Nsec: st.Btime.Nsec}
	}
	return gofuse.OK
}

// readlink answers with the text of a symbolic link. The kernel follows the link
// inside the sandbox.
func (o *lookups) readlink(h *gofuse.InHeader) (text []byte, code gofuse.Status) {
	defer func() { o.nodes.retries.answered(h.Pid, code) }()
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n := o.tree.Node(h.NodeId)
	if n == nil {
		return nil, gofuse.Status(syscall.ESTALE)
	}
	kept := o.nodes.retries.take(h.Pid, n, false)
	defer kept.close()
	_, all := o.tree.Bindings(n)
	if all = kept.paths(all); len(all) == 0 {
		return nil, gofuse.Status(o.tree.Host.Missing(n))
	}
	if code := o.access.permitAll(h.Pid, all, policy.OpStat); !code.Ok() {
		return nil, code
	}
	p, err := o.nodes.reach(n)
	if err != nil && kept != nil {
		p, err = tree.Entry{DirFD: kept.fd}, nil
	}
	if err != nil {
		return nil, gofuse.Status(errno(err))
	}
	defer p.Close()
	buf := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(p.DirFD, p.Name, buf)
	if kept != nil && (err == unix.ENOENT || err == unix.EINVAL) { //nolint:errorlint // x/sys returns bare numbers
		size, err = unix.Readlinkat(kept.fd, "", buf)
	}
	if err == unix.ENOENT || err == unix.EINVAL { //nolint:errorlint // likewise; the host has just removed or replaced the link
		err = unix.ESTALE
	}
	if err != nil {
		return nil, gofuse.Status(errno(err))
	}
	return buf[:size], gofuse.OK
}

// statFs answers with the figures of the backing's filesystem. A mount that shows only
// names has no storage for commands. It answers with zeros, as kernel filesystems do,
// and df omits it.
func (o *lookups) statFs(_ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	var st unix.Statfs_t
	if err := unix.Fstatfs(o.files.backing.FD, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	if o.access.namesOnly(o.access.rules.now().policy) {
		st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree = 0, 0, 0, 0, 0
	}
	out.Blocks, out.Bfree, out.Bavail = st.Blocks, st.Bfree, st.Bavail
	out.Files, out.Ffree = st.Files, st.Ffree
	out.Bsize, out.Frsize, out.NameLen = uint32(st.Bsize), uint32(st.Frsize), uint32(st.Namelen)
	return gofuse.OK
}

// attributes converts attributes of the backing into those of the mount. It records
// what the kernel is told.
type attributes struct {
	owner  Owner
	tree   *tree.Tree
	kernel *kernel
	// How long the kernel caches names, attributes and the absence of names: where
	// changes of the host are noticed, and elsewhere.
	watched, unwatched time.Duration
	at                 tree.Moment
	thread             uint32 // that gets the answer
	absences           bool   // the kernel can drop all absences that it caches, see [device.Loop.NotifyEpoch]
	redirects          *redirects
}

// age returns how long the kernel caches an answer. A kernel that takes no notices caches
// nothing: rules and files may change.
func (a attributes) age(watched bool) time.Duration {
	if !a.kernel.caches {
		return 0
	}
	if watched {
		return a.watched
	}
	return a.unwatched
}

// since returns a for attributes that are read from now on. The kernel does not keep
// them if it is told newer ones meanwhile.
func (a attributes) since() attributes {
	a.at = a.tree.Host.Now()
	return a
}

// to returns a for an answer to a thread.
func (a attributes) to(thread uint32) attributes {
	a.thread = thread
	return a
}

// nameAge returns how long the kernel caches a name. See [unmappedTime].
func (a attributes) nameAge(kind uint32, watched bool) time.Duration {
	if !a.kernel.caches && kind == unix.S_IFDIR && !a.redirects.some.Load() {
		return unmappedTime
	}
	return a.age(watched)
}

// fillEntry answers with a node, which is an entry of parent. Without cache the kernel
// asks at every use, as an audited stat requires.
func (a attributes) fillEntry(out *gofuse.EntryOut, parent, n *tree.Node, st *unix.Stat_t, cache bool) {
	out.NodeId = n.ID()
	out.Generation = 1
	a.fillAttr(&out.Attr, st)
	told := a.tell(parent, n, st)
	if cache {
		out.SetEntryTimeout(a.nameAge(st.Mode&unix.S_IFMT, told.NameWatched))
	}
	if cache && !told.Passing {
		out.SetAttrTimeout(a.age(told.Watched))
	}
}

// tell records the attributes of an answer. The kernel ignores the attributes of an
// answer if it got others after it had asked. It may then keep the older ones. So it is
// told to ask once more after attributes that differ from those of an earlier answer.
// Until then it must keep none of them. It marks attributes as valid before it takes their
// size, so another process would get the old size as valid (fuse_change_attributes_i in
// fs/fuse/inode.c).
func (a attributes) tell(parent, n *tree.Node, st *unix.Stat_t) tree.Answer {
	told := a.tree.Host.Tell(parent, n, st, a.at, a.thread)
	if a.redirects.some.Load() && slices.ContainsFunc(a.tree.Paths(n), a.redirects.has) {
		told.NameWatched, told.Watched = false, false // a change of the target is noticed under another name, or not at all
	}
	if !told.Changed {
		return told
	}
	id := n.ID()
	a.kernel.Soon(id, a.thread, func() { a.kernel.askAgain(id) })
	if n.Kind() == unix.S_IFLNK {
		a.kernel.InodeLater(id, func() {}) // the text, if the inode number was used again
	}
	return told
}

// askAgain makes the kernel ask for attributes whose answer it may have ignored.
func (k *kernel) askAgain(id uint64) {
	k.noticing.Lock()
	defer k.noticing.Unlock()
	if k.tree.Host.Sure(id) {
		k.NotifyAttributes(id)
	}
}

// fillAttr shows the backing's owner as the sandbox's user.
func (a attributes) fillAttr(out *gofuse.Attr, st *unix.Stat_t) {
	*out = gofuse.Attr{
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks),
		Atime: uint64(st.Atim.Sec), Atimensec: uint32(st.Atim.Nsec),
		Mtime: uint64(st.Mtim.Sec), Mtimensec: uint32(st.Mtim.Nsec),
		Ctime: uint64(st.Ctim.Sec), Ctimensec: uint32(st.Ctim.Nsec),
		Mode: st.Mode, Nlink: uint32(st.Nlink),
		Owner:   gofuse.Owner{Uid: st.Uid, Gid: st.Gid},
		Rdev:    uint32(st.Rdev),
		Blksize: uint32(st.Blksize),
	}
	out.Uid, out.Gid = a.owner.shown(st)
}

// nobody is shown for an owner that has no id in the sandbox.
const nobody = 65534

// shownID maps an id of the backing. An unrelated id can equal the inside user's id.
// It must not make that user the owner.
func shownID(id, outside, inside uint32) uint32 {
	switch id {
	case outside:
		return inside
	case inside:
		return nobody
	}
	return id
}

// dirPath resolves a directory by its node number. The caller holds tree.Moves.
func dirPath(t *tree.Tree, id uint64) (*tree.Node, string, gofuse.Status) {
	n := t.Node(id)
	if n == nil {
		return nil, "", gofuse.Status(syscall.ESTALE)
	}
	if n.Kind() != unix.S_IFDIR {
		return nil, "", gofuse.ENOTDIR
	}
	paths := t.Paths(n)
	if len(paths) == 0 {
		return nil, "", gofuse.Status(t.Host.Missing(n))
	}
	return n, paths[0], gofuse.OK
}

// validName refuses names that the kernel never sends, such as "..". So no name can
// lead out of its directory.
func validName(name string) gofuse.Status {
	switch {
	case name == "" || name == "." || name == "..":
		return gofuse.EINVAL
	case len(name) > 255:
		return gofuse.Status(syscall.ENAMETOOLONG)
	}
	for i := range len(name) {
		if name[i] == '/' || name[i] == 0 {
			return gofuse.EINVAL
		}
	}
	return gofuse.OK
}

// childPath resolves a name in a directory that is given by its node number.
func childPath(t *tree.Tree, id uint64, name string) (parent *tree.Node, rel string, code gofuse.Status) {
	if code := validName(name); !code.Ok() {
		return nil, "", code
	}
	parent, dir, code := dirPath(t, id)
	if !code.Ok() {
		return nil, "", code
	}
	return parent, tree.Join(dir, name), gofuse.OK
}
