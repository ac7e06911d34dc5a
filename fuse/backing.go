package fuse

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of one mount.
const (
	maxFormerNames = 64       // names kept of a hard linked file
	maxPathBytes   = 64 << 10 // longest path below a mount
	pathChunk      = 4000     // longest path given to one openat2, below PATH_MAX
)

// backing reaches files of a governed directory by path, always beneath its
// descriptor and never through a symbolic link, so a link planted in the
// workspace leads the server nowhere.
type backing struct {
	fd  int  // O_PATH descriptor of the directory or file; the mount closes it
	dir bool // false: the backing is one regular file

	away redirects
}

// place is a name in an open directory: the argument pair of the *at calls.
type place struct {
	dirfd int
	name  string // empty: the backing itself
	own   bool   // dirfd is closed with the place
}

func (p place) close() {
	if p.own {
		closeFD(p.dirfd)
	}
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openDir opens the directory at rel, or the one a redirected name leads to, for
// *at calls.
func (b *backing) openDir(rel string) (place, error) {
	if to, ok := b.away.find(rel); ok {
		return to.m.backing.openDirRaw(to.rel)
	}
	return b.openDirRaw(rel)
}

// openDirRaw is openDir whatever is redirected.
func (b *backing) openDirRaw(rel string) (place, error) {
	if rel == "" {
		return place{dirfd: b.fd}, nil
	}
	if len(rel) > maxPathBytes {
		return place{}, unix.ENAMETOOLONG
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath}
	at, own := b.fd, false
	for rel != "" {
		head := rel
		if len(rel) > pathChunk {
			cut := strings.LastIndexByte(rel[:pathChunk], '/')
			if cut < 0 {
				return place{}, unix.ENAMETOOLONG
			}
			head, rel = rel[:cut], rel[cut+1:]
		} else {
			rel = ""
		}
		fd, err := unix.Openat2(at, head, &how)
		if own {
			closeFD(at)
		}
		if err != nil {
			return place{}, err
		}
		at, own = fd, true
	}
	return place{dirfd: at, own: true}, nil
}

// locate opens the directory that holds rel, or what a redirected name leads to.
func (b *backing) locate(rel string) (place, error) {
	if to, ok := b.away.find(rel); ok {
		return to.m.backing.locateRaw(to.rel)
	}
	return b.locateRaw(rel)
}

// locateRaw is locate whatever is redirected.
func (b *backing) locateRaw(rel string) (place, error) {
	if rel == "" {
		return place{dirfd: b.fd}, nil
	}
	dir, name := splitPath(rel)
	p, err := b.openDirRaw(dir)
	p.name = name
	return p, err
}

// stat returns the attributes of the entry itself.
func (p place) stat(st *unix.Stat_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if p.name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return unix.Fstatat(p.dirfd, p.name, st, flags)
}

// open opens the entry itself, which must not be a symbolic link.
func (p place) open(flags int, mode uint32) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOCTTY
	if p.name == "" {
		return reopen(p.dirfd, flags)
	}
	return unix.Openat(p.dirfd, p.name, flags, mode)
}

// pin returns an O_PATH descriptor of the entry itself, whatever its type.
func (p place) pin() (int, error) {
	if p.name == "" {
		return unix.FcntlInt(uintptr(p.dirfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat(p.dirfd, p.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// procPath names an open file for calls that take only paths. It leads to that
// very file, also when it is an O_PATH descriptor. See proc(5), /proc/pid/fd.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func reopen(fd, flags int) (int, error) {
	return unix.Open(procPath(fd), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// closeFD closes a descriptor whose writes were reported when they were made.
func closeFD(fd int) { _ = unix.Close(fd) }

// errno turns an error of a system call into the number for the kernel.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(syscall.Errno); ok { //nolint:errorlint // x/sys returns bare numbers
		return e
	}
	return syscall.EIO
}
