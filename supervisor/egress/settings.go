package egress

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"agentsh/internal/strictyaml"
)

// Settings are the key network of the operator's configuration: how this machine
// reaches what is outside.
type Settings struct {
	Resolvers []netip.AddrPort // name servers to ask; none: those of the machine
	Roots     *x509.CertPool   // verify servers of inspected connections; nil: those of the machine
	RootFiles []string         // from which Roots was read
}

// Read reads the value of the key.
func (s *Settings) Read(r *strictyaml.Reader, n *strictyaml.Node) {
	r.Fields(n, "network", map[string]func(*strictyaml.Node){
		"resolvers": func(n *strictyaml.Node) {
			each(r, n, "network.resolvers", func(text string) error {
				at, err := parseResolver(text)
				s.Resolvers = append(s.Resolvers, at)
				return err
			})
		},
		"ca_files": func(n *strictyaml.Node) {
			each(r, n, "network.ca_files", func(text string) (err error) {
				s.Roots, err = addRoots(s.Roots, text)
				s.RootFiles = append(s.RootFiles, text)
				return err
			})
		},
	})
}

// ReadSettings reads the settings from a configuration file. Its other keys are those
// of the supervisor, which judges them. A missing file gives the defaults when
// optional is set. Every problem has file:line:column.
func ReadSettings(file string, optional bool) (Settings, error) {
	data, err := os.ReadFile(file)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return Settings{}, nil
	}
	if err != nil {
		return Settings{}, fmt.Errorf("configuration: %w", err)
	}
	var problems []string
	add := func(p strictyaml.Problem) { problems = append(problems, p.String()) }
	root := strictyaml.Parse(file, data, &strictyaml.ConfigurationDialect, add)
	r := strictyaml.NewReader(file, &strictyaml.ConfigurationDialect, add)
	var s Settings
	if root != nil && !r.OtherKind(root, strictyaml.Configuration) {
		r.Keys(root, "the configuration", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
			if key.Value == "network" {
				return func(n *strictyaml.Node) { s.Read(&r, n) }
			}
			return func(*strictyaml.Node) {}
		})
	}
	if len(problems) > 0 {
		return Settings{}, errors.New(strings.Join(problems, "\n"))
	}
	return s, nil
}

// each reads a list of texts.
func each(r *strictyaml.Reader, n *strictyaml.Node, what string, read func(string) error) {
	if n.Kind != strictyaml.List {
		r.Fail(n, "", "%s must be a list", what)
		return
	}
	for _, item := range n.Content {
		if item.Kind != strictyaml.Scalar || strictyaml.IsNull(item) {
			r.Fail(item, "", "%s must be a list of texts", what)
			continue
		}
		if err := read(item.Value); err != nil {
			r.Fail(item, "", "%v", err)
		}
	}
}

// parseResolver reads the address of a name server. The port is 53 unless the
// text has one.
func parseResolver(text string) (netip.AddrPort, error) {
	const dnsPort = 53
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, dnsPort), nil
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 {
		return at, fmt.Errorf("%q is no address of a name server (192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53)", text)
	}
	return at, nil
}

// maxRoots is the largest file of authorities, in bytes.
const maxRoots = 4 << 20

// addRoots adds the certificates of a PEM file to a pool. If the pool is nil it
// adds them to the authorities of the machine. It returns the pool.
func addRoots(pool *x509.CertPool, file string) (*x509.CertPool, error) {
	info, err := os.Stat(file)
	if err != nil {
		return pool, fmt.Errorf("authorities: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRoots {
		return pool, fmt.Errorf("authorities: %s is not a regular file of at most %d bytes", file, maxRoots)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return pool, err
	}
	if pool == nil {
		if pool, err = x509.SystemCertPool(); err != nil {
			pool = x509.NewCertPool() // the machine has no authorities
		}
	}
	if !pool.AppendCertsFromPEM(pem) {
		return pool, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}
