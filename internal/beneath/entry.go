package beneath

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrReplaced says that a name led to another file than before: something wrote
// to the directory at the same time.
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

func InodeOf(st *unix.Stat_t) Inode { return Inode{st.Dev, st.Ino} }

// entry is a file of any type, opened with O_PATH and through no symbolic link.
// Whatever its name leads to later, Attributes are read and set by the
// descriptor. A symbolic link has an owner and times only.
type Entry struct {
	FD   int         // opened with O_PATH
	Stat unix.Stat_t // as it was when the entry was opened
}

// OpenEntry opens what is called name in dir, a symbolic link itself.
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

// OpenSame opens what was looked at before, and nothing that came in its place.
func OpenSame(dir int, name string, was Inode) (Entry, error) {
	e, err := OpenEntry(dir, name)
	if err == nil && InodeOf(&e.Stat) != was {
		e.Close()
		return Entry{}, ErrReplaced
	}
	return e, err
}

// OpenMade opens what this process has just made. It must have the type, and the
// owner that new files of this process have: the privileges of this process are
// not spent on a file that somebody else put in its place.
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

// MakeDir makes a directory of mode 0700 and opens it.
func MakeDir(dir int, name string) (Entry, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return Entry{}, err
	}
	return OpenMade(dir, name, unix.S_IFDIR)
}

func (e Entry) Close() { CloseFD(e.FD) }

func (e Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// named reports [ErrReplaced] when a name does not lead to the file.
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

// Attributes are what a file has beside its content.
type Attributes struct {
	Mode     uint32 // permission bits
	UID, GID uint32
	Mtime    unix.Timespec
	Xattrs   *[]Xattr // nil: left as they are
}

// set gives an entry that is no symbolic link its Attributes, the owner first: a
// change of it takes bits of the mode away.
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

// chown gives it its owner where it is another.
func (e Entry) chown(uid, gid uint32) error {
	if e.Stat.Uid == uid && e.Stat.Gid == gid {
		return nil
	}
	return unix.Fchownat(e.FD, "", int(uid), int(gid), unix.AT_EMPTY_PATH)
}

// chmod goes by /proc: fchmod(2) takes no descriptor of O_PATH, and fchmodat2(2)
// is Linux 6.6. The path leads to the open file itself, see proc_pid_fd(5).
func (e Entry) chmod(mode uint32) error { return unix.Chmod(procName(e.FD), mode&0o7777) }

func (e Entry) times(a Attributes) error {
	return unix.UtimesNanoAt(e.FD, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, a.Mtime}, unix.AT_EMPTY_PATH)
}

// CloseFD closes a descriptor that nothing was written through.
func CloseFD(fd int) { _ = unix.Close(fd) }
