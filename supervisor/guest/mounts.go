package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a file system of the kernel.
type mount struct {
	kind, at string
	flags    uintptr
	options  string
	optional bool // a kernel may not have it
}

const (
	noFiles = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	noGain  = unix.MS_NOSUID | unix.MS_NODEV
)

// before are mounted before anything else. They move to the root disk.
var before = []mount{
	{kind: "proc", at: "/proc", flags: noFiles},
	{kind: "sysfs", at: "/sys", flags: noFiles},
	{kind: "devtmpfs", at: "/dev", flags: unix.MS_NOSUID | unix.MS_NOEXEC, options: "mode=0755"},
	{kind: "tmpfs", at: "/run", flags: noGain, options: "mode=0755"},
}

// after are mounted in the final root.
var after = []mount{
	{kind: "devpts", at: "/dev/pts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, options: "mode=0620,ptmxmode=0666,gid=5"},
	{kind: "tmpfs", at: "/dev/shm", flags: noGain, options: "mode=1777"},
	{kind: "mqueue", at: "/dev/mqueue", flags: noFiles, optional: true},
	{kind: "cgroup2", at: "/sys/fs/cgroup", flags: noFiles, options: "nsdelegate", optional: true},
	{kind: "bpf", at: "/sys/fs/bpf", flags: noFiles, options: "mode=0700", optional: true},
}

func (m mount) make() error {
	if err := os.MkdirAll(m.at, 0o755); err != nil && !m.optional {
		return fmt.Errorf("mount %s: %w", m.at, err)
	}
	err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options)
	if err != nil && !m.optional && !errors.Is(err, unix.EBUSY) { // the kernel may have mounted devtmpfs
		return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
	}
	return nil
}

// early makes what this process itself needs.
func early() error {
	for _, m := range before {
		if err := m.make(); err != nil {
			return err
		}
	}
	return os.MkdirAll(ownDir, 0o700)
}

// devLinks are those that udev makes.
var devLinks = map[string]string{
	"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	"/dev/core": "/proc/kcore", "/dev/ptmx": "pts/ptmx",
}

// late makes the rest of what a machine has, in its final root.
func late() error {
	for _, m := range after {
		if err := m.make(); err != nil {
			return err
		}
	}
	for name, target := range devLinks {
		if name == "/dev/ptmx" {
			_ = os.Remove(name) // a device of the first instance of devpts, which is another one
		}
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// Distributions let everybody open it.
	if err := os.Chmod("/dev/fuse", 0o666); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	delegate()
	return nil
}

// delegate enables the controllers of control groups in groups below the first one.
func delegate() {
	const root = "/sys/fs/cgroup"
	has, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return // a kernel without them: what needs one says so
	}
	for _, name := range strings.Fields(string(has)) {
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+name), 0) // likewise
	}
}
