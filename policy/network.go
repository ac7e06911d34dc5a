package policy

import (
	"net/netip"

	"agentsh/policy/glob"
)

// networkRules evaluates network requests.
type networkRules struct {
	rules   []*Rule
	domains *glob.Set
	anyHost []int32 // rules that are not indexed by a domain
	other   Effect  // where no rule matches
}

func newNetworkRules(rules []*Rule, d Defaults) networkRules {
	n := networkRules{rules: rules, other: orDeny(d.Network)}
	var domains []glob.Numbered
	for i, rule := range rules {
		m := rule.Network
		if !m.HasDomains || m.Any || len(m.Addresses) > 0 {
			n.anyHost = append(n.anyHost, int32(i))
			continue
		}
		for _, g := range m.Domains {
			domains = append(domains, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	n.domains = glob.NewSet(glob.Host, domains)
	return n
}

// NetworkSelector has the conditions of a network rule. A rule matches if all
// conditions that are set match.
type NetworkSelector struct {
	Any        bool // domains: ["*"]: every destination, including addresses
	HasDomains bool // domains is set
	Domains    []*glob.Glob
	Addresses  []netip.Prefix // addresses among the domains
	CIDRs      []netip.Prefix
	Ports      []PortRange
	Protocols  []string
	Methods    []string
	Paths      []*glob.Glob
	LowerPaths []*glob.Glob // Paths in lower case, also without a final slash; for deny rules
	Binaries   []ProgramName
}

// PortRange is an inclusive range of ports.
type PortRange struct{ Low, High uint16 }

// destination is the destination of a network request in the form that rules
// match.
type destination struct {
	*NetworkRequest
	domain string
	addr   netip.Addr // zero: not resolved yet
	web    *webPath   // of the HTTP request
}

// destination parses the destination of a request. The reason is empty unless
// the request is malformed.
func (q *NetworkRequest) destination() (destination, reason) {
	to := destination{NetworkRequest: q}
	if q.Domain != "" {
		host, err := ParseHost(q.Domain)
		if err != nil {
			return to, reason{text: "the host name is malformed"}
		}
		to.domain, to.addr = host.name, host.addr
	}
	if q.Addr.IsValid() {
		a := HostOf(q.Addr).addr
		if to.addr.IsValid() && to.addr != a {
			return to, reason{text: "the host and the address disagree"}
		}
		to.addr = a
	}
	if to.domain == "" && !to.addr.IsValid() {
		return to, reason{text: "the request names no destination"}
	}
	if to.domain == "" && (to.addr.IsLoopback() || to.addr.IsUnspecified()) {
		to.domain = "localhost" // programs find its address in the hosts file, and ask no name server
	}
	if q.Port < 0 || q.Port > 65535 {
		return to, reason{text: "the port is not known"}
	}
	return to, reason{}
}

func (n *networkRules) decide(q *NetworkRequest) (Decision, reason) {
	to, why := q.destination()
	if why.text != "" {
		return Decision{}, why
	}
	if q.Method != "" && q.Method != Intercepted {
		if !ValidMethod(q.Method) {
			return Decision{}, reason{text: "the method of the request is not a token in capital letters"}
		}
		web, ok := readPath(q.Path)
		if !ok {
			return Decision{}, reason{text: "the path of the request is malformed"}
		}
		to.web = &web
	}
	d, why := n.toward(to)
	if inner, ok := embedded(to.addr); ok {
		// A translator turns this into an IPv4 connection. The stricter of both
		// decisions applies.
		to.addr = inner
		if e, w := n.toward(to); strictness[e.Effect] < strictness[d.Effect] {
			d, why = e, w
		}
	}
	if to.web != nil && !d.Effect.Permits() {
		why.note = n.pathNote(to.web, d.Rule)
	}
	return d, why
}

// pathNote returns the reading of a path that is denied, unless it is the path
// as given.
func (n *networkRules) pathNote(web *webPath, rule *Rule) string {
	if rule != nil {
		if len(rule.Network.Paths) == 0 {
			return ""
		}
		if read, _ := rule.Network.refusesPath(web); read != "" {
			return "; a server may read the path as " + shown(read)
		}
	}
	if web.unclear {
		return "; servers do not agree on how to read the path " + shown(web.given)
	}
	for _, other := range n.rules {
		m := other.Network
		if !other.Effect.Permits() || len(m.Paths) == 0 || !m.matchesPath(web.given) {
			continue
		}
		for _, r := range web.readings {
			if !r.loose && !m.matchesPath(r.text) {
				return "; a server may read the path as " + shown(r.text)
			}
		}
	}
	return ""
}

// toward evaluates one address.
func (n *networkRules) toward(to destination) (Decision, reason) {
	at := -1
	if to.addr.IsValid() {
		at = guard(to.addr)
	}
	rules := n.rules
	accept := func(to *destination, id int32) bool {
		rule := rules[id]
		return rule.Network.matches(to, rule.Effect) &&
			(at < 0 || rule.Effect == Deny || rule.Network.names(to.addr, at, to.domain))
	}
	found := n.first(to.domain, none, func(id int32) bool { return accept(&to, id) })
	if to.domain != "localhost" && (to.addr.IsLoopback() || to.addr.IsUnspecified()) {
		own := to // another name in the hosts file lifts no rule against localhost
		own.domain = "localhost"
		found = n.first(own.domain, found, func(id int32) bool {
			return !rules[id].Effect.Permits() && accept(&own, id)
		})
	}
	if found != none {
		return Decision{Effect: rules[found].Effect, Rule: rules[found]}, reason{}
	}
	if at >= 0 {
		return Decision{}, reason{text: guarded[at].what + " addresses are refused unless a rule names them", about: to.addr.String()}
	}
	return Decision{Effect: n.other}, reason{}
}

// first returns the first rule before the given one that accept accepts. Of the rules
// that are indexed it sees those that name the domain.
func (n *networkRules) first(domain string, before int32, accept func(id int32) bool) int32 {
	for _, id := range n.anyHost {
		if id >= before {
			break
		}
		if accept(id) {
			before = id
			break
		}
	}
	if domain == "" {
		return before
	}
	return n.domains.First(domain, before, accept)
}

// matches reports whether the rule matches the destination. An unknown property
// of a request matches every deny rule and no allow rule.
func (m *NetworkSelector) matches(to *destination, effect Effect) bool {
	unknown := !effect.Permits()
	if m.HasDomains && !m.Any && !m.matchesDomain(to.domain) && !inside(m.Addresses, to.addr) {
		return false
	}
	if len(m.CIDRs) > 0 && !inside(m.CIDRs, to.addr) {
		return false
	}
	if len(m.Ports) > 0 && !m.matchesPort(to.Port) {
		return false
	}
	if len(m.Protocols) > 0 && !contains(m.Protocols, to.Protocol) && (to.Protocol != "" || !unknown) {
		return false
	}
	if len(m.Binaries) > 0 && !matchesAny(m.Binaries, to.Binary) && (to.Binary != "" || !unknown) {
		return false
	}
	return m.matchesHTTP(to, unknown)
}

func (m *NetworkSelector) matchesHTTP(to *destination, unknown bool) bool {
	if len(m.Methods) == 0 && len(m.Paths) == 0 {
		return true
	}
	if to.Method == Intercepted {
		return !unknown
	}
	if to.Method == "" {
		return unknown
	}
	if len(m.Methods) > 0 && !contains(m.Methods, to.Method) {
		return false
	}
	if len(m.Paths) == 0 {
		return true
	}
	if !unknown {
		return m.permitsPath(to.web)
	}
	_, refuses := m.refusesPath(to.web)
	return refuses
}

func (m *NetworkSelector) matchesDomain(domain string) bool {
	if domain == "" {
		return false
	}
	for _, g := range m.Domains {
		if g.Match(domain) {
			return true
		}
	}
	return false
}

// inside reports whether one of the networks contains a.
func inside(networks []netip.Prefix, a netip.Addr) bool {
	for _, c := range networks {
		if c.Contains(a) {
			return true
		}
	}
	return false
}

func (m *NetworkSelector) matchesPort(port int) bool {
	for _, r := range m.Ports {
		if int(r.Low) <= port && port <= int(r.High) {
			return true
		}
	}
	return false
}

// Way is a set of destinations that a policy may allow.
type Way struct {
	Network netip.Prefix // zero: every public address, as names may lead there
	Guarded bool         // Network is zero: addresses that are [Guarded], too
	Ports   []PortRange  // empty: all
}

// Ways returns the destinations that connections of a session may have. It is for what
// enforces addresses and ports alone, around a session: rules decide about less. names
// reports whether a session looks up names.
func (p *Policy) Ways() (ways []Way, names bool) {
	if orDeny(p.def.Defaults.Network) != Deny {
		return []Way{{Guarded: true}}, true
	}
	for _, rule := range p.def.Rules[GroupNetwork] {
		if rule.Effect == Deny {
			continue
		}
		m := rule.Network
		names = names || m.Any || len(m.Domains) > 0
		for _, n := range m.Addresses {
			ways = append(ways, Way{Network: n, Ports: m.Ports})
		}
		for _, n := range m.CIDRs {
			ways = append(ways, Way{Network: n, Ports: m.Ports})
		}
		if len(m.CIDRs) == 0 && (m.Any || len(m.Domains) > 0 || !m.HasDomains) {
			ways = append(ways, Way{Ports: m.Ports})
		}
	}
	return ways, names
}
