package launch

import (
	"os"

	"golang.org/x/sys/unix"
)

// OtherNamespaces are the namespaces of a session that hide nothing which a rule could
// allow: ipc, uts and, on a kernel that has them, cgroup.
func OtherNamespaces() uintptr {
	all := uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if _, err := os.Lstat("/proc/self/ns/cgroup"); err == nil {
		all |= unix.CLONE_NEWCGROUP
	}
	return all
}

// StartScratch is like [StartServer], but the server runs in the namespaces of
// a session that are in only (CLONE_NEWNS and others). If u has a user
// namespace, the server is in it. There it has the capabilities of an init.
// Nothing of the machine is restricted or hidden. It is for trials of the
// mechanisms that a session needs.
func StartScratch(name string, extra []Donation, u User, only uintptr) (*Server, error) {
	c := Config{User: u}
	a := c.attributes()
	a.Cloneflags &= only | unix.CLONE_NEWUSER
	s := serverAttributes()
	a.Setsid = s.Setsid
	// The first process of a pid namespace has no parent there. The syscall package takes
	// that for the parent's death and sends the signal, which not every kernel ignores. The
	// trial then ends with its control socket.
	if only&unix.CLONE_NEWPID == 0 {
		a.Pdeathsig = s.Pdeathsig
	}
	return startServer(name, extra, nil, a)
}
