package fuse

import (
	"errors"
	"syscall"

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
func (o *creator) adopted(parent *tree.Node, rel string, p made, out *gofuse.EntryOut) (*tree.Node, unix.Stat_t, error) {
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
	o.attrs.fillEntry(out, parent, n, &st, o.access.decide(query{policy.OpStat, rel}).dec.Effect == policy.Allow)
	return n, st, nil
}

// create makes a regular file and opens it.
func (o *creator) create(in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	alone := o.repos.exclusive(name)
	o.tree.Lock(alone)
	defer o.tree.Unlock(alone)
	parent, rel, code := childPath(o.tree, in.NodeId, name)
	if !code.Ok() {
		return code
	}
	making := query{policy.OpCreate, rel}
	v := o.access.strictest(in.Pid, append([]query{making}, product([]string{rel}, openOps(in.Flags&^unix.O_TRUNC)...)...)...)
	if v.op != policy.OpWrite || v.dec.Effect != policy.SoftDelete { // a new file has no content to save
		if _, code := o.redirect.make(in.Pid, v); !code.Ok() {
			return code
		}
	}
	if in.Mode&suidBits != 0 {
		return o.access.refuse(in.Pid, making, suidMessage, "create the file without the bits")
	}
	if code := o.repos.make(in.Pid, making, unix.S_IFREG); !code.Ok() {
		return code
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	fd, err := p.Open(int(in.Flags&backingFlags)|unix.O_CREAT|unix.O_EXCL, in.Mode&0o1777)
	if errors.Is(err, unix.EEXIST) && in.Flags&unix.O_EXCL == 0 {
		return gofuse.Status(syscall.ESTALE) // the supervisor created it: the kernel looks it up again and opens it
	}
	if err != nil {
		return gofuse.Status(errno(err))
	}
	n, st, err := o.adopted(parent, rel, made{p, fd, false}, &out.EntryOut)
	if err != nil {
		tree.CloseFD(fd)
		return gofuse.Status(errno(err))
	}
	if o.repos.on() && o.repos.guards(rel) {
		return o.repos.open(n, fd, in.Flags, nil, &out.OpenOut)
	}
	h := o.handles.prepare(n, fd, in.Flags)
	h.before, h.mayChange = st, in.Flags&unix.O_ACCMODE != unix.O_RDONLY
	o.handles.begin(h, &st, &out.OpenOut)
	return gofuse.OK
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
	if _, _, err := o.adopted(parent, rel, made{p, -1, found}, out); err != nil {
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
	o.attrs.fillEntry(out, parent, linked, &st, true)
	return gofuse.OK
}
