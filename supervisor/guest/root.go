package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/fsmagic"
)

// Mount points of this process while it enters the root.
const (
	newRoot  = "/run/agentsh/root"
	rootDisk = "/run/agentsh/disk"  // the root disk, read-only
	changes  = "/run/agentsh/files" // the disk for changed files
)

// enterRoot makes the root that commands see, and enters it. The initramfs cannot be one: no
// process can leave it by pivot_root(2), and sessions do that.
func (m *machine) enterRoot() error {
	for _, dir := range []string{newRoot, rootDisk, changes} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := m.mountChanges(); err != nil {
		return err
	}
	if m.Root == "" {
		if err := makeBare(); err != nil {
			return err
		}
		if err := unix.Mount("/", newRoot, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the initramfs: %w", err)
		}
	} else if err := m.mountRoot(); err != nil {
		return err
	}
	for from, at := range map[string]string{"state": stateDir, "tmp": "/tmp"} {
		if err := bind(filepath.Join(changes, from), newRoot+at); err != nil {
			return err
		}
	}
	for _, at := range []string{"/proc", "/sys", "/dev"} {
		if err := moveInto(at); err != nil {
			return err
		}
	}
	return switchRoot()
}

// mountChanges mounts what has the files that change: a disk, or memory.
func (m *machine) mountChanges() error {
	if m.Disk == "" {
		if err := unix.Mount("tmpfs", changes, "tmpfs", noGain, "mode=0700,size=100%"); err != nil {
			return fmt.Errorf("mount memory for changed files: %w", err)
		}
	} else {
		kind, err := waitDisk(m.Disk)
		if err == nil {
			err = unix.Mount(m.Disk, changes, kind, noGain|unix.MS_NOATIME, mountOptions(kind))
		}
		if err != nil {
			return fmt.Errorf("mount the disk for changed files: %w", err)
		}
	}
	for dir, mode := range map[string]os.FileMode{"upper": 0o755, "work": 0o700, "state": 0o700, "tmp": 0o777 | os.ModeSticky} {
		if err := os.Mkdir(filepath.Join(changes, dir), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(changes, dir), mode); err != nil {
			return err
		}
	}
	return nil
}

// mountOptions are those for a kind of file system. The disk is new each time: nothing has to
// be prepared for later.
func mountOptions(kind string) string {
	if kind == "ext4" {
		return "noinit_itable,nobarrier"
	}
	return ""
}

// mountRoot mounts the root disk, and what changes above it.
func (m *machine) mountRoot() error {
	kind, err := waitDisk(m.Root)
	if err == nil {
		err = unix.Mount(m.Root, rootDisk, kind, unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, "")
	}
	if err != nil {
		return fmt.Errorf("mount the root disk: %w", err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", rootDisk, filepath.Join(changes, "upper"), filepath.Join(changes, "work"))
	if err := unix.Mount("overlay", newRoot, "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount the root: %w: the kernel needs overlayfs", err)
	}
	return nil
}

// diskWait is the time for a disk to appear.
const diskWait = 10 * time.Second

// waitDisk waits for a disk and returns the kind of its file system.
func waitDisk(name string) (string, error) {
	limit := time.Now().Add(diskWait)
	for look := time.NewTicker(10 * time.Millisecond); ; <-look.C {
		f, err := os.Open(name)
		if err == nil {
			defer f.Close()
			kind, err := fsmagic.Of(f)
			if err != nil {
				return "", fmt.Errorf("%s: %w", name, err)
			}
			return kind, nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENXIO) || time.Now().After(limit) {
			return "", fmt.Errorf("%w: the kernel needs virtio_blk, and virtio_pci or virtio_mmio", err)
		}
	}
}

// stateDir is the state directory of root, see [layout.FindState]. It is not in an overlay,
// whose files cannot be passed through to the kernel.
const stateDir = "/var/lib/agentsh"

func bind(from, at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", strings.TrimPrefix(at, newRoot), err)
	}
	return nil
}

// moveInto moves a mount of the initramfs into the new root.
func moveInto(at string) error {
	if err := os.MkdirAll(newRoot+at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(at, newRoot+at, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s: %w", at, err)
	}
	return nil
}

// switchRoot makes the new root that of this process, which has no other tasks yet that could
// have another one. /run is mounted anew: the old one has the new root.
func switchRoot() error {
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := before[len(before)-1].make(); err != nil {
		return err
	}
	return os.Mkdir(ownDir, 0o700)
}

// showProgram makes this program a file of the new root: sessions mount it.
func showProgram(self *os.File) error {
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), program, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", program, err)
	}
	return nil
}

// bare are the directories and files of an initramfs that is the root.
var (
	bareDirs  = []string{"/etc", "/root", "/home", "/usr/bin", "/usr/lib", "/var/lib", "/var/tmp", "/tmp", "/mnt"}
	bareFiles = map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":  "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n",
	}
)

// makeBare completes an initramfs that is the root.
func makeBare() error {
	for _, dir := range bareDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod("/var/tmp", 0o1777); err != nil {
		return err
	}
	for name, text := range bareFiles {
		if _, err := os.Lstat(name); err == nil {
			continue
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
