package shim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// packagers are programs that run scripts of packages, as root.
var packagers = []string{
	"/usr/bin/dpkg", "/usr/bin/apt-get", "/usr/bin/apt", "/usr/bin/aptitude", "/usr/bin/rpm", "/usr/bin/microdnf",
	"/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk", "/usr/bin/pacman", "/usr/bin/zypper",
}

// maxAncestors bounds the search for a packager.
const maxAncestors = 64

// ForPackage reports whether root's package manager started this process, or something
// that it started did. It tells by the files that run as its ancestors, and by nothing that
// a caller sets. Who can make a user namespace outside of sessions can pretend to be one:
// nothing confines that process anyway.
func ForPackage() bool {
	if os.Geteuid() != 0 || os.Getuid() != 0 {
		return false
	}
	pid := os.Getppid()
	for range maxAncestors {
		if pid < 1 {
			return false
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && slices.Contains(packagers, exe) && ofRoot(exe) {
			return true
		}
		if pid = parent(pid); pid == 0 {
			return false
		}
	}
	return false
}

// ofRoot reports whether only root can change a file.
func ofRoot(name string) bool {
	var st syscall.Stat_t
	return syscall.Stat(name, &st) == nil && st.Uid == 0 && st.Mode&0o022 == 0
}

// parent is the parent of a process; 0: it is gone. See proc_pid_stat(5).
func parent(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	number, _ := strconv.Atoi(fields[1]) // 0 where it is none
	return number
}

// Become replaces this process by the original of a shell, outside of a session. It
// returns only if that fails.
func (s Shell) Become(argv []string) error {
	return syscall.Exec("/"+s.Real, argv, os.Environ())
}
