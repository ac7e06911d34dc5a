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
		"user_id": strconv.Itoa(os.Geteuid()), "group_id": strconv.Itoa(os.Getegid()),
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
	if err := d.lookMissing(); err != nil {
		return "", err
	}
	return fmt.Sprintf("protocol %d.%d", d.major, d.minor), nil
}

// lookMissing looks for a name that the server says is missing, as a file server does, so
// that the kernel remembers it.
func (d *fuseDevice) lookMissing() error {
	if err := d.answerInit(0); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { // ends with its answer, or with the device
		var st unix.Stat_t
		done <- unix.Fstatat(d.mount, "missing", &st, unix.AT_SYMLINK_NOFOLLOW)
	}()
	go d.serveEmpty()
	select {
	case err := <-done:
		if err = MustFail("looking at a file that is missing", err, unix.ENOENT); err != nil {
			return fmt.Errorf("the kernel does not know negative entries: %w", err)
		}
		return nil
	case <-time.After(watchTimeout):
		return errors.New("the kernel asks for nothing that answers a lookup")
	}
}

// serveEmpty answers requests about an empty root directory until the device is closed.
func (d *fuseDevice) serveEmpty() {
	const (
		lookup, getAttr    = 1, 3    // FUSE_LOOKUP, FUSE_GETATTR
		entrySize, attrEnd = 128, 16 // of fuse_entry_out; where the attributes begin in fuse_attr_out
		attrSize           = 88
	)
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(d.device, buf)
		if err != nil || n < 40 {
			return
		}
		var body []byte
		failure := -int32(unix.ENOSYS)
		switch binary.NativeEndian.Uint32(buf[4:]) {
		case lookup:
			body, failure = make([]byte, entrySize), 0 // node 0 is missing
			binary.NativeEndian.PutUint64(body[16:], 1)
		case getAttr:
			body, failure = make([]byte, attrEnd+attrSize), 0
			attr := body[attrEnd:]
			binary.NativeEndian.PutUint64(attr, 1)
			binary.NativeEndian.PutUint32(attr[60:], unix.S_IFDIR|0o755)
			binary.NativeEndian.PutUint32(attr[64:], 2)
			binary.NativeEndian.PutUint32(attr[68:], uint32(os.Geteuid()))
			binary.NativeEndian.PutUint32(attr[72:], uint32(os.Getegid()))
		}
		out := make([]byte, 16, 16+len(body))
		binary.NativeEndian.PutUint32(out, uint32(16+len(body)))
		binary.NativeEndian.PutUint32(out[4:], uint32(failure))
		copy(out[8:], buf[8:16])
		if _, err := unix.Write(d.device, append(out, body...)); err != nil {
			return
		}
	}
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
