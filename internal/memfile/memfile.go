// Package memfile makes files in memory that have no name.
package memfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// New makes an empty file, of flags besides MFD_CLOEXEC. A filter may refuse memfd_create(2), as that of OpenShell 0.0.x does. The
// file is then one that never had a name, and has no seals.
func New(name string, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_CLOEXEC)
	if err == nil {
		return os.NewFile(uintptr(fd), name), nil
	}
	err = fmt.Errorf("memory file: %w", err)
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOSYS) {
		return nil, err
	}
	f, failed := unnamed(name)
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	return f, nil
}

// unnamed makes a file that no directory has.
func unnamed(name string) (*os.File, error) {
	var failed error
	for _, dir := range []string{"/dev/shm", os.TempDir(), "/var/tmp"} { // the first is in memory, the others may be on a disk
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		failed = errors.Join(failed, fmt.Errorf("file without a name in %s: %w", dir, err))
	}
	return nil, failed
}

// Seal keeps a file as it is. One that cannot have seals stays without.
func Seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // a file of a disk, and another one of a tmpfs
		return nil
	}
	return err
}
