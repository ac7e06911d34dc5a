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

// folding finds directories of a mount in which names are without case.
type folding struct {
	access   *access
	repos    *repositories
	device   uint64   // device of the backing
	casefold bool     // single directories of the backing may be without case
	known    sync.Map // by other device: whether it is without case
}

// foldingTypes are filesystems whose names are without case wherever they are
// mounted as usual: vfat, exfat, ntfs, ntfs3, hfs, hfs+. See statfs(2).
var foldingTypes = map[int64]bool{0x4d44: true, 0x2011bab0: true, 0x5346544e: true, 0x7366746e: true, 0x4244: true, 0x482b: true}

// casefoldFlag is FS_CASEFOLD_FL, which ext4, f2fs and tmpfs keep for each
// directory. See ioctl_iflags(2).
const casefoldFlag = 0x40000000

// KernelFolds reports whether the kernel can have directories without case on
// filesystems that are with case elsewhere.
func KernelFolds() bool {
	for _, name := range []string{"/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/tmpfs"} {
		if _, err := os.Stat(name + "/features/casefold"); err == nil {
			return true
		}
	}
	_, err := os.Stat("/sys/fs")
	return err != nil // not known
}

// Folds reports whether a directory takes names of another case for its files.
// It looks at what the filesystem says, then at the names that are there; if there
// are none it makes a file for a moment.
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

// flagged is what the filesystem says of a directory.
func flagged(d *os.File) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &fs); err != nil {
		return false, fmt.Errorf("look for the case of names: %w", err)
	}
	flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	return foldingTypes[fs.Type] || err == nil && flags&casefoldFlag != 0, nil
}

// sameEntry reports whether two names lead to one file.
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

// triedFolding makes a file and looks for it under another name. Where nothing
// can be made there is nothing that could have two names.
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

// folds reports whether a directory that the kernel looked up folds names that
// rules differ about. What cannot be found out counts as such.
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

// deviceFolds tries a filesystem that is mounted in the backing, once.
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
