package host

import (
	"net/netip"

	"agentsh/internal/strictyaml"
	"agentsh/supervisor/netns"
)

// resolvers reads the addresses of the name servers that sessions ask.
func (r *configReader) resolvers(into *[]netip.AddrPort) func(*strictyaml.Node) {
	return r.each("network.resolvers", func(n *strictyaml.Node) {
		at, err := netns.ParseResolver(n.Value)
		if err != nil {
			r.problem(n, "%v", err)
			return
		}
		*into = append(*into, at)
	})
}

// roots reads files of authorities that the proxy trusts in addition to the machine's.
func (r *configReader) roots(into *netns.Outside) func(*strictyaml.Node) {
	return r.each("network.ca_files", func(n *strictyaml.Node) {
		var err error
		if into.Roots, err = netns.AddRoots(into.Roots, n.Value); err != nil {
			r.problem(n, "%v", err)
		}
		into.RootFiles = append(into.RootFiles, n.Value)
	})
}

// each reads a list of texts.
func (r *configReader) each(what string, read func(*strictyaml.Node)) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		if n.Kind != strictyaml.List {
			r.problem(n, "%s must be a list", what)
			return
		}
		for _, item := range n.Content {
			if item.Kind != strictyaml.Scalar || strictyaml.IsNull(item) {
				r.problem(item, "%s must be a list of texts", what)
				continue
			}
			read(item)
		}
	}
}
