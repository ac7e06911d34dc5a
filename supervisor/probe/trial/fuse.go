package trial

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
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
	return fmt.Sprintf("protocol %d.%d", d.major, d.minor), nil
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
