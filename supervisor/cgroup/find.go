package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// position is the group of this process in one hierarchy.
type position struct {
	dir     string // of its group, in the file system
	unified bool   // cgroup v2
}

// find returns the hierarchy that has a controller: the unified one if it has it, else
// that of cgroup v1.
func find(controller string) (position, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return position{}, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return position{}, err
	}
	return findIn(controller, string(mounts), string(groups), has)
}

// has reports whether the group dir of the unified hierarchy has a controller.
func has(dir, controller string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(text)), controller)
}

// findIn is find with the texts of /proc. See proc_pid_mountinfo(5), cgroups(7).
func findIn(controller, mounts, groups string, has func(dir, controller string) bool) (position, error) {
	legacy := position{}
	for line := range strings.Lines(mounts) {
		front, back, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(front), strings.Fields(back)
		if len(fields) < 6 || len(kind) < 3 {
			continue
		}
		unified := kind[0] == "cgroup2"
		if !unified && (kind[0] != "cgroup" || !slices.Contains(strings.Split(kind[2], ","), controller)) {
			continue
		}
		group, ok := ownGroup(groups, controller, unified)
		if !ok || strings.HasPrefix(group, "/..") {
			continue // none, or outside the cgroup namespace
		}
		rel, err := filepath.Rel(unescape(fields[3]), group)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue // this mount shows another part of the hierarchy
		}
		p := position{filepath.Join(unescape(fields[4]), rel), unified}
		if !unified {
			legacy = p
		} else if has(p.dir, controller) || has(filepath.Dir(p.dir), controller) && filepath.Base(p.dir) == supervisorGroup {
			return p, nil
		}
	}
	if legacy.dir == "" {
		return position{}, fmt.Errorf("no control group hierarchy with the %s controller is mounted", controller)
	}
	return legacy, nil
}

// ownGroup is the path of this process's group in a hierarchy.
func ownGroup(groups, controller string, unified bool) (string, bool) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if unified && fields[0] == "0" && fields[1] == "" || !unified && slices.Contains(strings.Split(fields[1], ","), controller) {
			return fields[2], true
		}
	}
	return "", false
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// supervisorGroup is the group to which the processes of a delegated group are moved. In
// the unified hierarchy a group whose children have limits may have no processes.
const supervisorGroup = "agentsh-supervisor"

// open makes controllers of the unified hierarchy available to new groups, and returns
// the directory for those.
func (p position) open(controllers []string) (string, error) {
	dir := p.dir
	if filepath.Base(dir) == supervisorGroup {
		dir = filepath.Dir(dir)
	}
	inhabited, err := inhabited(dir)
	if err != nil {
		return "", err
	}
	if inhabited {
		if !delegated(dir) {
			return "", fmt.Errorf(
				"the group %s has processes of its own; start the supervisor in one that is delegated to it (systemd: Delegate=yes)",
				dir,
			)
		}
		if err := evacuate(dir); err != nil {
			return "", err
		}
	}
	return dir, enable(dir, controllers)
}

// inhabited reports whether a group has processes that prevent limits for groups below
// it. The root group may have processes. In any other the kernel then refuses some
// controllers, and with others (cpu, pids) makes the groups below unusable. See
// cgroups(7), "no internal processes" and "Thread mode".
func inhabited(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // the root
	}
	if err != nil {
		return false, err
	}
	pids, err := processes(dir)
	return len(pids) > 0, err
}

// processes are the processes of a group.
func processes(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return strings.Fields(string(text)), err
}

// enable makes controllers available to the groups in dir.
func enable(dir string, controllers []string) error {
	return write(dir, "cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
}

// delegated reports whether this process may divide a group: systemd delegated it, or its
// user owns it.
func delegated(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return os.Geteuid() != 0 && unix.Access(filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK) == nil
}

// evacuate moves the processes of a group to one below it.
func evacuate(dir string) error {
	leaf := filepath.Join(dir, supervisorGroup)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for range 64 { // they may fork meanwhile
		pids, err := processes(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := write(leaf, "cgroup.procs", pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("move the processes of %s: there are always new ones", dir)
}

// write writes one value to a file of a group.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
