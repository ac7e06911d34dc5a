package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

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
	}
	return u, filepath.WalkDir(workspace[0].Backing, func(name string, _ fs.DirEntry, err error) error {
		var file unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &file)
		}
		if err != nil || file.Uid != 0 || file.Dev != root.Dev {
			return err
		}
		return os.Lchown(name, u.UID, u.GID)
	})
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
// lines of the machine. If the machine has no entry for the commands' user,
// they have one more line.
func (u User) accounts(home, shell string) (passwd, group []byte) {
	passwd, _ = os.ReadFile("/etc/passwd") // a machine without one gets a file of one line
	group, _ = os.ReadFile("/etc/group")
	if _, err := user.LookupId(strconv.Itoa(u.UID)); err != nil {
		passwd = fmt.Appendf(passwd, "%s:x:%d:%d::%s:%s\n", u.Name, u.UID, u.GID, home, shell)
	}
	if _, err := user.LookupGroupId(strconv.Itoa(u.GID)); err != nil {
		group = fmt.Appendf(group, "%s:x:%d:\n", u.Name, u.GID)
	}
	return passwd, group
}
