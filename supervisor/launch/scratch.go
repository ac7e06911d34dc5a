package launch

import "golang.org/x/sys/unix"

// StartScratch is StartServer in the namespaces of a session that are in only
// (CLONE_NEWNS and others), and in the user namespace of u if it has one. There the
// server has the capabilities that an init has. Nothing of the machine is restricted or
// hidden. It is for trying what a session needs.
func StartScratch(name string, extra []Donation, u User, only uintptr) (*Server, error) {
	c := Config{User: u}
	a := c.attributes()
	a.Cloneflags &= only | unix.CLONE_NEWUSER
	s := serverAttributes()
	a.Pdeathsig, a.Setsid = s.Pdeathsig, s.Setsid
	return startServer(name, extra, nil, a)
}
