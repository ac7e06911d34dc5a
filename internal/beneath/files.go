// Package beneath reads and writes files below the descriptor of a directory that
// untrusted processes write to. No function follows a symbolic link, and a file
// appears whole under its name. It is safe for concurrent use.
package beneath

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

// resolve refuses lookups that leave the directory or pass a link. See
// openat2(2).
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// TempPrefix starts the names of temporary files. A file that a killed process
// left under such a name is complete; the next rollback removes it.
const TempPrefix = ".agentsh-new-"

// OpenRoot opens a directory for the functions of this package. The caller
// closes it.
func OpenRoot(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return f, nil
}

// OpenDir opens the directory at rel below root, for *at calls; "" is root.
// With make it creates missing directories with the owner of their parent. The
// caller closes the descriptor.
func OpenDir(root *os.File, rel string, make bool) (int, error) {
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

// OpenChild opens a directory by its name in dir, for *at calls.
func OpenChild(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve}
	return unix.Openat2(dir, name, &how)
}

func openStep(dir int, name string, make bool) (int, error) {
	fd, err := OpenChild(dir, name)
	if !make || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	var above unix.Stat_t
	if err := unix.Fstatat(dir, "", &above, unix.AT_EMPTY_PATH); err != nil {
		return -1, err
	}
	made, err := MakeDir(dir, name)
	if err != nil {
		return -1, err
	}
	defer made.Close()
	if err := made.Set(Attributes{Mode: above.Mode, UID: above.Uid, GID: above.Gid, Mtime: unix.Timespec{Nsec: unix.UTIME_NOW}}); err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(made.FD), unix.F_DUPFD_CLOEXEC, 3)
}

// TempName returns a name that no file of the directory has.
func TempName() string { return TempPrefix + rand.Text()[:12] }

// CreateFile creates a regular file. The file is complete when its name appears.
// Without replace an existing name is an error; with replace the old file is
// replaced by a rename. [ErrReplaced] is in the chain of the error if the name
// then leads to another file.
func CreateFile(dir int, name string, a Attributes, replace bool, fill func(*os.File) error) (Inode, error) {
	temp := TempName()
	fd, err := unix.Openat(dir, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return Inode{}, err
	}
	f := os.NewFile(uintptr(fd), name)
	err = fill(f)
	made := Entry{FD: fd}
	if err == nil {
		err = unix.Fstat(fd, &made.Stat)
	}
	if err == nil {
		err = made.Set(a)
	}
	if err == nil {
		err = Rename(dir, temp, name, replace)
	}
	if err == nil {
		err = made.Named(dir, name)
	} else {
		_ = unix.Unlinkat(dir, temp, 0) // the caller gets the first error
	}
	return InodeOf(&made.Stat), errors.Join(err, f.Close())
}

// CreateLink creates a symbolic link in the way of [CreateFile].
func CreateLink(dir int, name string, target []byte, a Attributes, replace bool) error {
	temp := TempName()
	if err := unix.Symlinkat(string(target), dir, temp); err != nil {
		return err
	}
	made, err := OpenMade(dir, temp, unix.S_IFLNK)
	if err == nil {
		defer made.Close()
		err = errors.Join(made.chown(a.UID, a.GID), made.times(a))
	}
	if err == nil {
		err = Rename(dir, temp, name, replace)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the caller gets the first error
		return err
	}
	return made.Named(dir, name)
}

// Rename renames a file within a directory. Without replace an existing name is
// an error.
func Rename(dir int, oldName, newName string, replace bool) error {
	if replace {
		return unix.Renameat(dir, oldName, dir, newName)
	}
	return unix.Renameat2(dir, oldName, dir, newName, unix.RENAME_NOREPLACE)
}

// OpenFile opens a regular file for reading. It refuses a symbolic link. With
// an empty name dir itself is the file.
func OpenFile(dir int, name string) (*os.File, error) {
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

// Split splits a relative path into its directory and its name. The directory
// is "" for a file of the root.
func Split(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	return strings.TrimSuffix(dir, "/"), name
}
