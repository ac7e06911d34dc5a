package openshelldouble

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	pb "agentsh/internal/openshellpb"
)

// UID is the user of a sandbox that is confined.
const UID = 60600

// confinement is what a sandbox is confined by: its directories, and the program of test/outer.
type confinement struct {
	Dir    string // has sandbox, tmp and var, which are /sandbox, /tmp and /var/tmp
	Lib    string // is laid over /usr/lib, as an image with the package of agentsh has it
	Outer  string // refuses what OpenShell 0.1 refuses; empty: nothing is confined
	Policy *pb.FilesystemPolicy
}

// Confine has the commands of all sandboxes confined as OpenShell 0.1 confines them: a user of their own, its listener and its
// filters, which are those of outer (test/outer), and a Landlock domain of the paths of filesystem_policy. lib is laid over
// /usr/lib. The machine needs a directory /sandbox. Tests that use it call [Main] first.
func Confine(d *Double, outer, lib string) {
	own := filepath.Join(d.dir, "outer")
	data, err := os.ReadFile(outer)
	if err == nil {
		err = errors.Join(os.WriteFile(own, data, 0o755), os.Chmod(d.dir, 0o755))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.with(func() { d.outer, d.lib = own, lib })
}

// makeDirs makes the directories of a sandbox.
func (b *box) makeDirs() error {
	for _, name := range []string{"sandbox", "tmp", "var"} {
		dir := filepath.Join(b.dir, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, UID, UID)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(b.dir, "work"), 0o700)
}

// confined changes a command so that it is confined.
func (c confinement) confined(cmd *exec.Cmd, argv []string) error {
	if c.Outer == "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spec, err := json.Marshal(c)
	cmd.Path, cmd.Args = self, append([]string{confineName, string(spec)}, argv...)
	cmd.Dir = "/"
	return err
}

// confineName is the name of a process that confines itself.
const confineName = "openshell-confine"

// confine confines this process, and becomes the program of the arguments.
func confine(args []string) error {
	runtime.LockOSThread()
	var c confinement
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return err
	}
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	outer, err := unix.Open(c.Outer, unix.O_PATH, 0) // it is out of sight then
	if err != nil {
		return err
	}
	layers := "lowerdir=/usr/lib,upperdir=" + c.Lib + ",workdir=" + filepath.Join(c.Dir, "work")
	if err := errors.Join(
		unix.Mount(filepath.Join(c.Dir, "sandbox"), "/sandbox", "", unix.MS_BIND, ""),
		unix.Mount(filepath.Join(c.Dir, "tmp"), "/tmp", "", unix.MS_BIND, ""),
		unix.Mount("overlay", "/usr/lib", "overlay", 0, layers),
		unix.Mount(filepath.Join(c.Dir, "var"), "/var/tmp", "", unix.MS_BIND, ""),
		os.Chdir("/sandbox"),
	); err != nil {
		return err
	}
	if err := c.landlock(outer); err != nil {
		return err
	}
	env := append(os.Environ(), fmt.Sprintf("OUTER_UID=%d", UID))
	return unix.Exec(fmt.Sprintf("/proc/self/fd/%d", outer), append([]string{"outer", "whole"}, args[1:]...), env)
}

// Rights of Landlock's second version, as landlock.rs of crates/openshell-supervisor-process gives them.
const (
	landlockRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockAll  = unix.LANDLOCK_ACCESS_FS_REFER<<1 - 1
	landlockFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE
)

// Paths that OpenShell adds if they are there: enrich_proto_baseline_paths in crates/openshell-sandbox/src/lib.rs.
var (
	baselineRead  = []string{"/usr", "/lib", "/etc", "/app", "/var/log", "/proc", "/dev/urandom"}
	baselineWrite = []string{"/tmp"}
)

// landlock enters a domain of the policy with hard_requirement: a path that is missing is an error. outer may be executed.
func (c confinement) landlock(outer int) error {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockAll}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return fmt.Errorf("landlock unavailable in hard_requirement mode: %w", errno)
	}
	read, write := c.Policy.GetReadOnly(), slices.Clone(c.Policy.GetReadWrite())
	if c.Policy.GetIncludeWorkdir() {
		write = append(write, "/sandbox")
	}
	rules := map[string]uint64{fmt.Sprintf("/proc/self/fd/%d", outer): landlockRead}
	for _, p := range baselineWrite {
		rules[p] = landlockAll
	}
	for _, p := range baselineRead {
		if _, err := os.Stat(p); err == nil {
			rules[p] = landlockRead
		}
	}
	for _, p := range read {
		rules[p] = landlockRead
	}
	for _, p := range write {
		rules[p] = landlockAll
	}
	for path, rights := range rules {
		if err := allow(int(fd), path, rights); err != nil { //nolint:gosec // a descriptor
			return fmt.Errorf("landlock path unavailable in hard_requirement mode: %s: %w", path, err)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// allow adds a rule for a path.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= landlockFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)} //nolint:gosec // a descriptor
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
