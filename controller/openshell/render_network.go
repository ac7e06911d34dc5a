package openshell

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/lazy"
	"agentsh/policy"
)

// endpoint is what one allow rule says about one host and port.
type endpoint struct {
	rule     *policy.Rule
	host     string // a name, **.NAME, or empty: every host in networks
	port     int
	networks []string
	requests []Request // empty: everything
	denied   []Request
}

// blockedPorts are refused by OpenShell whatever a policy says
// (BLOCKED_CONTROL_PLANE_PORTS in crates/openshell-supervisor-network/src/proxy.rs).
var blockedPorts = []int{2379, 2380, 6443, 10250, 10255}

// alwaysBlocked are addresses that no policy of OpenShell may name (is_always_blocked_net in
// crates/openshell-core/src/net.rs).
var alwaysBlocked = []string{"127.0.0.0/8", "0.0.0.0/32", "169.254.0.0/16", "::/127", "fe80::/10"}

// maxPorts bounds the ports of one rule, which OpenShell lists one by one.
const maxPorts = 100

// networkRenderer writes the network rules as endpoints.
type networkRenderer struct {
	*renderer
	denials   []*policy.Rule // before the rule that is written
	endpoints []endpoint
}

// network writes the network rules. The rules of OpenShell have no order, and all endpoints
// that match a request count together: sandbox-policy.rego.
func (r *renderer) network() {
	if d := r.policy.Defaults().Network; d != nil && *d != policy.Deny {
		r.fail(r.key("defaults"), "defaults: OpenShell denies hosts that no rule names", "write network: deny in defaults, and rules that allow")
	}
	n := &networkRenderer{renderer: r}
	for _, rule := range r.permitted(policy.GroupNetwork) {
		if rule.Effect == policy.Deny {
			n.denials = append(n.denials, rule)
			continue
		}
		made := n.allow(rule)
		n.endpoints = append(n.endpoints, made...)
		n.write(rule, made)
	}
	n.compare()
	for _, rule := range n.denials {
		r.row(rule.Name, rule.Pos, "OpenShell: what is not allowed is denied")
	}
}

// allow returns the endpoints of a rule, without what denials before it refuse.
func (n *networkRenderer) allow(rule *policy.Rule) []endpoint {
	m := rule.Network
	networks, ok := n.networks(rule)
	if !ok {
		return nil
	}
	ports := n.ports(rule)
	requests := n.requests(rule)
	if len(m.Binaries) > 0 {
		n.lose("binary_descendants", rule.Name, rule.Pos, "in OpenShell what a program starts may reach the hosts of the program")
	}
	var out []endpoint
	for _, host := range n.hosts(rule, len(networks) > 0) {
		if len(networks) == 0 && !strings.Contains(host, "*") {
			n.lose("private_addresses", rule.Name, rule.Pos,
				"OpenShell lets "+host+" resolve to a private address; with cidrs it holds the addresses")
		}
		for _, port := range ports {
			e := endpoint{rule: rule, host: host, port: port, networks: networks, requests: requests}
			if n.withoutDenied(&e) {
				out = append(out, e)
			}
		}
	}
	return out
}

func (n *networkRenderer) ports(rule *policy.Rule) []int {
	var out []int
	for _, p := range rule.Network.Ports {
		for port := int(p.Low); port <= int(p.High) && len(out) <= maxPorts; port++ {
			if slices.Contains(blockedPorts, port) {
				n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell refuses port %d to every sandbox", rule.Name, port), "take it out of ports")
			}
			out = append(out, port)
		}
	}
	if len(out) == 0 || len(out) > maxPorts {
		n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell needs ports, at most %d here", rule.Name, maxPorts), "write them, as in ports: [443]")
	}
	return out
}

// networks returns the networks of a rule. It returns false if the rule is left out.
func (n *networkRenderer) networks(rule *policy.Rule) ([]string, bool) {
	var out []string
	loopback := 0
	for _, c := range rule.Network.CIDRs {
		if c.Addr().IsLoopback() {
			loopback++
			continue
		}
		if slices.ContainsFunc(alwaysBlocked, func(p string) bool { return netip.MustParsePrefix(p).Overlaps(c) }) {
			n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell refuses loopback, link-local and unspecified addresses, and %s has some", rule.Name, c),
				"write networks without them")
		}
		for _, guarded := range policy.GuardedNetworks() {
			if guarded.Overlaps(c) && c.Bits() < guarded.Bits() {
				n.fail(rule.Pos,
					fmt.Sprintf("%s: %s is wider than %s, so it allows those addresses in OpenShell and not here", rule.Name, c, guarded),
					"write networks without "+guarded.String())
			}
		}
		out = append(out, c.String())
	}
	slices.Sort(out)
	if loopback > 0 {
		if len(out) > 0 {
			n.fail(rule.Pos, rule.Name+": OpenShell refuses loopback addresses", "write them as a rule of their own")
		}
		n.lose("loopback", rule.Name, rule.Pos, "OpenShell's proxy refuses loopback addresses")
		return nil, false
	}
	return out, true
}

var exactHost = lazy.Regexp(`^[a-z0-9_]([a-z0-9._-]*[a-z0-9])?$`)

// hosts returns the hosts of a rule as OpenShell writes them.
func (n *networkRenderer) hosts(rule *policy.Rule, networks bool) []string {
	m := rule.Network
	if !m.HasDomains || m.Any {
		if !networks {
			n.fail(rule.Pos, rule.Name+": OpenShell cannot allow every host", "name hosts in domains, or networks in cidrs")
		}
		return []string{""}
	}
	if len(m.Addresses) > 0 {
		n.fail(rule.Pos, rule.Name+": an address in domains means something else in OpenShell", "write it in cidrs, as 203.0.113.7/32")
	}
	var out []string
	for _, g := range m.Domains {
		names, exact := g.Literals()
		if suffix, ok := strings.CutPrefix(g.String(), "*."); ok && !exact && exactHost().MatchString(suffix) && strings.Contains(suffix, ".") {
			names, exact = []string{"**." + suffix}, true
		}
		for _, name := range names {
			exact = exact && name != "localhost" && exactHost().MatchString(strings.TrimPrefix(name, "**."))
		}
		if !exact {
			n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell cannot hold the host %s", rule.Name, g), "write names, or *.NAME with a dot in NAME")
		}
		out = append(out, names...)
	}
	return out
}

// plainPath matches paths of URLs without characters that mean something in a pattern.
var plainPath = lazy.Regexp(`^(/[A-Za-z0-9_~.-]+)*/?$`)

// requests returns the HTTP requests of a rule.
func (n *networkRenderer) requests(rule *policy.Rule) []Request {
	m := rule.Network
	if len(m.Methods)+len(m.Paths) == 0 {
		return nil
	}
	if slices.Contains(m.Methods, "GET") && !slices.Contains(m.Methods, "HEAD") {
		n.fail(rule.Pos, rule.Name+": in OpenShell a rule about GET is also about HEAD", "write methods: [GET, HEAD]")
	}
	if len(m.Paths) == 0 {
		return []Request{{Methods: m.Methods, Path: "**"}}
	}
	n.lose("path_readings", rule.Name, rule.Pos, "servers read one path in several ways, and OpenShell compares one of them")
	var out []Request
	for _, g := range m.Paths {
		names, literal := g.Literals()
		if dir, ok := strings.CutSuffix(g.String(), "/**"); ok && !literal && plainPath().MatchString(dir) {
			names, literal = []string{dir, dir + "/**"}, true
			if dir == "" {
				names = []string{"**"}
			}
		}
		for _, name := range names {
			literal = literal && (name == "**" || plainPath().MatchString(strings.TrimSuffix(name, "**")))
			out = append(out, Request{Methods: m.Methods, Path: name})
		}
		if !literal {
			n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell reads the pattern %s otherwise: its * matches slashes", rule.Name, g),
				"write paths, or /PATH/**")
		}
	}
	return out
}

// withoutDenied adds the denials before a rule to an endpoint. It returns false if they deny all of it.
func (n *networkRenderer) withoutDenied(e *endpoint) bool {
	for _, d := range n.denials {
		m := d.Network
		switch n.relation(d, e) {
		case apart:
			continue
		case crossing:
			n.fail(d.Pos,
				fmt.Sprintf("%s: OpenShell cannot deny this before %s (%s) allows %s:%d", d.Name, e.rule.Name, e.rule.Pos, e.host, e.port),
				"write rules that allow the rest")
			continue
		}
		if len(m.Methods)+len(m.Paths) == 0 {
			return false
		}
		if len(e.requests) == 0 {
			n.fail(e.rule.Pos,
				fmt.Sprintf("%s: %s (%s) denies some of its HTTP requests, and OpenShell needs the methods of the rest", e.rule.Name, d.Name, d.Pos),
				"write them, as in methods: [GET, HEAD, POST]")
		}
		e.denied = append(e.denied, n.requests(d)...)
		n.row(d.Name, d.Pos, "OpenShell: deny_rules")
	}
	return true
}

// How a denial and an endpoint are related.
const (
	apart    = iota
	crossing // it denies a part of the endpoint that OpenShell cannot name
	covering // it is about the whole endpoint
)

func (n *networkRenderer) relation(d *policy.Rule, e *endpoint) int {
	m := d.Network
	onPort := func(p policy.PortRange) bool { return int(p.Low) <= e.port && e.port <= int(p.High) }
	if len(m.Ports) > 0 && !slices.ContainsFunc(m.Ports, onPort) || len(m.Protocols) > 0 && !slices.Contains(m.Protocols, "tcp") {
		return apart
	}
	if len(m.CIDRs) > 0 && !n.meets(m.CIDRs, e.networks) {
		return apart
	}
	hosts := crossing
	if !m.HasDomains || m.Any {
		hosts = covering
	} else if len(m.Addresses) == 0 {
		hosts = apart
		for _, g := range m.Domains {
			hosts = max(hosts, hostRelation(g.String(), e.host))
		}
	}
	if hosts == covering && len(m.CIDRs)+len(m.Binaries) > 0 {
		return crossing
	}
	return hosts
}

// meets reports whether an endpoint of networks has addresses in cidrs. Without networks it
// has the addresses that no rule need name.
func (n *networkRenderer) meets(cidrs []netip.Prefix, networks []string) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool {
		if len(networks) == 0 {
			within := func(p netip.Prefix) bool { return p.Contains(c.Addr()) && p.Bits() <= c.Bits() }
			return !slices.ContainsFunc(policy.GuardedNetworks(), within)
		}
		return slices.ContainsFunc(networks, func(text string) bool { return netip.MustParsePrefix(text).Overlaps(c) })
	})
}

// hostRelation compares the pattern of a denial with the host of an endpoint.
func hostRelation(pattern, host string) int {
	suffix, wild := strings.CutPrefix(pattern, "*.")
	other, all := strings.CutPrefix(host, "**.")
	if host == "" || !exactHost().MatchString(suffix) {
		return crossing
	}
	inside := func(name, dir string) bool { return strings.HasSuffix(name, "."+dir) }
	switch {
	case wild && (inside(other, suffix) || all && other == suffix), !wild && !all && suffix == other:
		return covering
	case all && inside(suffix, other) || all && wild && suffix == other:
		return crossing
	}
	return apart
}

// compare rejects endpoints for the same host and port that OpenShell would join into something
// else than the rules in their order. See crates/openshell-policy/src/ambiguity.rs.
func (n *networkRenderer) compare() {
	for i, b := range n.endpoints {
		for _, a := range n.endpoints[:i] {
			if a.port != b.port || !sameHost(a.host, b.host) {
				continue
			}
			with := fmt.Sprintf("%s (%s), which is about the same host and port %d", a.rule.Name, a.rule.Pos, a.port)
			switch {
			case !slices.Equal(a.networks, b.networks):
				n.fail(b.rule.Pos, fmt.Sprintf("%s: OpenShell needs the cidrs of %s", b.rule.Name, with), "give both rules the same cidrs, or none")
			case (len(a.requests) == 0) != (len(b.requests) == 0):
				n.fail(b.rule.Pos, fmt.Sprintf("%s: OpenShell judges either all HTTP requests or none, and not those of %s", b.rule.Name, with),
					"write methods in both rules, or in none")
			case !slices.EqualFunc(a.denied, b.denied, sameRequest):
				n.fail(b.rule.Pos, fmt.Sprintf("%s: what is denied before it OpenShell also denies to %s", b.rule.Name, with),
					"write the rules that deny before both")
			}
		}
	}
}

func sameRequest(a, b Request) bool { return a.Path == b.Path && slices.Equal(a.Methods, b.Methods) }

// sameHost reports whether a request can be for both hosts.
func sameHost(a, b string) bool {
	if a == "" || b == "" || a == b {
		return true
	}
	x, manyX := strings.CutPrefix(a, "**.")
	y, manyY := strings.CutPrefix(b, "**.")
	return manyX && strings.HasSuffix(y, "."+x) || manyY && strings.HasSuffix(x, "."+y)
}

// write adds the endpoints of a rule to the result: ports with the same requests together.
func (n *networkRenderer) write(rule *policy.Rule, made []endpoint) {
	a := Access{Name: ruleName(rule.Name) + "-" + strconv.Itoa(len(n.out.Policy.Network)+1), Binaries: n.binaries(rule)}
	for _, e := range made {
		same := func(x Endpoint) bool { return x.Host == e.host && slices.EqualFunc(x.Denied, e.denied, sameRequest) }
		if at := slices.IndexFunc(a.Endpoints, same); at >= 0 {
			a.Endpoints[at].Ports = append(a.Endpoints[at].Ports, e.port)
			continue
		}
		a.Endpoints = append(a.Endpoints, Endpoint{
			Line: rule.Pos.Line, Host: e.host, Ports: []int{e.port}, Networks: e.networks, Requests: e.requests, Denied: e.denied,
		})
	}
	if len(made) == 0 {
		n.row(rule.Name, rule.Pos, "OpenShell: allows nothing that is not denied before")
		return
	}
	n.out.Policy.Network = append(n.out.Policy.Network, a)
	n.row(rule.Name, rule.Pos, "OpenShell: network_policies "+a.Name)
}

// binaries returns the programs of a rule.
func (n *networkRenderer) binaries(rule *policy.Rule) []string {
	if len(rule.Network.Binaries) == 0 {
		return []string{"/**"}
	}
	var out []string
	for _, b := range rule.Network.Binaries {
		names, literal := b.Glob.Literals()
		for _, name := range names {
			if !b.WholePath {
				name = "/**/" + name
			}
			literal = literal && plainPath().MatchString(strings.TrimPrefix(name, "/**"))
			out = append(out, name)
		}
		if !literal {
			n.fail(rule.Pos, fmt.Sprintf("%s: OpenShell may read the pattern %s of programs otherwise", rule.Name, b.Glob), "write names or paths")
		}
	}
	return out
}
