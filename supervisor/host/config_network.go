package host

import (
	"crypto/x509"
	"net/netip"

	"gopkg.in/yaml.v3"

	"agentsh/supervisor/netns"
)

// resolvers reads the addresses of the name servers that sessions ask.
func (r *configReader) resolvers(into *[]netip.AddrPort) func(*yaml.Node) {
	return r.each("network.resolvers", func(n *yaml.Node) {
		at, err := netns.ParseResolver(n.Value)
		if err != nil {
			r.problem(n, "%v", err)
			return
		}
		*into = append(*into, at)
	})
}

// roots reads files of authorities that the proxy trusts in addition to the machine's.
func (r *configReader) roots(into **x509.CertPool) func(*yaml.Node) {
	return r.each("network.ca_files", func(n *yaml.Node) {
		var err error
		if *into, err = netns.AddRoots(*into, n.Value); err != nil {
			r.problem(n, "%v", err)
		}
	})
}

// each reads a list of texts.
func (r *configReader) each(what string, read func(*yaml.Node)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			r.problem(n, "%s must be a list", what)
			return
		}
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				r.problem(item, "%s must be a list of texts", what)
				continue
			}
			read(item)
		}
	}
}
