package view

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/layout"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
)

// DedicatedID is the uid and gid of commands under a root supervisor on a
// machine without the configured user. It is above the ids that distributions
// give out and below those of systemd's dynamic users.
const DedicatedID = 60700

// User is the user that commands run as.
type User struct {
	UID, GID int
	Name     string
	Mapped   bool // in a user namespace: the supervisor is not root
}

// launch returns the user in the form of package launch.
func (u User) launch() launch.User { return launch.User{UID: u.UID, GID: u.GID, Namespace: u.Mapped} }

// CommandUser selects the user of commands. It is never root of the machine. If
// the supervisor is root, it is the named user, or a user with [DedicatedID] if
// the machine has no such user. Otherwise it is the supervisor's user, in a
// user namespace if possible.
func CommandUser(name string, namespaces bool) (User, error) {
	if uid := os.Geteuid(); uid != 0 {
		return User{UID: uid, GID: os.Getegid(), Name: callerName(uid), Mapped: namespaces}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return User{UID: DedicatedID, GID: DedicatedID, Name: "sandbox"}, nil
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if uidErr != nil || gidErr != nil || uid == 0 || gid == 0 {
		return User{}, fmt.Errorf("sandbox.user %s has uid %s and gid %s: commands never run as root", name, u.Uid, u.Gid)
	}
	return User{UID: uid, GID: gid, Name: u.Username}, nil
}

// AsOwner returns the user of commands that own the workspace, in a container whose root is
// the supervisor. Without a file server they could not use one of another user. What
// root owns in the container's own file system becomes the user's: an image is built by root.
func (u User) AsOwner(workspace []wire.Governed) (User, error) {
	if !isRoot() || len(workspace) == 0 {
		return u, nil
	}
	var root, dir unix.Stat_t
	if err := errors.Join(unix.Stat("/", &root), unix.Stat(workspace[0].Backing, &dir)); err != nil {
		return u, fmt.Errorf("workspace: %w", err)
	}
	switch {
	case dir.Uid != 0:
		owner := User{UID: int(dir.Uid), GID: int(dir.Gid), Name: callerName(int(dir.Uid))}
		if owner.GID == 0 {
			owner.GID = u.GID // commands are in no group of root
		}
		return owner, nil
	case dir.Dev != root.Dev:
		return u, nil // it is mounted from elsewhere
	case dir.Mode&(unix.S_ISVTX|unix.S_IWOTH) == unix.S_ISVTX|unix.S_IWOTH:
		return u, nil // everybody may write there, as in /tmp
	}
	if of := systemIn(workspace[0].Backing); of != "" {
		return u, fmt.Errorf("workspace %s: %s is in it, and commands must not own that; write WORKDIR /work in the Dockerfile, or use "+
			"docker run --workdir /work", workspace[0].Backing, of)
	}
	top, err := beneath.OpenRoot(workspace[0].Backing)
	if err != nil {
		return u, err
	}
	defer top.Close()
	if err := u.take(beneath.Entry{FD: int(top.Fd()), Stat: dir}, root.Dev); err != nil {
		return u, fmt.Errorf("workspace %s: give it to the user of commands: %w", workspace[0].Backing, err)
	}
	return u, nil
}

// systemDirectories are those that commands must never own.
var systemDirectories = []string{
	"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp",
	"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/usr/sbin",
	"/usr/share", "/var/cache", "/var/lib", "/var/log", "/var/spool", "/var/tmp",
}

// systemIn returns a directory of the system, or one of agentsh's own, that a directory is or
// contains; empty: none. Links are resolved.
func systemIn(dir string) string {
	own := []string{layout.Config, layout.Library}
	if self, err := os.Executable(); err == nil {
		own = append(own, self)
	}
	for _, name := range slices.Concat(systemDirectories, own) {
		real, err := filepath.EvalSymlinks(name)
		if err == nil && Below(real, dir) {
			return name
		}
	}
	return ""
}

// take makes the user own what root owns below a directory of the file system dev, and then
// the directory: so a walk that was cut off begins again. Commands of another session may
// already use the tree. Nothing is found by its name twice, and a file with other names
// stays as it is: one may be outside.
func (u User) take(dir beneath.Entry, dev uint64) error {
	fd, err := unix.Openat(dir.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	open := os.NewFile(uintptr(fd), "directory")
	list, err := open.Readdirnames(-1)
	if err = errors.Join(err, open.Close()); err != nil {
		return err
	}
	for _, name := range list {
		e, err := beneath.OpenEntry(dir.FD, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		switch {
		case e.Stat.Dev != dev: // another file system
		case e.IsDir():
			err = u.take(e, dev)
		case e.Stat.Uid == 0 && e.Stat.Nlink == 1:
			err = u.own(e)
		}
		e.Close()
		if err != nil {
			return err
		}
	}
	if dir.Stat.Uid != 0 {
		return nil
	}
	return u.own(dir)
}

func (u User) own(e beneath.Entry) error {
	return unix.Fchownat(e.FD, "", u.UID, u.GID, unix.AT_EMPTY_PATH)
}

// isRoot reports whether the supervisor is root.
func isRoot() bool { return os.Geteuid() == 0 }

// Owner returns the owner of files that the supervisor creates for commands.
// Nil means the supervisor's user.
func (u User) Owner() *tarfs.Owner {
	if u.Mapped || !isRoot() {
		return nil
	}
	return &tarfs.Owner{UID: u.UID, GID: u.GID}
}

func callerName(uid int) string {
	if found, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return found.Username
	}
	return "sandbox"
}

// accounts returns the passwd and group files that commands see. They have the
// lines of the machine, with the session's home for the commands' user: Java and ssh
// read it there, not from HOME. If the machine has no entry for the commands' user, they
// have one more line.
func (u User) accounts(home, shell string) (passwd, group []byte) {
	passwd, _ = os.ReadFile("/etc/passwd") // a machine without one gets a file of one line
	group, _ = os.ReadFile("/etc/group")
	passwd = u.rehome(passwd, home)
	if _, err := user.LookupId(strconv.Itoa(u.UID)); err != nil {
		passwd = fmt.Appendf(passwd, "%s:x:%d:%d::%s:%s\n", u.Name, u.UID, u.GID, home, shell)
	}
	if _, err := user.LookupGroupId(strconv.Itoa(u.GID)); err != nil {
		group = fmt.Appendf(group, "%s:x:%d:\n", u.Name, u.GID)
	}
	return passwd, group
}

// rehome gives the entries of the commands' user in a passwd file another home.
func (u User) rehome(passwd []byte, home string) []byte {
	lines := strings.SplitAfter(string(passwd), "\n")
	for i, line := range lines {
		if fields := strings.Split(line, ":"); len(fields) == 7 && fields[2] == strconv.Itoa(u.UID) {
			fields[5] = home
			lines[i] = strings.Join(fields, ":")
		}
	}
	return []byte(strings.Join(lines, ""))
}
