package keep

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrReplaced says that a name led to another file than before: something wrote
// to the directory at the same time.
var ErrReplaced = errors.New("another process replaced it at the same time")

// inode tells files apart.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{st.Dev, st.Ino} }

// entry is a file of any type, opened with O_PATH and through no symbolic link.
// Whatever its name leads to later, attributes are read and set by the
// descriptor. A symbolic link has an owner and times only.
type entry struct {
	fd int
	st unix.Stat_t // when it was opened
}

// openEntry opens what is called name in dir, a symbolic link itself.
func openEntry(dir int, name string) (entry, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath}
	fd, err := unix.Openat2(dir, name, &how)
	if err != nil {
		return entry{}, err
	}
	e := entry{fd: fd}
	if err := unix.Fstat(fd, &e.st); err != nil {
		e.close()
		return entry{}, err
	}
	return e, nil
}

// openSame opens what was looked at before, and nothing that came in its place.
func openSame(dir int, name string, was inode) (entry, error) {
	e, err := openEntry(dir, name)
	if err == nil && inodeOf(&e.st) != was {
		e.close()
		return entry{}, ErrReplaced
	}
	return e, err
}

// openMade opens what this process has just made. It must have the type, and the
// owner that new files of this process have: the privileges of this process are
// not spent on a file that somebody else put in its place.
func openMade(dir int, name string, kind uint32) (entry, error) {
	e, err := openEntry(dir, name)
	if err != nil {
		return e, err
	}
	if e.st.Mode&unix.S_IFMT != kind || int(e.st.Uid) != unix.Geteuid() {
		e.close()
		return entry{}, ErrReplaced
	}
	return e, nil
}

// makeDir makes a directory of mode 0700 and opens it.
func makeDir(dir int, name string) (entry, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return entry{}, err
	}
	return openMade(dir, name, unix.S_IFDIR)
}

func (e entry) close() { closeFD(e.fd) }

func (e entry) isDir() bool { return e.st.Mode&unix.S_IFMT == unix.S_IFDIR }

// named reports [ErrReplaced] when a name does not lead to the file.
func (e entry) named(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if inodeOf(&st) != inodeOf(&e.st) {
		return ErrReplaced
	}
	return nil
}

// attributes are what a file has beside its content.
type attributes struct {
	mode     uint32 // permission bits
	uid, gid uint32
	mtime    unix.Timespec
	xattrs   *[]Xattr // nil: left as they are
}

// set gives an entry that is no symbolic link its attributes, the owner first: a
// change of it takes bits of the mode away.
func (e entry) set(a attributes) error {
	if e.st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return ErrReplaced
	}
	if err := e.chown(a.uid, a.gid); err != nil {
		return err
	}
	if a.xattrs != nil {
		if err := e.setXattrs(a.mode, *a.xattrs); err != nil {
			return err
		}
	}
	if err := e.chmod(a.mode); err != nil {
		return err
	}
	return e.times(a)
}

// chown gives it its owner where it is another.
func (e entry) chown(uid, gid uint32) error {
	if e.st.Uid == uid && e.st.Gid == gid {
		return nil
	}
	return unix.Fchownat(e.fd, "", int(uid), int(gid), unix.AT_EMPTY_PATH)
}

// chmod goes by /proc: fchmod(2) takes no descriptor of O_PATH, and fchmodat2(2)
// is Linux 6.6. The path leads to the open file itself, see proc_pid_fd(5).
func (e entry) chmod(mode uint32) error { return unix.Chmod(procName(e.fd), mode&0o7777) }

func (e entry) times(a attributes) error {
	return unix.UtimesNanoAt(e.fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, a.mtime}, unix.AT_EMPTY_PATH)
}
