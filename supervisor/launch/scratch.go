package launch

import "golang.org/x/sys/unix"

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
	a.Pdeathsig, a.Setsid = s.Pdeathsig, s.Setsid
	return startServer(name, extra, nil, a)
}
