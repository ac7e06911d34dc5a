package beneath

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrReplaced means that a name led to another file than before: another
// process wrote to the directory.
var ErrReplaced = errors.New("another process replaced it at the same time")

// Types of a file, as records name them.
const (
	TypeFile    = "file"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
	TypeFIFO    = "fifo"
	TypeSocket  = "socket"
	TypeOther   = "other" // a device; in a trash and in checkpoints of format 0 also a FIFO or a socket
)

// Inode identifies a file.
type Inode struct{ Dev, Ino uint64 }

// InodeOf returns the inode of a file from its status.
func InodeOf(st *unix.Stat_t) Inode { return Inode{st.Dev, st.Ino} }

// Entry is a file of any type. It is opened with O_PATH and through no symbolic
// link. Attributes are read and set through the descriptor, so a later change
// of the name has no effect. A symbolic link has only an owner and times.
type Entry struct {
	FD   int         // opened with O_PATH
	Stat unix.Stat_t // as it was when the entry was opened
}

// OpenEntry opens the file called name in dir. It opens a symbolic link itself.
// The caller closes the entry.
func OpenEntry(dir int, name string) (Entry, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve}
	fd, err := unix.Openat2(dir, name, &how)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{FD: fd}
	if err := unix.Fstat(fd, &e.Stat); err != nil {
		e.Close()
		return Entry{}, err
	}
	return e, nil
}

// OpenSame opens the file called name in dir if it has the given inode, else it
// returns [ErrReplaced].
func OpenSame(dir int, name string, was Inode) (Entry, error) {
	e, err := OpenEntry(dir, name)
	if err == nil && InodeOf(&e.Stat) != was {
		e.Close()
		return Entry{}, ErrReplaced
	}
	return e, err
}

// OpenMade opens a file that this process has just created. It returns
// [ErrReplaced] if type or owner differ: another process may have replaced it,
// and this process has more rights.
func OpenMade(dir int, name string, kind uint32) (Entry, error) {
	e, err := OpenEntry(dir, name)
	if err != nil {
		return e, err
	}
	if e.Stat.Mode&unix.S_IFMT != kind || int(e.Stat.Uid) != unix.Geteuid() {
		e.Close()
		return Entry{}, ErrReplaced
	}
	return e, nil
}

// MakeDir creates a directory of mode 0700 and opens it.
func MakeDir(dir int, name string) (Entry, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return Entry{}, err
	}
	return OpenMade(dir, name, unix.S_IFDIR)
}

// Close closes the descriptor.
func (e Entry) Close() { CloseFD(e.FD) }

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Named returns [ErrReplaced] if the name does not lead to the entry.
func (e Entry) Named(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if InodeOf(&st) != InodeOf(&e.Stat) {
		return ErrReplaced
	}
	return nil
}

// Attributes are the attributes of a file that a record stores.
type Attributes struct {
	Mode     uint32 // permission bits
	UID, GID uint32
	Mtime    unix.Timespec
	Xattrs   *[]Xattr // nil: left as they are
}

// Set sets the attributes of an entry, the owner first, because chown(2) clears
// bits of the mode. A symbolic link gives [ErrReplaced].
func (e Entry) Set(a Attributes) error {
	if e.Stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return ErrReplaced
	}
	if err := e.chown(a.UID, a.GID); err != nil {
		return err
	}
	if a.Xattrs != nil {
		if err := e.setXattrs(a.Mode, *a.Xattrs); err != nil {
			return err
		}
	}
	if err := e.chmod(a.Mode); err != nil {
		return err
	}
	return e.times(a)
}

// chown sets the owner if it differs.
func (e Entry) chown(uid, gid uint32) error {
	if e.Stat.Uid == uid && e.Stat.Gid == gid {
		return nil
	}
	return unix.Fchownat(e.FD, "", int(uid), int(gid), unix.AT_EMPTY_PATH)
}

// chmod uses /proc, because fchmod(2) refuses O_PATH descriptors and
// fchmodat2(2) needs Linux 6.6. The path leads to the open file itself. See
// proc_pid_fd(5).
func (e Entry) chmod(mode uint32) error { return unix.Chmod(procName(e.FD), mode&0o7777) }

func (e Entry) times(a Attributes) error {
	return unix.UtimesNanoAt(e.FD, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, a.Mtime}, unix.AT_EMPTY_PATH)
}

// CloseFD closes a descriptor. Nothing was written through it, so the error
// says nothing.
func CloseFD(fd int) { _ = unix.Close(fd) }
