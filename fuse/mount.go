package fuse

import (
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/trash"
)

// cacheTime is how long the kernel keeps names, attributes and the absence of
// names. The mount is the only way to the backing for everyone but the
// supervisor, which announces its own writes.
const cacheTime = 10 * time.Minute

// mount is one governed directory or file: the answers to the kernel.
type mount struct {
	gofuse.RawFileSystem // answers ENOSYS for what is not defined below

	tag      string
	path     string // inside the sandbox, absolute and clean
	backing  backing
	tree     *tree
	rules    *current
	owner    Owner
	changes  *changes
	reporter *reporter
	trash    *trash.Trash // nil: no rule needs it
	asks     *approvals
	old      *before                  // nil: the old content of changed files is not kept
	mountAt  func(path string) *mount // that serves a path inside the sandbox
	repos    repositories

	loop        *loop
	noOpenDir   bool // listings need no handle
	passthrough bool // reads and writes may bypass the server

	device   uint64   // that the backing lies on
	casefold bool     // its directories may be without case one by one
	folding  sync.Map // by other device: whether it is without case

	cache time.Duration // how long the kernel keeps names, attributes and the absence of names

	handleMu sync.Mutex
	handles  handles
}

// newMount prepares a mount over backing, which it takes over.
func newMount(c MountConfig, backingFile *os.File) (*mount, error) {
	defer backingFile.Close()
	fd, err := unix.FcntlInt(backingFile.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("backing of %s: %w", c.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return nil, fmt.Errorf("backing of %s: %w", c.Path, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		closeFD(fd)
		return nil, fmt.Errorf("backing of %s: neither a directory nor a regular file", c.Path)
	}
	m := &mount{
		RawFileSystem: gofuse.NewDefaultRawFileSystem(),
		tag:           c.Tag,
		path:          c.Path,
		backing:       backing{fd: fd, dir: kind == unix.S_IFDIR},
		tree:          newTree(&st),
		changes:       newChanges(),
		device:        st.Dev,
	}
	m.changes.away = &m.backing.away
	m.repos.m = m
	return m, nil
}

// attach starts answering on the FUSE descriptor, which it takes over. It
// returns after the kernel's INIT; [loop.serve] answers what follows.
func (m *mount) attach(dev *os.File) error {
	defer dev.Close()
	fd, err := unix.FcntlInt(dev.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("fuse descriptor of %s: %w", m.path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(m.backing.fd, &fs); err != nil {
		closeFD(fd)
		return fmt.Errorf("backing of %s: %w", m.path, err)
	}
	m.noOpenDir = m.backing.dir && stableOffsets(fs.Type) && m.listsSilently()
	opts := &gofuse.MountOptions{
		Name:                 "agentsh",
		FsName:               "agentsh",
		MaxBackground:        64,
		MaxWrite:             1 << 20,
		EnableSymlinkCaching: true,
		MaxStackDepth:        1,
		Logger:               log.New(io.Discard, "", 0), // what matters is an event
		PanicHandler:         m.panicked,
		ExtraCapabilities: gofuse.CAP_READDIRPLUS_AUTO | gofuse.CAP_HANDLE_KILLPRIV_V2 |
			gofuse.CAP_ATOMIC_O_TRUNC | gofuse.CAP_NO_OPENDIR_SUPPORT,
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		opts.MaxStackDepth = 2
	}
	l, err := newLoop(m, fd, opts)
	if err != nil {
		closeFD(fd)
		return fmt.Errorf("serve %s: %w", m.path, err)
	}
	m.loop = l
	m.passthrough = l.kernel&gofuse.CAP_PASSTHROUGH != 0
	return nil
}

// panicked denies the operation during which the server's own code failed.
func (m *mount) panicked(cause any) gofuse.Status {
	m.reporter.fault(fmt.Sprintf("file server of %s: %v", m.path, cause))
	return gofuse.EACCES
}

// listsSilently reports whether no listing has to be told or asked for, so that
// the kernel may answer from a listing it once got. What it may not list it
// never gets: a denied listing is not cached, and a directory that is moved to
// where listing is denied is forgotten ([mount.Rename]).
func (m *mount) listsSilently() bool {
	return silent(m.rules.now().policy)
}

// stableOffsets reports filesystems whose directory offsets stay valid in
// another open of the same directory, which is what listing without a handle
// needs.
func stableOffsets(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	case unix.TMPFS_MAGIC:
		return kernelAtLeast(6, 6)
	}
	return false
}

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// String is shown as the filesystem's name.
func (m *mount) String() string { return "agentsh" }
