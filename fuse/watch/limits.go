package watch

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A session watches at most this part of what the user may watch, and never more than
// maxDirectories: the kernel keeps the inode of each in memory, about 1 KiB.
const (
	shareOfUser    = 8
	maxDirectories = 32 << 10
)

// Share returns the greatest number of directories that one session watches: an eighth
// of the user's limit.
func Share() int {
	least := maxDirectories
	for _, file := range []string{"/proc/sys/fs/fanotify/max_user_marks", "/proc/sys/fs/inotify/max_user_watches"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			least = min(least, n/shareOfUser)
		}
	}
	return least
}

// Watchable says by an error why the filesystem of the directory that fd is open at is not
// watched. nil: it is.
func Watchable(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	return watchable(&fs)
}

func watchable(fs *unix.Statfs_t) error {
	if !local(fs.Type) {
		return fmt.Errorf("filesystem of type %#x: others may change it unseen", fs.Type)
	}
	return nil
}

// local reports whether every change of a filesystem of this type goes through this
// kernel. The events of network filesystems, and of those served by another process or
// machine, are incomplete. An unknown type counts as such.
func local(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, unix.EXFAT_SUPER_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.REISERFS_SUPER_MAGIC,
		zfs, bcachefs, ntfs3, jfs:
		return true
	}
	return false
}

// Types that x/sys does not name.
const (
	zfs      = 0x2fc12fc1
	bcachefs = 0xca451a4e
	ntfs3    = 0x7366746e
	jfs      = 0x3153464a
)
