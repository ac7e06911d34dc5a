package fuse

import (
	"errors"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
)

// creator answers requests that create an entry.
type creator struct {
	tree     *tree.Tree
	files    *files
	access   *access
	nodes    *nodeFiles
	attrs    attributes
	handles  *openFiles
	repos    *repositories
	redirect *redirector
	lookups  *lookups
	data     *data
}

const suidBits = unix.S_ISUID | unix.S_ISGID

const (
	suidMessage   = "set-user-id and set-group-id bits are not given to files in a session"
	deviceMessage = "device files are not made in a session"
)

// made is an entry that was just created. Its descriptor is -1 unless the entry was
// opened.
type made struct {
	tree.Entry
	fd    int
	found bool // it existed before
}

func (p made) Stat(st *unix.Stat_t) error {
	if p.fd >= 0 {
		return unix.Fstat(p.fd, st)
	}
	return p.Entry.Stat(st)
}

// maker checks an entry against the rules for repositories, then creates it.
type maker struct {
	check func(query) gofuse.Status
	make  func(tree.Entry) error
}

// adopted sets the owner of a new entry, adds it to the tree and the change record,
// and answers with it. On failure it removes the entry again.
func (o *creator) adopted(thread uint32, parent *tree.Node, rel string, p made, out *gofuse.EntryOut) (*tree.Node, unix.Stat_t, error) {
	var st unix.Stat_t
	err := o.files.giveOwner(p, &st)
	if err != nil {
		flags := 0
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
		}
		_ = unix.Unlinkat(p.DirFD, p.Name, flags) // the caller gets the error of the failed step
		return nil, st, err
	}
	if !p.found {
		o.tree.Host.Made(&st)
	}
	n := o.tree.Adopt(parent, p.Name, &st)
	o.files.created(rel)
	o.attrs.to(thread).fillEntry(out, parent, n, &st, o.access.decide(query{policy.OpStat, rel}).dec.Effect == policy.Allow)
	return n, st, nil
}

const (
	createTries = 100              // to make or open a file that others remove and make meanwhile
	createPause = time.Millisecond // for others to remove what only the kernel can open
)

// create makes a regular file and opens it. If others made the file after the kernel had
// looked it up, create opens theirs: the kernel would look it up only once more.
func (o *creator) create(in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	second := o.nodes.retries.end(in.Pid) // the kernel looks the name up no more
	for range createTries {
		code, exists := o.createNew(in, name, out)
		if !exists || in.Flags&unix.O_EXCL != 0 {
			return code
		}
		code, again := o.openExisting(in, name, out)
		o.nodes.retries.end(in.Pid)
		if !again && !second {
			o.nodes.retries.answered(in.Pid, code)
		}
		if !again && (!second || code != gofuse.Status(syscall.ESTALE)) {
			return code
		}
		if !again { // the kernel would find it at a third lookup
			o.nodes.kernel.StepAside()
			<-time.After(createPause)
		}
	}
	return gofuse.Status(syscall.ESTALE)
}

// openExisting opens a file that was made after the kernel had looked it up. again says
// that the file has gone. It returns ESTALE for what the kernel has to look up and judge
// itself.
func (o *creator) openExisting(in *gofuse.CreateIn, name string, out *gofuse.CreateOut) (code gofuse.Status, again bool) {
	o.nodes.retries.begin(in.Pid) // the next lookup keeps the file until it is open
	if code := o.lookups.lookup(&in.InHeader, name, &out.EntryOut); !code.Ok() || out.NodeId == 0 {
		return code, code.Ok() || code == gofuse.ENOENT
	}
	open := gofuse.OpenIn{InHeader: in.InHeader, Flags: in.Flags &^ (unix.O_CREAT | unix.O_EXCL | unix.O_NOCTTY), Mode: in.OpenFlags}
	open.NodeId = out.NodeId
	code, refused := gofuse.Status(syscall.ESTALE), true
	if out.Mode&unix.S_IFMT == unix.S_IFREG {
		refused = false
		code = o.data.openChecked(&open, &out.OpenOut, func(fd int) error {
			err := o.mayOpen(in, name, fd)
			refused = err != nil
			return err
		})
	}
	h := o.handles.get(out.Fh)
	if !code.Ok() || h == nil {
		o.tree.Forget(out.NodeId, 1)
		*out = gofuse.CreateOut{}
		return code, code == gofuse.Status(syscall.ESTALE) && !refused
	}
	defer o.handles.put(h)
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err == nil && h.stage == nil {
		o.attrs.fillAttr(&out.Attr, &st) // it may have been truncated
		o.tree.Host.Tell(nil, h.node, &st, tree.Latest, in.Pid)
	}
	return gofuse.OK, false
}

// mayOpen checks what the kernel checks before an open, but not after a CREATE: the mode
// for the caller, and files of others in a directory with the sticky bit. The caller's
// further groups and capabilities are unknown. If the open depends on them, mayOpen
// returns ESTALE, so that the kernel decides. See may_open in fs/namei.c.
func (o *creator) mayOpen(in *gofuse.CreateIn, name string, fd int) error {
	var st, dir unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	_, rel, code := childPath(o.tree, in.NodeId, name)
	if !code.Ok() {
		return syscall.Errno(code)
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := (tree.Entry{DirFD: p.DirFD}).Stat(&dir); err != nil {
		return err
	}
	uid, gid := o.files.owner.shown(&st)
	owner, group := uid == in.Uid, gid == in.Gid
	bits := st.Mode >> 3 & st.Mode // of the group and of all others: the caller may be in the group
	switch {
	case owner:
		bits = st.Mode >> 6
	case group:
		bits = st.Mode >> 3
	}
	need := uint32(6)
	switch in.Flags & unix.O_ACCMODE {
	case unix.O_RDONLY:
		need = 4
	case unix.O_WRONLY:
		need = 2
	}
	if in.Flags&unix.O_TRUNC != 0 {
		need |= 2
	}
	if bits&need != need || !owner && (dir.Mode&unix.S_ISVTX != 0 || in.Flags&unix.O_NOATIME != 0) {
		return unix.ESTALE
	}
	return nil
}

// createNew makes a regular file and opens it. It reports whether the name exists
// already.
func (o *creator) createNew(in *gofuse.CreateIn, name string, out *gofuse.CreateOut) (code gofuse.Status, exists bool) {
	alone := o.repos.exclusive(name)
	o.tree.Lock(alone)
	defer o.tree.Unlock(alone)
	parent, rel, code := childPath(o.tree, in.NodeId, name)
	if !code.Ok() {
		return code, false
	}
	making := query{policy.OpCreate, rel}
	v := o.access.strictest(in.Pid, append([]query{making}, product([]string{rel}, openOps(in.Flags&^unix.O_TRUNC)...)...)...)
	if v.op != policy.OpWrite || v.dec.Effect != policy.SoftDelete { // a new file has no content to save
		if _, code := o.redirect.make(in.Pid, v); !code.Ok() {
			return code, false
		}
	}
	if in.Mode&suidBits != 0 {
		return o.access.refuse(in.Pid, making, suidMessage, "create the file without the bits"), false
	}
	if code := o.repos.make(in.Pid, making, unix.S_IFREG); !code.Ok() {
		return code, false
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err)), false
	}
	defer p.Close()
	fd, err := p.Open(int(in.Flags&backingFlags)|unix.O_CREAT|unix.O_EXCL, in.Mode&0o1777)
	if err != nil {
		return gofuse.Status(errno(err)), errors.Is(err, unix.EEXIST)
	}
	n, st, err := o.adopted(in.Pid, parent, rel, made{p, fd, false}, &out.EntryOut)
	if err != nil {
		tree.CloseFD(fd)
		return gofuse.Status(errno(err)), false
	}
	if o.repos.on() && o.repos.guards(rel) {
		return o.repos.open(n, fd, in.Flags, nil, &out.OpenOut), false
	}
	h := o.handles.prepare(n, fd, in.Flags)
	h.before, h.mayChange = st, in.Flags&unix.O_ACCMODE != unix.O_RDONLY
	o.handles.begin(h, &st, &out.OpenOut)
	return gofuse.OK, false
}

// make evaluates the rules for an entry that is not opened, and creates it.
func (o *creator) make(in *gofuse.InHeader, name string, mode uint32, out *gofuse.EntryOut, do maker) gofuse.Status {
	alone := o.repos.exclusive(name)
	o.tree.Lock(alone)
	defer o.tree.Unlock(alone)
	parent, rel, code := childPath(o.tree, in.NodeId, name)
	if !code.Ok() {
		return code
	}
	a := query{createOp(mode), rel}
	away, code := o.redirect.make(in.Pid, o.access.strictest(in.Pid, a))
	if !code.Ok() {
		return code
	}
	switch kind := mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR || kind == unix.S_IFBLK:
		return o.access.refuse(in.Pid, a, deviceMessage, "use the devices in /dev")
	case kind == unix.S_IFREG && mode&suidBits != 0:
		return o.access.refuse(in.Pid, a, suidMessage, "create the file without the bits")
	}
	if code := do.check(a); !code.Ok() {
		return code
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	err = do.make(p)
	found := errors.Is(err, unix.EEXIST) && away && mode&unix.S_IFMT == unix.S_IFDIR
	if found {
		err = nil // the target has it already
	}
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if _, _, err := o.adopted(in.Pid, parent, rel, made{p, -1, found}, out); err != nil {
		return gofuse.Status(errno(err))
	}
	return gofuse.OK
}

// mknod makes a regular file, FIFO or socket. Devices are refused.
func (o *creator) mknod(in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	mode := in.Mode
	if mode&unix.S_IFMT == 0 {
		mode |= unix.S_IFREG
	}
	return o.make(&in.InHeader, name, mode, out, o.repos.maker(in.Pid, mode, func(p tree.Entry) error {
		return unix.Mknodat(p.DirFD, p.Name, mode&(unix.S_IFMT|0o1777), 0)
	}))
}

// mkdir makes a directory.
func (o *creator) mkdir(in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return o.make(&in.InHeader, name, in.Mode&0o7777|unix.S_IFDIR, out, o.repos.maker(in.Pid, unix.S_IFDIR, func(p tree.Entry) error {
		return unix.Mkdirat(p.DirFD, p.Name, in.Mode&0o3777)
	}))
}

// symlink makes a symbolic link. Its text is checked only where git reads it. The
// target of a link is evaluated when the link is used.
func (o *creator) symlink(h *gofuse.InHeader, text, name string, out *gofuse.EntryOut) gofuse.Status {
	return o.make(h, name, unix.S_IFLNK, out, maker{
		func(a query) gofuse.Status { return o.repos.link(h.Pid, a, text) },
		func(p tree.Entry) error { return unix.Symlinkat(text, p.DirFD, p.Name) },
	})
}

// link gives a file a second name. Rules are evaluated for both names now. At every
// later use the stricter decision applies, whichever name is used. A new name that
// permits more than the file's other names is refused: a later session would not know
// of the other names.
func (o *creator) link(in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	alone := o.repos.exclusive(name)
	o.tree.Lock(alone)
	defer o.tree.Unlock(alone)
	parent, rel, code := childPath(o.tree, in.NodeId, name)
	if !code.Ok() {
		return code
	}
	n := o.tree.Node(in.Oldnodeid)
	if n == nil || o.tree.Stale(n) {
		return gofuse.Status(syscall.ESTALE)
	}
	_, all := o.tree.Bindings(n)
	if len(all) == 0 {
		return gofuse.Status(o.tree.Host.Missing(n))
	}
	asks := []query{{policy.OpLink, rel}, {policy.OpCreate, rel}}
	for _, old := range all {
		asks = append(asks, query{policy.OpLink, old})
	}
	if code := o.access.permit(in.Pid, o.files.inside(rel), asks...); !code.Ok() {
		return code
	}
	for _, old := range all {
		if code := o.access.keepDenials(in.Pid, old, rel); !code.Ok() {
			return code
		}
	}
	if code := o.repos.hardLink(in.Pid, asks[0], n, all); !code.Ok() {
		return code
	}
	from, err := o.nodes.reach(n)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer from.Close()
	to, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer to.Close()
	if err := unix.Linkat(from.DirFD, from.Name, to.DirFD, to.Name, 0); err != nil {
		return gofuse.Status(errno(err))
	}
	var st unix.Stat_t
	if err := to.Stat(&st); err != nil {
		return gofuse.Status(errno(err))
	}
	o.tree.HardLinked(n)
	linked := o.tree.Adopt(parent, name, &st)
	o.files.created(rel)
	o.attrs.to(in.Pid).fillEntry(out, parent, linked, &st, true)
	return gofuse.OK
}
