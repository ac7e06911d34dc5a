package supervisor

import (
	"fmt"
	"os"
	"os/user"
	"strconv"

	"agentsh/internal/tarfs"
)

// dedicatedID is the uid and gid of commands under a root supervisor on a
// machine without the configured user. It is above the ids that distributions
// give out and below those of systemd's dynamic users.
const dedicatedID = 60700

// identity is who commands run as.
type identity struct {
	uid, gid int
	name     string
	mapped   bool // needs a user namespace: the supervisor is not root
}

// commandIdentity picks the user of commands: never root of the machine. Under
// a supervisor that is not root it is the caller, in a user namespace unless the
// session is plain.
func commandIdentity(name string, plain bool) (identity, error) {
	if uid := os.Geteuid(); uid != 0 {
		return identity{uid: uid, gid: os.Getegid(), name: callerName(uid), mapped: !plain}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return identity{uid: dedicatedID, gid: dedicatedID, name: "sandbox"}, nil
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if uidErr != nil || gidErr != nil || uid == 0 || gid == 0 {
		return identity{}, fmt.Errorf("sandbox.user %s has uid %s and gid %s: commands never run as root", name, u.Uid, u.Gid)
	}
	return identity{uid: uid, gid: gid, name: u.Username}, nil
}

// isRoot reports whether the supervisor is root.
func isRoot() bool { return os.Geteuid() == 0 }

// owner is who owns what the supervisor makes for commands; nil where they are
// the same user.
func (id identity) owner() *tarfs.Owner {
	if id.mapped || !isRoot() {
		return nil
	}
	return &tarfs.Owner{UID: id.uid, GID: id.gid}
}

func callerName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "sandbox"
}

// accounts are the passwd and group files that commands see: the machine's own
// lines, and one for the user they run as when it has none.
func (id identity) accounts(home, shell string) (passwd, group []byte) {
	passwd, _ = os.ReadFile("/etc/passwd") // a machine without one gets a file of one line
	group, _ = os.ReadFile("/etc/group")
	if _, err := user.LookupId(strconv.Itoa(id.uid)); err != nil {
		passwd = fmt.Appendf(passwd, "%s:x:%d:%d::%s:%s\n", id.name, id.uid, id.gid, home, shell)
	}
	if _, err := user.LookupGroupId(strconv.Itoa(id.gid)); err != nil {
		group = fmt.Appendf(group, "%s:x:%d:\n", id.name, id.gid)
	}
	return passwd, group
}
