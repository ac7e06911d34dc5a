package vmimage

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// archive writes a cpio archive in the format newc, which kernels unpack at their start. See
// Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
type archive struct {
	to     io.Writer
	n      int64 // bytes written
	inode  int
	failed error
}

// Types of files, see stat(2), S_IFMT.
const (
	typeFile      = 0o100000
	typeDirectory = 0o040000
	typeDevice    = 0o020000
)

// align is the alignment of heads and contents, in bytes.
const align = 4

func (a *archive) write(p []byte) {
	if a.failed != nil {
		return
	}
	n, err := a.to.Write(p)
	a.n += int64(n)
	a.failed = err
}

func (a *archive) pad() {
	if over := a.n % align; over != 0 {
		a.write(make([]byte, align-over))
	}
}

// head begins an entry. All entries belong to root, and have no time: equal files make equal
// archives.
func (a *archive) head(name string, mode uint32, size int64, device [2]uint32) {
	a.inode++
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, device[0], device[1], len(name)+1, 0, name))
	a.pad()
}

func (a *archive) directory(name string, mode fs.FileMode) {
	a.head(name, typeDirectory|uint32(mode.Perm()), 0, [2]uint32{})
}

// device adds a character device.
func (a *archive) device(name string, mode fs.FileMode, major, minor uint32) {
	a.head(name, typeDevice|uint32(mode.Perm()), 0, [2]uint32{major, minor})
}

func (a *archive) data(name string, mode fs.FileMode, data []byte) {
	a.head(name, typeFile|uint32(mode.Perm()), int64(len(data)), [2]uint32{})
	a.write(data)
	a.pad()
}

// file adds a file of this machine.
func (a *archive) file(name string, mode fs.FileMode, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	a.head(name, typeFile|uint32(mode.Perm()), info.Size(), [2]uint32{})
	if a.failed != nil {
		return a.failed
	}
	n, err := io.CopyN(a.to, f, info.Size())
	a.n += n
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	a.pad()
	return a.failed
}

// close ends the archive. The kernel accepts a further one after it.
func (a *archive) close() error {
	const end = "TRAILER!!!"
	a.head(end, 0, 0, [2]uint32{})
	return a.failed
}
