package fuse

import (
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/changes"
	"agentsh/fuse/device"
	"agentsh/fuse/follow"
	"agentsh/fuse/locks"
	"agentsh/fuse/tree"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

// How long the kernel caches names, attributes and the absence of names: in a directory
// in which changes of the host are noticed, and in others.
const (
	watchedTime   = 10 * time.Minute
	unwatchedTime = time.Second
)

// unmappedTime is how long a kernel that takes no notices keeps the name of a directory. gVisor
// takes a directory for removed if a signal interrupts the lookup of its name. Then it is lost to
// the processes that work in it.
const unmappedTime = time.Minute

// mount is one governed directory or file, with its parts and the operations on the
// whole mount. Requests of the kernel go to its [dispatcher].
type mount struct {
	tag     string
	tree    *tree.Tree
	files   *files
	access  *access
	kernel  *kernel
	handles *openFiles
	nodes   *nodeFiles
	repos   *repositories
	attrs   attributes
	folding *folding
	follow  *follow.Mount // nil: its directories are not watched
	replays *replays
	shared  shared
	writer  writer

	noOpenDir bool // the kernel lists without handles
}

// shared contains the values that all mounts of a server share.
type shared struct {
	config    *Config
	rules     *current
	reporter  *reporter
	approvals *approvals
	follower  *follow.Follower
	lockWaits *locks.Waits
	trash     *trash.Trash // nil: no rule needs it
	mountAt   func(path string) *mount
}

// newMount prepares a mount over backing, which it takes over.
func newMount(c MountConfig, sh shared, backing *os.File) (*mount, error) {
	defer backing.Close()
	fd, err := unix.FcntlInt(backing.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("backing of %s: %w", c.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		tree.CloseFD(fd)
		return nil, fmt.Errorf("backing of %s: %w", c.Path, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		tree.CloseFD(fd)
		return nil, fmt.Errorf("backing of %s: neither a directory nor a regular file", c.Path)
	}
	m := &mount{tag: c.Tag, tree: tree.New(&st), shared: sh}
	m.files = &files{
		path: c.Path, backing: tree.Backing{FD: fd, Dir: kind == unix.S_IFDIR}, record: changes.New(), owner: sh.config.Owner,
	}
	m.access = &access{files: m.files, rules: sh.rules, approvals: sh.approvals, reporter: sh.reporter}
	m.kernel = &kernel{tree: m.tree}
	m.attrs = attributes{
		owner: sh.config.Owner, tree: m.tree, kernel: m.kernel, watched: watchedTime, unwatched: unwatchedTime,
		absences: kernelAtLeast6(16), at: tree.Latest, redirects: &m.files.redirects,
	}
	if sh.config.CacheSeconds > 0 {
		m.attrs.unwatched = time.Duration(sh.config.CacheSeconds) * time.Second
	}
	staged := &stages{}
	m.handles = &openFiles{tree: m.tree, kernel: m.kernel, stages: staged}
	m.nodes = &nodeFiles{tree: m.tree, files: m.files, handles: m.handles, kernel: m.kernel, retries: &retries{tree: m.tree}}
	m.repos = &repositories{
		tree: m.tree, files: m.files, access: m.access, kernel: m.kernel, handles: m.handles, nodes: m.nodes, stages: staged,
	}
	if m.files.backing.Dir {
		m.files.edits = follow.NewEdits(m.tellEdits)
		m.replays = newReplays(m)
		m.follow = sh.follower.Add(follow.MountConfig{
			Tree: m.tree, Backing: m.files.backing,
			Changed:     m.hostEdit,
			ForgetNames: m.forgetNames,
			Lost:        m.hostChangedEverything,
			Everything:  m.dropEverything,
		})
		m.nodes.follow = m.follow
	}
	m.tree.Host.OnLost(m.nodes.expire)
	m.folding = &folding{access: m.access, repos: m.repos, device: st.Dev, casefold: sh.config.Casefold}
	return m, nil
}

// newDispatcher makes the handlers of a mount.
func newDispatcher(m *mount) *dispatcher {
	soft := &softDeletes{files: m.files, access: m.access, kernel: m.kernel, trash: m.shared.trash}
	redirect := &redirector{
		tree: m.tree, files: m.files, access: m.access, kernel: m.kernel, repos: m.repos, mountAt: m.shared.mountAt,
	}
	lock := newLocker(m)
	used := &habits{}
	look := &lookups{
		tree: m.tree, files: m.files, access: m.access, nodes: m.nodes, attrs: m.attrs, folding: m.folding, repos: m.repos,
		habits: used, follow: m.follow,
	}
	content := &data{
		tree: m.tree, files: m.files, access: m.access, nodes: m.nodes, handles: m.handles, kernel: m.kernel, repos: m.repos,
		soft: soft, redirect: redirect,
		locks: lock,
	}
	return &dispatcher{
		lockRequests: lockRequests{gofuse.NewDefaultRawFileSystem(), lock},
		refusals:     &m.nodes.retries.refusals,
		replays:      m.replays,
		asker:        asker{access: m.access, kernel: m.kernel},
		lookups:      look,
		setattr: &setattr{
			tree: m.tree, files: m.files, access: m.access, nodes: m.nodes, attrs: m.attrs, handles: m.handles, repos: m.repos,
			soft: soft, redirect: redirect,
		},
		data: content,
		directories: &directories{
			tree: m.tree, files: m.files, access: m.access, nodes: m.nodes, attrs: m.attrs, handles: m.handles, kernel: m.kernel, folding: m.folding,
			habits: used, follow: m.follow, noOpenDir: m.noOpenDir,
		},
		creator: &creator{
			tree: m.tree, files: m.files, access: m.access, nodes: m.nodes, attrs: m.attrs, handles: m.handles, repos: m.repos,
			redirect: redirect, lookups: look, data: content,
		},
		remover: &remover{tree: m.tree, files: m.files, access: m.access, soft: soft},
		renamer: &renamer{
			tree: m.tree, files: m.files, access: m.access, kernel: m.kernel, repos: m.repos, soft: soft, redirect: redirect,
			noOpenDir: m.noOpenDir,
		},
		xattrs: &xattrs{tree: m.tree, access: m.access, nodes: m.nodes},
	}
}

// attach starts serving the FUSE descriptor, which it takes over. It returns after the
// kernel's INIT. [device.Loop.Serve] then answers all further requests.
func (m *mount) attach(dev *os.File) error {
	defer dev.Close()
	fd, err := unix.FcntlInt(dev.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("fuse descriptor of %s: %w", m.files.path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(m.files.backing.FD, &fs); err != nil {
		tree.CloseFD(fd)
		return fmt.Errorf("backing of %s: %w", m.files.path, err)
	}
	m.files.backing.FS = fs.Type
	m.handles.tmpfs = fs.Type == unix.TMPFS_MAGIC
	m.tree.CoarseTimes = older.coarseTimes || !fineTimes(fs.Type)
	m.noOpenDir = m.files.backing.Dir && stableOffsets(fs.Type) && m.access.listsSilently()
	opts := &gofuse.MountOptions{
		Name:                 "agentsh",
		FsName:               "agentsh",
		MaxBackground:        64,
		MaxWrite:             1 << 20,
		EnableSymlinkCaching: true,
		MaxStackDepth:        1,
		EnableLocks:          true,
		Logger:               log.New(io.Discard, "", 0), // failures are reported as events
		PanicHandler:         m.panicked,
		ExtraCapabilities: gofuse.CAP_READDIRPLUS_AUTO | gofuse.CAP_HANDLE_KILLPRIV_V2 |
			gofuse.CAP_ATOMIC_O_TRUNC | gofuse.CAP_NO_OPENDIR_SUPPORT | gofuse.CAP_DIRECT_IO_ALLOW_MMAP,
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		opts.MaxStackDepth = 2
	}
	l, err := device.New(fd, device.Config{
		Handler:  newDispatcher(m),
		Caching:  m.access.rules.caching.RLocker(),
		Observed: m.observed,
		Fault:    func(what string) { m.access.reporter.fault(fmt.Sprintf("file server of %s: %s", m.files.path, what)) },
		Panicked: m.panicked,
	}, opts)
	if err != nil {
		tree.CloseFD(fd)
		return fmt.Errorf("serve %s: %w", m.files.path, err)
	}
	m.kernel.caches = l.Notices() && !older.noNotices
	if !m.kernel.caches && !m.shared.config.Unmapped {
		tree.CloseFD(fd)
		return fmt.Errorf("serve %s: the kernel takes no notices from a file server, and maps no files of it", m.files.path)
	}
	m.kernel.Loop = l
	m.handles.passthrough = l.Passthrough()
	m.handles.mapsDirect = l.MapsDirect() && !older.noDirectReads
	m.handles.leases = countsMappings(fs.Type)
	return nil
}

// older says what tests do without, as on older kernels, as if a goroutine got no time, or as if
// files were not in memory.
var older struct{ noDirectReads, coarseTimes, noEventReader, noNotices, cold bool }

// panicked denies an operation that panicked in the server.
func (m *mount) panicked(cause any) gofuse.Status {
	m.access.reporter.fault(fmt.Sprintf("file server of %s: %v", m.files.path, cause))
	return gofuse.EACCES
}

// stableOffsets reports whether directory offsets of a filesystem remain valid in
// another open of the same directory. Listing without a handle requires that.
func stableOffsets(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	case unix.TMPFS_MAGIC:
		return kernelAtLeast6(6)
	}
	return false
}

// countsMappings reports whether a mapping counts as an open of its file. On overlayfs it
// counts as one of the file below.
func countsMappings(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// fineTimes reports whether each change of a file that was looked at since the last one
// gives it another time: multigrain timestamps, see
// Documentation/filesystems/multigrain-ts.rst.
func fineTimes(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return kernelAtLeast6(13)
	}
	return false
}

// kernelAtLeast6 reports whether the kernel is Linux 6.minor or a newer one.
func kernelAtLeast6(minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > 6 || a == 6 && b >= minor
}

// listChanges returns the change record, including writes through handles that are
// still open. It calls working before it looks at a file.
func (m *mount) listChanges(working func()) ([]wire.Change, error) {
	m.files.edits.Flush()
	m.tree.Moves.Lock()
	defer m.tree.Moves.Unlock()
	m.nodes.recordOpenWrites()
	return m.files.record.List(func(rel string, st *unix.Stat_t) error {
		working()
		p, err := m.files.locate(rel)
		if err != nil {
			return err
		}
		defer p.Close()
		return p.Stat(st)
	})
}

// baseline restarts the change record at the present state.
func (m *mount) baseline() {
	m.tree.Moves.Lock()
	defer m.tree.Moves.Unlock()
	m.handles.baseline()
	m.files.record.Reset()
}

// kernel is the connection of a mount to the kernel. It has no loop until
// [mount.attach].
type kernel struct {
	*device.Loop
	tree   *tree.Tree
	caches bool // answers: the kernel can be told to drop them

	busyUntil atomic.Int64 // time in ns, see [mount.forgetNames]

	noticing sync.Mutex // held from the decision to send a notice about attributes until it is sent
	drops    drops
}

// invalidate makes the kernel drop what it caches at a path. The caller must not hold
// a lock: the kernel may first wait for an answer of this server.
func (k *kernel) invalidate(rel string) {
	n, unknown := k.tree.Walk(rel)
	if unknown != "" {
		k.NotifyInode(n.ID()) // the listing of the deepest known directory
		k.NotifyEntry(n.ID(), unknown)
		return
	}
	for _, known := range k.tree.Below(n) {
		k.NotifyInode(known.ID)
		for _, at := range known.Names {
			k.NotifyInode(at.Parent)
			k.NotifyEntry(at.Parent, at.Name)
		}
	}
}
