package policy

import (
	"net/netip"
)

// Evaluate decides one request. It is pure and safe for concurrent use; a
// decision that permits allocates nothing unless a rule looks at joined
// arguments. A request that cannot be understood is denied.
func (p *Policy) Evaluate(r Request) (Decision, Diagnostic) {
	var d Decision
	var why reason
	switch r := r.(type) {
	case *CommandRequest:
		d, why = p.command(r)
	case *FileRequest:
		d, why = p.file(r)
	case *NetworkRequest:
		d, why = p.network(r)
	case *UnixSocketRequest:
		d, why = p.socket(r)
	case *SignalRequest:
		d, why = p.signal(r)
	default:
		return Decision{}, Diagnostic{Rule: "default", Message: "the request is of no known kind"}
	}
	if d.Permits() && d.Rule != nil {
		g := Diagnostic{Rule: d.Rule.Name, Pos: d.Rule.Pos, Message: d.Rule.Message}
		if len(d.Rule.message) > 1 {
			g.Message = d.Rule.message.render(r, d.Rule.Name)
		}
		return d, g
	}
	if d.Permits() {
		return d, Diagnostic{Rule: "default"}
	}
	return d, p.explain(r, d, why)
}

// reason is why a request was denied when it is not the rule's own words: a
// sentence, or empty. about is the program or address it is about.
type reason struct {
	text  string
	about string
	note  string // added to the message
}

// fallback is the decision when no rule matches.
func (p *Policy) fallback(which int) Decision {
	if e := p.defaults[which]; e != nil {
		return Decision{Effect: *e}
	}
	return Decision{Effect: Deny}
}

func (p *Policy) file(q *FileRequest) (Decision, reason) {
	if !cleanPath(q.Path) {
		return Decision{}, reason{text: "the path is not absolute and resolved"}
	}
	if q.Op == 0 || q.Op&(q.Op-1) != 0 || q.Op&OpAll == 0 {
		return Decision{}, reason{text: "the operation is not known"}
	}
	if rule := p.fileRule(q.Path, q.Op); rule != nil {
		return Decision{Effect: rule.Effect, Rule: rule}, reason{}
	}
	if q.Op&fileReads != 0 {
		return p.fallback(defaultFileRead), reason{}
	}
	return p.fallback(defaultFileWrite), reason{}
}

// cleanPath reports whether a path is absolute and in its shortest form. It is
// path.Clean without the allocation.
func cleanPath(s string) bool {
	if s == "" || s[0] != '/' {
		return false
	}
	if s == "/" {
		return true
	}
	for start := 1; ; {
		end := start
		for end < len(s) && s[end] != '/' {
			if s[end] == 0 {
				return false
			}
			end++
		}
		switch s[start:end] {
		case "", ".", "..":
			return false
		}
		if end == len(s) {
			return true
		}
		start = end + 1
	}
}

func (p *Policy) socket(q *UnixSocketRequest) (Decision, reason) {
	if !cleanPath(q.Path) && (q.Path == "" || q.Path[0] != '@') {
		return Decision{}, reason{text: "the socket's path is not absolute and resolved"}
	}
	rules := p.groups[GroupUnixSocket].rules
	among := p.sockets
	if q.Path[0] == '@' {
		among = p.abstract
	}
	id := among.First(q.Path, none, func(id int32) bool { return rules[id].socket.governs(q.Op, rules[id].Effect) })
	if id != none {
		return Decision{Effect: rules[id].Effect, Rule: rules[id]}, reason{}
	}
	return p.fallback(defaultUnixSocket), reason{}
}

func (p *Policy) signal(q *SignalRequest) (Decision, reason) {
	if q.Signal < 0 || q.Signal > maxSignal {
		return Decision{}, reason{text: "the signal is not known"}
	}
	if _, known := covers[q.Target]; !known {
		return Decision{}, reason{text: "the target is not known"}
	}
	for _, rule := range p.groups[GroupSignal].rules {
		if rule.signal.matches(q) {
			return Decision{Effect: rule.Effect, Rule: rule}, reason{}
		}
	}
	return p.fallback(defaultSignal), reason{}
}

// destination is a network request in the form rules are matched on.
type destination struct {
	*NetworkRequest
	domain string
	addr   netip.Addr // zero: not resolved yet
	web    *webPath   // of the HTTP request
}

// destination reads what a request is about; the reason is empty unless it is
// malformed.
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
	if q.Port < 0 || q.Port > 65535 {
		return to, reason{text: "the port is not known"}
	}
	return to, reason{}
}

func (p *Policy) network(q *NetworkRequest) (Decision, reason) {
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
	d, why := p.toward(to)
	if inner, ok := embedded(to.addr); ok {
		// A translator on the way makes an IPv4 connection of it: the
		// stricter of both answers holds.
		to.addr = inner
		if e, w := p.toward(to); strictness[e.Effect] < strictness[d.Effect] {
			d, why = e, w
		}
	}
	if to.web != nil && !d.Effect.permits() {
		why.note = p.pathNote(to.web, d.Rule)
	}
	return d, why
}

// pathNote says which reading of a path a refusal is about, where that is not
// the path as it was given.
func (p *Policy) pathNote(web *webPath, rule *Rule) string {
	if rule != nil {
		if len(rule.network.paths) == 0 {
			return ""
		}
		if read, _ := rule.network.refusesPath(web); read != "" {
			return "; a server may read the path as " + shown(read)
		}
	}
	if web.unclear {
		return "; servers do not agree on how to read the path " + shown(web.given)
	}
	for _, other := range p.groups[GroupNetwork].rules {
		m := other.network
		if !other.Effect.permits() || len(m.paths) == 0 || !m.matchesPath(web.given) {
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

// toward decides for one address.
func (p *Policy) toward(to destination) (Decision, reason) {
	at := -1
	if to.addr.IsValid() {
		at = guard(to.addr)
	}
	rules := p.groups[GroupNetwork].rules
	accept := func(id int32) bool {
		rule := rules[id]
		return rule.network.matches(&to, rule.Effect) &&
			(at < 0 || rule.Effect == Deny || rule.network.names(to.addr, at, to.domain))
	}
	found := none
	for _, id := range p.anyHost {
		if accept(id) {
			found = id
			break
		}
	}
	if to.domain != "" {
		found = p.domains.First(to.domain, found, accept)
	}
	if found != none {
		return Decision{Effect: rules[found].Effect, Rule: rules[found]}, reason{}
	}
	if at >= 0 {
		return Decision{}, reason{text: guarded[at].what + " addresses are refused unless a rule names them", about: to.addr.String()}
	}
	return p.fallback(defaultNetwork), reason{}
}

// matches reports whether the rule is about the destination. What is not known
// of a request matches rules that refuse and none that permits.
func (m *networkMatch) matches(to *destination, effect Effect) bool {
	unknown := !effect.permits()
	if m.hosts && !m.any && !m.matchesDomain(to.domain) && !inside(m.addresses, to.addr) {
		return false
	}
	if len(m.cidrs) > 0 && !inside(m.cidrs, to.addr) {
		return false
	}
	if len(m.ports) > 0 && !m.matchesPort(to.Port) {
		return false
	}
	if len(m.protocols) > 0 && !contains(m.protocols, to.Protocol) && (to.Protocol != "" || !unknown) {
		return false
	}
	if len(m.binaries) > 0 && !matchesAny(m.binaries, to.Binary) && (to.Binary != "" || !unknown) {
		return false
	}
	return m.matchesHTTP(to, unknown)
}

func (m *networkMatch) matchesHTTP(to *destination, unknown bool) bool {
	if len(m.methods) == 0 && len(m.paths) == 0 {
		return true
	}
	if to.Method == Intercepted {
		return !unknown
	}
	if to.Method == "" {
		return unknown
	}
	if len(m.methods) > 0 && !contains(m.methods, to.Method) {
		return false
	}
	if len(m.paths) == 0 {
		return true
	}
	if !unknown {
		return m.permitsPath(to.web)
	}
	_, refuses := m.refusesPath(to.web)
	return refuses
}

func (m *networkMatch) matchesDomain(domain string) bool {
	if domain == "" {
		return false
	}
	for _, g := range m.domains {
		if g.Match(domain) {
			return true
		}
	}
	return false
}

// inside reports whether one of the networks holds a.
func inside(networks []netip.Prefix, a netip.Addr) bool {
	for _, c := range networks {
		if c.Contains(a) {
			return true
		}
	}
	return false
}

func (m *networkMatch) matchesPort(port int) bool {
	for _, r := range m.ports {
		if int(r.low) <= port && port <= int(r.high) {
			return true
		}
	}
	return false
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
