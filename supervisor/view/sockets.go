package view

import (
	"slices"

	"agentsh/policy"
)

// addSockets shows the sockets of the machine that a policy lets commands
// connect to, and covers the others in trees that are shown. A policy without
// unix_socket_rules shows only those in such trees.
func (v *Plan) addSockets(p *policy.Policy, list func() ([]string, error)) error {
	if !p.Governs(policy.GroupUnixSocket) {
		return nil
	}
	sockets, err := list()
	if err != nil {
		return err
	}
	for _, name := range sockets {
		d, _ := p.Evaluate(&policy.UnixSocketRequest{Path: name, Op: "connect"})
		shown := slices.ContainsFunc(v.binds, func(b bind) bool { return Below(name, b.path) })
		private := Below(name, v.Private...) || slices.ContainsFunc(v.Governed, func(g Governed) bool { return Below(name, g.Path) })
		switch {
		case private: // other files of these names
		case d.Permits() && !shown:
			v.sockets = append(v.sockets, name)
		case !d.Permits() && shown:
			v.masked = append(v.masked, name)
		}
	}
	return nil
}
