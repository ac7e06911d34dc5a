package launch

import "golang.org/x/sys/unix"

// StartScratch is StartServer in the namespaces of a session that are in only
// (CLONE_NEWNS and others), and in the user namespace of c where it asks for
// one: there the server has the capabilities that an init has. Nothing of the
// machine is restricted or hidden. It is for trying what a session needs.
func StartScratch(name string, extra []Donation, c Config, only uintptr) (*Server, error) {
	a := c.attributes()
	a.Cloneflags &= only | unix.CLONE_NEWUSER
	s := serverAttributes()
	a.Pdeathsig, a.Setsid = s.Pdeathsig, s.Setsid
	return startServer(name, extra, nil, a)
}
