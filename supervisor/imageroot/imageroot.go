// Package imageroot gives this process the root file system of an image. It must
// be in a mount namespace of its own, and as a user in a user namespace of its
// own, too.
//
// The root is an overlay: the image below, and above it a directory of the
// sandbox that receives all changes. So the image is never changed. The
// directory above is filled before it is mounted. It has the mount points and
// the few files of the machine that the supervisor reads. They replace links and
// files of the image, so that no link of the image leads anywhere here.
package imageroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
)

// Options describe the root.
type Options struct {
	Image string   // directory of the root file system
	Dir   string   // directory of the sandbox, shown at its path
	Files []string // further files of this machine, copied to their paths
}

// machineFiles are files of this machine that replace those of the image. The
// supervisor resolves names by them.
var machineFiles = []string{"/etc/resolv.conf", "/etc/hosts"}

// authoritiesVar names the file of the authorities that a process trusts. See crypto/x509.
const authoritiesVar = "SSL_CERT_FILE"

// Names in the directory [Options.Dir]/image.
const (
	upperName   = "upper"   // the changes
	workName    = "work"    // of the overlay
	rootName    = "root"    // where it is mounted
	tmpName     = "tmp"     // /tmp of the supervisor
	programName = "agentsh" // this program
	caName      = "ca.pem"  // the authorities that this machine trusts
)

// root is a root file system that is being made.
type root struct {
	Options
	own string // directory for the names above
}

// Enter makes the root and starts this program again in it with the arguments.
// It returns only if it fails.
func Enter(o Options, args []string) error {
	runtime.LockOSThread() // capabilities belong to a thread
	r := root{o, filepath.Join(o.Dir, "image")}
	if err := r.fill(); err != nil {
		return fmt.Errorf("image %s: %w", o.Image, err)
	}
	if err := r.mount(); err != nil {
		return fmt.Errorf("image %s: %w", o.Image, err)
	}
	if err := dropInherited(); err != nil {
		return fmt.Errorf("image %s: drop capabilities: %w", o.Image, err)
	}
	if _, err := os.Stat(r.path(caName)); err == nil {
		if err := os.Setenv(authoritiesVar, r.path(caName)); err != nil {
			return err
		}
	}
	err := syscall.Exec(r.path(programName), args, os.Environ())
	return fmt.Errorf("image %s: start the supervisor in it: %w", o.Image, err)
}

func (r root) path(name string) string  { return filepath.Join(r.own, name) }
func (r root) upper(name string) string { return filepath.Join(r.own, upperName, name) }

// shown is where a file is put that the root has at name. Its /tmp is a mount.
func (r root) shown(name string) string {
	if rest, below := strings.CutPrefix(filepath.Clean(name), "/tmp/"); below {
		return filepath.Join(r.path(tmpName), rest)
	}
	return r.upper(name)
}

// fill makes the directories of the overlay and fills the upper one.
func (r root) fill() error {
	dirs := []string{r.own, r.path(upperName), r.path(workName), r.path(rootName), r.path(tmpName)}
	for _, name := range []string{"/proc", "/sys", "/dev", "/tmp", r.Dir} {
		dirs = append(dirs, r.upper(name))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(r.path(programName), nil, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Concat(machineFiles, r.Files) {
		if err := copyFile(name, r.shown(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	names := layout.Authorities
	if own := os.Getenv(authoritiesVar); own != "" {
		names = []string{own}
	}
	for _, name := range names {
		if err := copyFile(name, r.path(caName)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// mount mounts the root and makes it that of this process.
func (r root) mount() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := r.overlay(); err != nil {
		return err
	}
	at := r.path(rootName)
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(name, filepath.Join(at, name), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
	}
	for _, m := range [][2]string{
		{r.path(tmpName), filepath.Join(at, "/tmp")},
		{r.Dir, filepath.Join(at, r.Dir)}, // may be below the first
		{self, filepath.Join(at, r.path(programName))},
	} {
		if m[0] == r.Dir {
			if err := os.MkdirAll(m[1], 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m[0], m[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s: %w", m[0], err)
		}
	}
	return pivot(at)
}

// overlay mounts the overlay. The directories are given by descriptors, since a
// path may have characters that the mount's options reserve.
func (r root) overlay() error {
	var options []string
	for _, d := range [][2]string{
		{"lowerdir", r.Image}, {"upperdir", r.path(upperName)}, {"workdir", r.path(workName)},
	} {
		f, err := os.Open(d[1])
		if err != nil {
			return err
		}
		defer f.Close()
		options = append(options, fmt.Sprintf("%s=/proc/self/fd/%d", d[0], f.Fd()))
	}
	if os.Geteuid() != 0 {
		options = append(options, "userxattr")
	}
	if err := unix.Mount("overlay", r.path(rootName), "overlay", 0, strings.Join(options, ",")); err != nil {
		return fmt.Errorf("mount an overlay over it (overlayfs(5); users need Linux 5.11): %w", err)
	}
	return nil
}

// pivot makes a mount the root of this process, without the old one. See
// pivot_root(2), pivot_root(".", ".").
func pivot(at string) error {
	if err := os.Chdir(at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir("/")
}

// dropInherited makes a user's capabilities end with this program. Those of root
// stay, since root gets all of them from exec. See capabilities(7).
func dropInherited() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // none, also not inheritable
	return unix.Capset(&header, &sets[0])
}
