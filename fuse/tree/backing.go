package tree

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of one mount.
const (
	maxFormerNames = 64   // former names kept for a hard linked file
	pathChunk      = 4000 // longest path for one openat2, below PATH_MAX
)

// Backing reaches the files of a governed directory by path. It resolves every path
// beneath its descriptor and follows no symbolic link, so a link that a command made
// cannot lead the server out of the directory.
type Backing struct {
	FD  int   // O_PATH descriptor of the directory or file
	Dir bool  // false: the backing is one regular file
	FS  int64 // type of its filesystem, see statfs(2)
}

// Entry is a name in an open directory: the argument pair of the *at calls.
type Entry struct {
	DirFD int
	Name  string // empty: the file that DirFD is open at
	owned bool   // Close closes DirFD
}

// OwnedEntry returns the directory that fd is open at. Close closes fd.
func OwnedEntry(fd int) Entry { return Entry{DirFD: fd, owned: true} }

// Close closes the directory if the entry owns its descriptor.
func (e Entry) Close() {
	if e.owned {
		CloseFD(e.DirFD)
	}
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// OpenDir opens the directory at rel for *at calls. The caller closes the entry.
func (b *Backing) OpenDir(rel string) (Entry, error) {
	if rel == "" {
		return Entry{DirFD: b.FD}, nil
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath}
	at, owned := b.FD, false
	for rel != "" {
		head := rel
		if len(rel) > pathChunk {
			cut := strings.LastIndexByte(rel[:pathChunk], '/')
			if cut < 0 {
				return Entry{}, unix.ENAMETOOLONG
			}
			head, rel = rel[:cut], rel[cut+1:]
		} else {
			rel = ""
		}
		fd, err := unix.Openat2(at, head, &how)
		if owned {
			CloseFD(at)
		}
		if err != nil {
			return Entry{}, err
		}
		at, owned = fd, true
	}
	return Entry{DirFD: at, owned: true}, nil
}

// Locate opens the directory that contains rel. The caller closes the entry.
func (b *Backing) Locate(rel string) (Entry, error) {
	if rel == "" {
		return Entry{DirFD: b.FD}, nil
	}
	dir, name := Split(rel)
	e, err := b.OpenDir(dir)
	e.Name = name
	return e, err
}

// OpenFile opens the file at rel itself, which must not be a symbolic link.
func (b *Backing) OpenFile(rel string, flags int) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOCTTY
	if rel == "" || len(rel) > pathChunk {
		p, err := b.Locate(rel)
		if err != nil {
			return -1, err
		}
		defer p.Close()
		return p.Open(flags, 0)
	}
	return unix.Openat2(b.FD, rel, &unix.OpenHow{Flags: uint64(flags), Resolve: beneath})
}

// Absent reports whether an error of a system call by path says that the path does not
// lead to a file: an element is missing, or is a file or a symbolic link.
func Absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Stat returns the attributes of the entry itself; it follows no link.
func (e Entry) Stat(st *unix.Stat_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if e.Name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return unix.Fstatat(e.DirFD, e.Name, st, flags)
}

// Open opens the entry itself, which must not be a symbolic link.
func (e Entry) Open(flags int, mode uint32) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOCTTY
	if e.Name == "" {
		return Reopen(e.DirFD, flags)
	}
	return unix.Openat(e.DirFD, e.Name, flags, mode)
}

// Pin returns an O_PATH descriptor of the entry itself, whatever its type.
func (e Entry) Pin() (int, error) {
	if e.Name == "" {
		return unix.FcntlInt(uintptr(e.DirFD), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat(e.DirFD, e.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// PinLastName returns a descriptor of an entry whose only name is about to be removed.
// It returns 0 if the entry has other names. [Tree.Unlink] takes the descriptor over.
func (e Entry) PinLastName(st *unix.Stat_t) (int, error) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, nil
	}
	return e.Pin()
}

// ProcPath returns a path to an open file for calls that accept only paths. The path
// refers to that very file, also if the descriptor is O_PATH. See proc(5),
// /proc/pid/fd.
func ProcPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Reopen opens the file of a descriptor again, with other flags.
func Reopen(fd, flags int) (int, error) {
	return unix.Open(ProcPath(fd), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// CloseFD closes a descriptor. The writes themselves have reported their errors.
func CloseFD(fd int) { _ = unix.Close(fd) }
