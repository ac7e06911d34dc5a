package trial

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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
		set := func() error { return unix.FsconfigSetString(fs, name, value) }
		if value == "" {
			set = func() error { return unix.FsconfigSetFlag(fs, name) }
		}
		if err := set(); err != nil {
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
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("move_mount: %w", err)
	}
	how, err := bindReadOnly("/usr", root)
	if errors.Is(err, unix.EACCES) { // gVisor looks at the permissions first
		if err := unix.Mkdirat(root, "own", 0o755); err != nil {
			return "", err
		}
		how, err = bindReadOnly(fmt.Sprintf("/proc/self/fd/%d/own", root), root)
	}
	return "open_tree, " + how + ", move_mount, fsmount", err
}

// bindReadOnly mounts a directory in root, and proves that it cannot be written. how is the
// call that made it so.
func bindReadOnly(source string, root int) (how string, err error) {
	name := strings.ReplaceAll(source, "/", "-")
	if err := unix.Mkdirat(root, name, 0o755); err != nil {
		return "", err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return "", fmt.Errorf("open_tree: %w", err)
	}
	defer closeFD(tree)
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	how, err = "mount_setattr", unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attributes)
	old := errors.Is(err, unix.ENOSYS) // before Linux 5.12: a mount gets its attributes once it is in its place
	if err != nil && !old {
		return "", fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", root, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("move_mount: %w", err)
	}
	if old {
		how = "mount"
		if err := unix.Mount("", fmt.Sprintf("/proc/self/fd/%d/%s", root, name), "",
			unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return "", fmt.Errorf("remount: %w", err)
		}
	}
	_, err = unix.Openat(root, name+"/.agentsh-probe", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	return how, MustFail("writing to a read-only mount", err, unix.EROFS)
}

// probeNewRoot makes a new tmpfs the root directory, as a session does.
func probeNewRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root, err := fileSystem("tmpfs", map[string]string{"size": "65536"})
	if err != nil {
		return err
	}
	defer closeFD(root)
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return nil
}

// probePrivateProc mounts a procfs, which the kernel refuses in a user namespace
// where the one that is there is covered in parts.
func probePrivateProc() error {
	mount, err := fileSystem("proc", map[string]string{"hidepid": "2"})
	if err != nil {
		return err
	}
	return unix.Close(mount)
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
