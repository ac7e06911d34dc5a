package openshell

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// theirs evaluates a policy file of OpenShell. It is a double: written after the published
// sandbox-policy.rego, proxy.rs and landlock.rs of github.com/NVIDIA/OpenShell, for the
// keys that Render writes. An unknown key is an error, as there.
type theirs struct {
	file fileYAML
}

func parseTheirs(t *testing.T, text []byte) theirs {
	t.Helper()
	var f fileYAML
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for name, p := range f.Network {
		for _, e := range p.Endpoints {
			labels := strings.Count(e.Host, ".")
			if len(e.Ports) == 0 || e.Host == "" && len(e.AllowedIPs) == 0 || strings.HasPrefix(e.Host, "**.") && labels < 2 ||
				len(e.Denied) > 0 && len(e.Rules) == 0 || (len(e.Rules) > 0) != (e.Protocol == "rest") || len(p.Binaries) == 0 {
				t.Fatalf("OpenShell refuses %s: %+v", name, e)
			}
		}
	}
	x := theirs{f}
	x.ambiguous(t)
	return x
}

// ambiguous is find_endpoint_ambiguities for the keys that Render writes.
func (x theirs) ambiguous(t *testing.T) {
	t.Helper()
	var all []endpointYAML
	for _, p := range x.file.Network {
		all = append(all, p.Endpoints...)
	}
	for i, b := range all {
		for _, a := range all[:i] {
			ports := slices.ContainsFunc(a.Ports, func(p int) bool { return slices.Contains(b.Ports, p) })
			one := func(e, other endpointYAML) bool { return theirHost(e, strings.Replace(other.Host, "**", "x.y", 1)) }
			if ports && (one(a, b) || one(b, a)) && !slices.Equal(a.AllowedIPs, b.AllowedIPs) {
				t.Fatalf("OpenShell refuses %+v beside %+v", b, a)
			}
		}
	}
}

// file reports whether an operation succeeds as far as Landlock decides.
func (x theirs) fileAllowed(name string, op policy.FileOp) bool {
	read, write := x.file.Filesystem.ReadOnly, x.file.Filesystem.ReadWrite
	if len(x.file.Network) > 0 { // enrich_proto_baseline_paths
		read, write = slices.Concat(read, baselineRead), slices.Clone(write)
		for _, p := range baselineWrite {
			if !slices.Contains(read, p) {
				write = append(write, p)
			}
		}
	}
	in := func(trees []string) bool {
		return slices.ContainsFunc(trees, func(tree string) bool {
			return tree == "/" || name == tree || strings.HasPrefix(name, tree+"/")
		})
	}
	if op&(policy.OpRead|policy.OpList|policy.OpExecute) != 0 {
		return in(read) || in(write)
	}
	return in(write)
}

// networkAllowed is allow_network, the check of addresses, and allow_request.
func (x theirs) networkAllowed(q *policy.NetworkRequest, ancestors ...string) bool {
	var connected, inspected, allowed, denied bool
	for _, p := range x.file.Network {
		if !slices.ContainsFunc(p.Binaries, func(b binaryYAML) bool {
			return slices.ContainsFunc(append(ancestors, q.Binary), func(exe string) bool { return theirGlob(b.Path, exe) })
		}) {
			continue
		}
		for _, e := range p.Endpoints {
			if !slices.Contains(e.Ports, q.Port) || !theirHost(e, q.Domain) || !theirAddress(e, q.Addr) {
				continue
			}
			connected = true
			inspected = inspected || e.Protocol == "rest"
			for _, r := range e.Rules {
				allowed = allowed || r.Allow.matches(q)
			}
			for _, r := range e.Denied {
				denied = denied || r.matches(q)
			}
		}
	}
	if !connected || slices.Contains(blockedPorts, q.Port) {
		return false
	}
	return !inspected || q.Method != "" && allowed && !denied
}

// matches is method_matches and path_matches.
func (r requestYAML) matches(q *policy.NetworkRequest) bool {
	method := r.Method == "*" || r.Method == q.Method || q.Method == "HEAD" && r.Method == "GET"
	return method && (r.Path == "**" || theirGlob(r.Path, q.Path))
}

func theirHost(e endpointYAML, host string) bool {
	if suffix, wild := strings.CutPrefix(e.Host, "**."); wild {
		return strings.HasSuffix(host, "."+suffix)
	}
	return e.Host == "" || e.Host == host
}

// theirAddress is validate_allowed_ips_for_resolved_addrs, resolve_and_check_declared_endpoint
// for a name, and reject_internal_resolved_addrs for a pattern.
func theirAddress(e endpointYAML, a netip.Addr) bool {
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return false
	}
	if len(e.AllowedIPs) > 0 {
		return slices.ContainsFunc(e.AllowedIPs, func(c string) bool { return netip.MustParsePrefix(c).Contains(a) })
	}
	shared := netip.MustParsePrefix("100.64.0.0/10")
	return !strings.Contains(e.Host, "*") || !a.IsPrivate() && !shared.Contains(a)
}

// theirGlob knows the patterns that Render writes: a path, DIR/** and /**/NAME.
func theirGlob(pattern, s string) bool {
	if name, ok := strings.CutPrefix(pattern, "/**/"); ok {
		return path.Base(s) == name
	}
	if dir, ok := strings.CutSuffix(pattern, "/**"); ok {
		return strings.HasPrefix(s, dir+"/")
	}
	return pattern == s
}
