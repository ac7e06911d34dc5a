package keep

import (
	"crypto/rand"
	"errors"
	"fmt"
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
	made, err := makeDir(dir, name)
	if err != nil {
		return -1, err
	}
	defer made.close()
	if err := made.set(attributes{mode: above.Mode, uid: above.Uid, gid: above.Gid, mtime: unix.Timespec{Nsec: unix.UTIME_NOW}}); err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(made.fd), unix.F_DUPFD_CLOEXEC, 3)
}

// tempName is a name nothing in the directory has.
func tempName() string { return tempPrefix + rand.Text()[:12] }

// placeFile makes a regular file that is whole when its name appears. Without
// replace an existing name is an error, with it the old file is replaced in one
// step. [ErrReplaced] is in the chain of the error when the name then leads to
// another file.
func placeFile(dir int, name string, a attributes, replace bool, fill func(*os.File) error) (inode, error) {
	temp := tempName()
	fd, err := unix.Openat(dir, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return inode{}, err
	}
	f := os.NewFile(uintptr(fd), name)
	err = fill(f)
	made := entry{fd: fd}
	if err == nil {
		err = unix.Fstat(fd, &made.st)
	}
	if err == nil {
		err = made.set(a)
	}
	if err == nil {
		err = moveInto(dir, temp, name, replace)
	}
	if err == nil {
		err = made.named(dir, name)
	} else {
		_ = unix.Unlinkat(dir, temp, 0) // the failure is what the caller hears
	}
	return inodeOf(&made.st), errors.Join(err, f.Close())
}

// placeLink makes a symbolic link, as placeFile makes a file.
func placeLink(dir int, name string, target []byte, a attributes, replace bool) error {
	temp := tempName()
	if err := unix.Symlinkat(string(target), dir, temp); err != nil {
		return err
	}
	made, err := openMade(dir, temp, unix.S_IFLNK)
	if err == nil {
		defer made.close()
		err = errors.Join(made.chown(a.uid, a.gid), made.times(a))
	}
	if err == nil {
		err = moveInto(dir, temp, name, replace)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the failure is what the caller hears
		return err
	}
	return made.named(dir, name)
}

// moveInto renames an entry of a directory, over an old one only when replace is
// set.
func moveInto(dir int, oldName, newName string, replace bool) error {
	if replace {
		return unix.Renameat(dir, oldName, dir, newName)
	}
	return unix.Renameat2(dir, oldName, dir, newName, unix.RENAME_NOREPLACE)
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
