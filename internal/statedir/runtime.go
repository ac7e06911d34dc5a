package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Runtime is the directory of the sockets of this user's sessions: below
// XDG_RUNTIME_DIR, else below /run for root, and below the directory of the
// login for others. The caller makes it.
func Runtime() (string, error) {
	uid := os.Geteuid()
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" && uid == 0 {
		base = "/run"
	}
	return runtimeBelow(base, fmt.Sprintf("/run/user/%d", uid), uid)
}

// runtimeBelow is the directory below base. Without a base it is below login, the
// directory that pam_systemd makes for the user, if that belongs to the user alone.
// Clients of MCP start their servers without XDG_RUNTIME_DIR.
func runtimeBelow(base, login string, uid int) (string, error) {
	var st unix.Stat_t
	if base == "" && unix.Lstat(login, &st) == nil && st.Mode&(unix.S_IFMT|0o077) == unix.S_IFDIR && int(st.Uid) == uid {
		base = login
	}
	if base == "" {
		return "", errors.New("XDG_RUNTIME_DIR is not set: it names a directory of this user alone; " +
			"log in as the user, or run 'export XDG_RUNTIME_DIR=$(mktemp -d)'")
	}
	if !filepath.IsAbs(base) {
		return "", fmt.Errorf("XDG_RUNTIME_DIR %q is not an absolute path", base)
	}
	base, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", fmt.Errorf("runtime directory: %w", err)
	}
	return filepath.Join(base, "agentsh"), nil
}

// RuntimeDirs are the directories where sockets of this user's sessions may be,
// also those of sessions that were made with another environment.
func RuntimeDirs() []string {
	uid := os.Geteuid()
	dirs := []string{fmt.Sprintf("/run/user/%d/agentsh", uid)}
	if uid == 0 {
		dirs = append(dirs, "/run/agentsh")
	}
	if dir, err := Runtime(); err == nil {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// LockName is the file in a directory that its owner holds locked.
const LockName = "lock"

// LockDir locks a directory for as long as the returned file is open, or fails
// at once where another process has locked it. flags are further ones of open(2).
func LockDir(dir string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
