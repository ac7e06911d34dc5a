package trial

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fuseDevice is a FUSE mount, attached nowhere, whose kernel side waits for the
// answer to its first request.
type fuseDevice struct {
	device       int // not an os.File: the runtime would poll a device that is not mounted yet, and believe its error
	mount        int
	unique       uint64
	major, minor uint32
	flags        uint64
}

// mountFUSE mounts and reads what the kernel offers. See fuse(4) and
// linux/fuse.h.
func mountFUSE() (*fuseDevice, error) {
	f, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	mount, err := fileSystem("fuse", map[string]string{
		"fd": strconv.Itoa(f), "rootmode": "40000",
		"user_id": strconv.Itoa(os.Geteuid()), "group_id": strconv.Itoa(os.Getegid()), "default_permissions": "",
	})
	if err != nil {
		closeFD(f)
		return nil, err
	}
	buf := make([]byte, 256<<10) // the kernel wants room for its largest request
	n, err := unix.Read(f, buf)
	const header, init = 40, 26 // size of fuse_in_header, FUSE_INIT
	if err != nil || n < header+16 || binary.NativeEndian.Uint32(buf[4:]) != init {
		closeFD(f)
		return nil, errors.Join(fmt.Errorf("first request of the kernel: %d bytes", n), err, unix.Close(mount))
	}
	ne := binary.NativeEndian
	d := &fuseDevice{device: f, mount: mount, unique: ne.Uint64(buf[8:]), major: ne.Uint32(buf[header:]), minor: ne.Uint32(buf[header+4:])}
	d.flags = uint64(ne.Uint32(buf[header+12:]))
	if n >= header+20 {
		d.flags |= uint64(ne.Uint32(buf[header+16:])) << 32
	}
	return d, nil
}

func (d *fuseDevice) close() {
	closeFD(d.device) // aborts the connection
	closeFD(d.mount)
}

func probeFUSE() (string, error) {
	d, err := mountFUSE()
	if err != nil {
		return "", err
	}
	defer d.close()
	err = d.within(func() error {
		var st unix.Stat_t
		err := unix.Fstatat(d.mount, "missing", &st, unix.AT_SYMLINK_NOFOLLOW)
		return MustFail("looking at a file that is missing", err, unix.ENOENT)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("protocol %d.%d", d.major, d.minor), nil
}

// probeMapping maps a file of a mount, as programs are executed and git reads its files.
func probeMapping() (string, error) {
	d, err := mountFUSE()
	if err != nil {
		return "", err
	}
	defer d.close()
	return "", d.within(func() error {
		file, err := unix.Openat(d.mount, servedName, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a file: %w", err)
		}
		defer closeFD(file)
		mapped, err := unix.Mmap(file, 0, servedSize, unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return fmt.Errorf("map a file: %w", err)
		}
		return unix.Munmap(mapped)
	})
}

// within serves the mount while use uses it.
func (d *fuseDevice) within(use func() error) error {
	if err := d.answerInit(0); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- use() }() // ends with its answers, or with the device
	go d.serve()
	select {
	case err := <-done:
		return err
	case <-time.After(watchTimeout):
		return errors.New("the kernel asks for nothing, or does not take the answers")
	}
}

// The one file of the mount.
const (
	servedName = "file"
	servedNode = 2
	servedSize = 1
)

// serve answers requests about a root directory with one file until the device is closed.
func (d *fuseDevice) serve() {
	const lookup, getAttr, open = 1, 3, 14 // FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN
	const header, opened = 40, 16          // sizes of fuse_in_header, fuse_open_out
	ne := binary.NativeEndian
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(d.device, buf)
		if err != nil || n < header {
			return
		}
		var body []byte
		failure := -int32(unix.ENOSYS)
		switch ne.Uint32(buf[4:]) {
		case lookup:
			failure = -int32(unix.ENOENT)
			if string(buf[header:n]) == servedName+"\x00" {
				body, failure = make([]byte, 40), 0 // fuse_entry_out
				ne.PutUint64(body, servedNode)
				body = append(body, attributes(servedNode)...)
			}
		case getAttr:
			body, failure = append(make([]byte, 16), attributes(ne.Uint64(buf[16:]))...), 0 // fuse_attr_out
		case open:
			body, failure = make([]byte, opened), 0
		}
		out := make([]byte, 16, 16+len(body)) // fuse_out_header
		ne.PutUint32(out, uint32(16+len(body)))
		ne.PutUint32(out[4:], uint32(failure))
		copy(out[8:], buf[8:16])
		if _, err := unix.Write(d.device, append(out, body...)); err != nil {
			return
		}
	}
}

// attributes are the fuse_attr of a node.
func attributes(node uint64) []byte {
	ne := binary.NativeEndian
	attr := make([]byte, 88)
	mode, links := uint32(unix.S_IFDIR|0o755), uint32(2)
	if node == servedNode {
		mode, links = unix.S_IFREG|0o644, 1
		ne.PutUint64(attr[8:], servedSize)
	}
	ne.PutUint64(attr, node)
	ne.PutUint32(attr[60:], mode)
	ne.PutUint32(attr[64:], links)
	ne.PutUint32(attr[68:], uint32(os.Geteuid()))
	ne.PutUint32(attr[72:], uint32(os.Getegid()))
	return attr
}

// Of linux/fuse.h.
const (
	fuseInitExt     = 1 << 30
	fusePassthrough = 1 << 37

	ioctlBackingOpen = 0x4010e501 // FUSE_DEV_IOC_BACKING_OPEN
)

// probePassthrough has the kernel take a file that it then reads and writes
// itself.
func probePassthrough() (string, error) {
	d, err := mountFUSE()
	if err != nil {
		return "", err
	}
	defer d.close()
	if d.flags&fusePassthrough == 0 {
		return "", errors.New("the kernel does not offer it (Linux 6.9 does)")
	}
	if err := d.answerInit(fusePassthrough | fuseInitExt); err != nil {
		return "", err
	}
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer file.Close()
	backing := struct {
		fd      int32
		flags   uint32
		padding uint64
	}{fd: int32(file.Fd())}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.device), ioctlBackingOpen, uintptr(unsafe.Pointer(&backing))); errno != 0 {
		return "", fmt.Errorf("FUSE_DEV_IOC_BACKING_OPEN: %w", errno)
	}
	return "", nil
}

// answerInit answers the kernel's first request with flags taken from its offer.
func (d *fuseDevice) answerInit(flags uint64) error {
	const header, body = 16, 64 // sizes of fuse_out_header and fuse_init_out
	b := make([]byte, header+body)
	ne := binary.NativeEndian
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint64(b[8:], d.unique)
	out := b[header:]
	ne.PutUint32(out, d.major)
	ne.PutUint32(out[4:], d.minor)
	ne.PutUint32(out[12:], uint32(flags))
	ne.PutUint32(out[20:], 4096) // largest write
	ne.PutUint32(out[24:], 1)    // time granularity, nanoseconds
	ne.PutUint32(out[32:], uint32(flags>>32))
	ne.PutUint32(out[36:], 1) // stacked file systems below
	if _, err := unix.Write(d.device, b); err != nil {
		return fmt.Errorf("answer the kernel's first request: %w", err)
	}
	return nil
}
