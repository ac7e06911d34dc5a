package fuse

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
)

// folding finds case-insensitive directories of a mount.
type folding struct {
	access   *access
	repos    *repositories
	device   uint64   // device of the backing
	casefold bool     // single directories of the backing may be case-insensitive
	known    sync.Map // by device of a nested mount: whether it is case-insensitive
}

// foldingTypes are filesystems that are case-insensitive with usual mount options:
// vfat, exfat, ntfs, ntfs3, hfs, hfs+. See statfs(2).
var foldingTypes = map[int64]bool{0x4d44: true, 0x2011bab0: true, 0x5346544e: true, 0x7366746e: true, 0x4244: true, 0x482b: true}

// casefoldFlag is FS_CASEFOLD_FL, which ext4, f2fs and tmpfs set for single
// directories. See ioctl_iflags(2).
const casefoldFlag = 0x40000000

// KernelFolds reports whether the kernel supports case-insensitive directories on
// filesystems that are otherwise case-sensitive.
func KernelFolds() bool {
	for _, name := range []string{"/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/tmpfs"} {
		if _, err := os.Stat(name + "/features/casefold"); err == nil {
			return true
		}
	}
	_, err := os.Stat("/sys/fs")
	return err != nil // not known
}

// Folds reports whether a directory is case-insensitive. It reads the filesystem's own
// flags, then tries the existing names in another case. If the directory is empty, it
// creates a file for a moment.
func Folds(dir string) (bool, error) {
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	defer d.Close()
	if said, err := flagged(d); said || err != nil {
		return said, err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	for _, name := range names {
		if other := swapCase(name); other != name && !known[other] {
			return sameEntry(d, name, other)
		}
	}
	return triedFolding(d)
}

// flagged returns the case-insensitivity flag that the filesystem has for a directory.
func flagged(d *os.File) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &fs); err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	return foldingTypes[fs.Type] || err == nil && flags&casefoldFlag != 0, nil
}

// sameEntry reports whether two names refer to the same file.
func sameEntry(d *os.File, name, other string) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), other, &b, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	if err := unix.Fstatat(int(d.Fd()), name, &a, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	return sameFile(&a, &b), nil
}

// triedFolding creates a file and looks it up under another name. A directory in which
// no file can be created cannot have a file with two names.
func triedFolding(d *os.File) (bool, error) {
	name := fmt.Sprintf(".agentsh-case-%d", os.Getpid())
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false, nil
	}
	tree.CloseFD(fd)
	same, err := sameEntry(d, name, strings.ToUpper(name))
	return same, errors.Join(err, unix.Unlinkat(int(d.Fd()), name, 0))
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}

// folds reports whether a looked-up directory is case-insensitive and rules
// distinguish names in it by case. If that cannot be determined, the answer is true.
func (f *folding) folds(p tree.Entry, rel string, st *unix.Stat_t) bool {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev == f.device && !f.casefold {
		return false
	}
	return f.mayFold(p, rel, st) && (f.repos.on() || !f.access.rules.now().policy.Tree(f.access.files.inside(rel), policy.OpAll).Uniform)
}

func (f *folding) mayFold(p tree.Entry, rel string, st *unix.Stat_t) bool {
	fd, err := p.Open(unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return true
	}
	d := os.NewFile(uintptr(fd), rel)
	defer d.Close()
	folding, err := flagged(d)
	if err == nil && !folding && st.Dev != f.device {
		folding, err = f.deviceFolds(fd, st.Dev)
	}
	return folding || err != nil
}

// deviceFolds tests a filesystem that is mounted in the backing, once.
func (f *folding) deviceFolds(fd int, dev uint64) (bool, error) {
	if known, ok := f.known.Load(dev); ok {
		return known.(bool), nil
	}
	folding, err := Folds(tree.ProcPath(fd))
	if err == nil {
		f.known.Store(dev, folding)
	}
	return folding, err
}
