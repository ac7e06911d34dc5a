package keep

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotKept says that what a file held before was not kept.
var ErrNotKept = errors.New("its old content was not kept")

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// tempPrefix starts the names of files that are not in place yet. What a killed
// process left under such a name is whole, and goes with the next rollback.
const tempPrefix = ".agentsh-new-"

// OpenRoot opens a workspace for the functions of this package. The caller
// closes it.
func OpenRoot(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return f, nil
}

// OpenBeneath opens the directory at rel below root, for *at calls; "" is root.
// Missing directories are made when make is set, for the owner of the one above.
func OpenBeneath(root *os.File, rel string, make bool) (int, error) {
	fd, err := unix.FcntlInt(root.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, err
	}
	if rel == "" {
		return fd, nil
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := openStep(fd, name, make)
		_ = unix.Close(fd) // opened with O_PATH
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: rel, Err: err}
		}
		fd = next
	}
	return fd, nil
}

func openStep(dir int, name string, make bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath}
	fd, err := unix.Openat2(dir, name, &how)
	if !make || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	var above unix.Stat_t
	if err := unix.Fstatat(dir, "", &above, unix.AT_EMPTY_PATH); err != nil {
		return -1, err
	}
	if err := unix.Mkdirat(dir, name, above.Mode&0o7777); err != nil {
		return -1, err
	}
	if err := chown(dir, name, above.Uid, above.Gid); err != nil {
		return -1, err
	}
	return unix.Openat2(dir, name, &how)
}

// chown gives an entry its owner where it is another.
func chown(dir int, name string, uid, gid uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Uid == uid && st.Gid == gid {
		return err
	}
	return unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
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
func (a attributes) set(dir int, name string) error {
	if err := chown(dir, name, a.uid, a.gid); err != nil {
		return err
	}
	if a.xattrs != nil {
		if err := setXattrs(dir, name, a.mode, *a.xattrs); err != nil {
			return err
		}
	}
	if err := unix.Fchmodat(dir, name, a.mode&0o7777, 0); err != nil {
		return err
	}
	return a.times(dir, name)
}

func (a attributes) times(dir int, name string) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, a.mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

// tempName is a name nothing in the directory has.
func tempName() string { return tempPrefix + rand.Text()[:12] }

// placeFile makes a regular file that is whole when its name appears. Without
// replace an existing name is an error, with it the old file is replaced in one
// step.
func placeFile(dir int, name string, a attributes, replace bool, fill func(*os.File) error) error {
	temp := tempName()
	fd, err := unix.Openat(dir, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	if err = errors.Join(fill(f), f.Close()); err == nil {
		err = a.set(dir, temp)
	}
	if err == nil {
		err = moveInto(dir, temp, dir, name, replace)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the failure is what the caller hears
	}
	return err
}

// moveInto renames an entry, over an old one only when replace is set.
func moveInto(from int, oldName string, to int, newName string, replace bool) error {
	if replace {
		return unix.Renameat(from, oldName, to, newName)
	}
	return unix.Renameat2(from, oldName, to, newName, unix.RENAME_NOREPLACE)
}

// copyContent copies a file from its start, shared where the filesystem can.
func copyContent(to, from *os.File) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	_, err := io.Copy(to, from)
	return err
}

// openAt opens a regular file for reading, never a symbolic link.
func openAt(dir int, name string) (*os.File, error) {
	if name == "" { // dir is the file
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(dir), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "file"), nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// split cuts a path into its directory, "" for none, and its name.
func split(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	return strings.TrimSuffix(dir, "/"), name
}
