package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkImage rejects an image that cannot be the root of a sandbox. The overlay
// writes to the state directory, which therefore cannot lie in the image.
func (b *Backend) checkImage(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("image: %s is no directory", dir)
	}
	state, err := filepath.EvalSymlinks(b.cfg.State.Sandboxes())
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if state == dir || strings.HasPrefix(state, strings.TrimSuffix(dir, "/")+"/") {
		return fmt.Errorf("image: the state directory %s lies in %s: name another with XDG_STATE_HOME", state, dir)
	}
	return nil
}

// UsesImage implements [sandbox.Backend].
func (b *Backend) UsesImage(dir string) (bool, error) {
	entries, err := os.ReadDir(b.cfg.State.Sandboxes())
	if err != nil {
		return false, fmt.Errorf("list sandboxes: %w", err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // else it is not complete
		dir = real
	}
	for _, e := range entries {
		i, err := readInfo(filepath.Join(b.cfg.State.Sandboxes(), e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it begins or ends
		case err != nil:
			return false, fmt.Errorf("sandbox %s: %w", e.Name(), err)
		case i.Image == dir:
			return true, nil
		}
	}
	return false, nil
}

// ownMounts starts the supervisor in a mount namespace of its own. A user gets a
// user namespace, too, with the capability to mount until it has entered the
// image. See user_namespaces(7).
func ownMounts(a *syscall.SysProcAttr) {
	a.Cloneflags = syscall.CLONE_NEWNS
	if os.Geteuid() == 0 {
		return
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	// The overlay acts with the capabilities of the process that mounts it.
	a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID}
}
