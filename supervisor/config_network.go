package supervisor

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"

	"gopkg.in/yaml.v3"
)

// maxRoots is the largest file of authorities, in bytes.
const maxRoots = 4 << 20

// resolvers reads the name servers that sessions ask: addresses, with a port
// unless that is 53.
func (r *configReader) resolvers(into *[]netip.AddrPort) func(*yaml.Node) {
	return r.each("network.resolvers", func(n *yaml.Node) {
		if a, err := netip.ParseAddr(n.Value); err == nil {
			*into = append(*into, netip.AddrPortFrom(a, dnsPort))
			return
		}
		at, err := netip.ParseAddrPort(n.Value)
		if err != nil || at.Port() == 0 {
			r.problem(n, "%q is no address of a name server (192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53)", n.Value)
			return
		}
		*into = append(*into, at)
	})
}

// roots reads files of authorities that the proxy trusts beside the machine's.
func (r *configReader) roots(into **x509.CertPool) func(*yaml.Node) {
	return r.each("network.ca_files", func(n *yaml.Node) {
		pem, err := readRoots(n.Value)
		if err != nil {
			r.problem(n, "%v", err)
			return
		}
		if *into == nil {
			if *into, err = x509.SystemCertPool(); err != nil {
				*into = x509.NewCertPool() // a machine without authorities of its own
			}
		}
		if !(*into).AppendCertsFromPEM(pem) {
			r.problem(n, "%s holds no certificate in PEM", n.Value)
		}
	})
}

func readRoots(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRoots {
		return nil, fmt.Errorf("authorities: %s is not a regular file of at most %d bytes", name, maxRoots)
	}
	return os.ReadFile(name)
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
