package supervisor

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/cgroup"
)

// closeFD closes a descriptor of a process that is about to end.
func closeFD(fd int) { _ = unix.Close(fd) }

// fileSystem makes a file system that is attached nowhere, and returns its
// mount. See fsopen(2).
func fileSystem(kind string, options map[string]string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer closeFD(fs)
	for name, value := range options {
		if err := unix.FsconfigSetString(fs, name, value); err != nil {
			return 0, fmt.Errorf("option %s of %s: %w", name, kind, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, fmt.Errorf("create %s: %w", kind, err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return 0, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return mount, nil
}

// probeMountAPI does in its own mount namespace what a session's root is made
// by: a tmpfs with a read-only copy of the machine's tree in it.
func probeMountAPI() (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	root, err := fileSystem("tmpfs", map[string]string{"size": "65536"})
	if err != nil {
		return "", err
	}
	const byDescriptor = unix.MOVE_MOUNT_F_EMPTY_PATH
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", byDescriptor); err != nil {
		return "", fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Mkdirat(root, "tree", 0o755); err != nil {
		return "", err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/usr", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return "", fmt.Errorf("open_tree: %w", err)
	}
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	how, err := "mount_setattr", unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attributes)
	old := errors.Is(err, unix.ENOSYS) // before Linux 5.12: a mount gets its attributes once it is in its place
	if err != nil && !old {
		return "", fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", root, "tree", byDescriptor); err != nil {
		return "", fmt.Errorf("move_mount: %w", err)
	}
	if old {
		how = "mount"
		if err := unix.Mount("", fmt.Sprintf("/proc/self/fd/%d/tree", root), "",
			unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return "", fmt.Errorf("remount: %w", err)
		}
	}
	_, err = unix.Openat(root, "tree/.agentsh-probe", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	return "open_tree, " + how + ", move_mount, fsmount", mustFail("writing to a read-only mount", err, unix.EROFS)
}

// probeOverlay lays one directory over another.
func probeOverlay() (detail string, err error) {
	dir, err := os.MkdirTemp("", "agentsh-probe-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"upper", "lower"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return "", err
		}
	}
	mount, err := fileSystem("overlay", map[string]string{"lowerdir": dir + "/upper:" + dir + "/lower"})
	if err != nil {
		return "", err
	}
	return "", unix.Close(mount)
}

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

// tryCgroup makes a control group as sessions do, sets limits in it and removes
// it. It runs in the caller: a group is no part of a process.
func tryCgroup() (works string, err error) {
	limits := cgroup.Limits{MemoryBytes: 64 << 20, CPUPercent: 50, Pids: 64}
	group, unheld := cgroup.New("agentsh-probe-"+rand.Text(), limits.Kinds())
	defer func() { err = errors.Join(err, group.Close()) }()
	for kind, err := range group.Limit(limits) {
		if unheld[kind] == nil {
			unheld[kind] = err
		}
	}
	var names []string
	var problems []error
	for _, kind := range limits.Kinds() {
		if unheld[kind] == nil {
			names = append(names, kind.String())
		} else {
			problems = append(problems, fmt.Errorf("%s: %w", kind, unheld[kind]))
		}
	}
	return strings.Join(names, " "), errors.Join(problems...)
}
