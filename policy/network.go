package policy

import (
	"net/netip"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy/glob"
)

// networkMatch is what a network rule selects; every selector given must
// match.
type networkMatch struct {
	any       bool // domains: ["*"]: every destination, addresses included
	hosts     bool // domains is given
	domains   []*glob.Glob
	addresses []netip.Prefix // addresses among the domains
	cidrs     []netip.Prefix
	ports     []portRange
	protocols []string
	methods   []string
	paths     []*glob.Glob
	folded    []*glob.Glob // paths in lower case
	binaries  []nameEntry
}

type portRange struct{ low, high uint16 }

var protocolWords = []string{"tcp", "udp"}

func networkKeys() []key[draft] {
	return append(commonKeys(Allow, Deny, Audit, Approve), []key[draft]{
		{
			field{name: "domains", doc: "Host names; *.example.com is every name below it, * is every destination.", shape: listOf(shape{})},
			readDomains,
		},
		{field{name: "cidrs", doc: "Addresses or networks.", shape: listOf(shape{})}, readCIDRs},
		{field{name: "ports", doc: "Ports, or ranges as \"8000-8080\".", shape: listOf(shape{kind: shapeInt, others: []shape{{}}})}, readPorts},
		{
			field{name: "protocols", doc: "tcp or udp; a session refuses udp in a rule that permits.", shape: listOf(shape{words: protocolWords})},
			readProtocols,
		},
		{
			field{
				name:  "methods",
				doc:   "HTTP methods, in capital letters. A rule that denies by method also matches a connection whose requests nobody looks into.",
				shape: listOf(shape{}),
			},
			readMethods,
		},
		{
			field{
				name:  "paths",
				doc:   "Globs of the paths of HTTP requests. A rule that denies matches each way in which servers read a path.",
				shape: listOf(shape{}),
			},
			readWebPaths,
		},
		{
			field{name: "binaries", doc: "Names or paths of the programs that connect.", shape: listOf(shape{})},
			func(r *reader, n *yaml.Node, d *draft) {
				d.selected = true
				d.rule.network.binaries = r.names(r.texts(n))
			},
		},
	}...)
}

func readMethods(r *reader, n *yaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if upper := strings.ToUpper(l.text); !ValidMethod(upper) {
			r.fail(l.node, "write one as GET or PROPFIND", "%q is no HTTP method", shorten(l.text))
		} else if upper != l.text {
			r.fail(l.node, "write "+upper, "the method %s is not in capital letters: methods have case, and no other spelling is let through",
				l.text)
		} else {
			d.rule.network.methods = append(d.rule.network.methods, l.text)
		}
	}
}

func readWebPaths(r *reader, n *yaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if !strings.HasPrefix(l.text, "/") && !strings.HasPrefix(l.text, "**") {
			r.fail(l.node, "begin it with / or **/", "pattern %q matches no path of a URL", shorten(l.text))
			continue
		}
		g := r.pattern(l.node, glob.URL, l.text)
		if g == nil {
			continue
		}
		d.rule.network.paths = append(d.rule.network.paths, g)
		folded, err := foldedPatterns(g.String())
		if err != nil {
			r.fail(l.node, "write its sets in small letters", "pattern %q cannot be read without regard to case: %v", shorten(l.text), err)
			continue
		}
		d.rule.network.folded = append(d.rule.network.folded, folded...)
	}
}

// foldedPatterns are a pattern in lower case, with and without its slash at the
// end.
func foldedPatterns(pattern string) ([]*glob.Glob, error) {
	lower := strings.ToLower(pattern)
	g, err := glob.Compile(glob.URL, lower)
	if err != nil {
		return nil, err
	}
	out := []*glob.Glob{g}
	if stem, ok := strings.CutSuffix(lower, "/"); ok && stem != "" && !strings.HasSuffix(stem, `\`) {
		if g, err = glob.Compile(glob.URL, stem); err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// readProtocols notes where datagrams are named, as a setting that somebody must
// carry out.
func readProtocols(r *reader, n *yaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		i, ok := r.word(l.node, "protocol", protocolWords)
		if !ok {
			continue
		}
		d.rule.network.protocols = append(d.rule.network.protocols, protocolWords[i])
		if protocolWords[i] == "udp" {
			d.settings = append(d.settings, Setting{Key: "network_rules.protocols.udp", Pos: r.pos(l.node)})
		}
	}
}

var readNetworkRules = func(r *reader, n *yaml.Node, doc *document) {
	readRules(GroupNetwork, networkKeys(), func(rule *Rule) { rule.network = &networkMatch{} },
		func(r *reader, n *yaml.Node, d *draft) {
			if d.rule.Effect == Deny {
				d.settings = nil // datagrams that are denied need nobody to carry them
			}
			if !d.selected {
				r.fail(n, `write domains: ["*"] to mean every destination`, "the rule selects nothing")
			}
		})(r, n, doc)
}

func readDomains(r *reader, n *yaml.Node, d *draft) {
	m := d.rule.network
	d.selected, m.hosts = true, true
	for _, l := range r.texts(n) {
		if l.text == "*" || l.text == "**" {
			m.any = true
			continue
		}
		text, err := expand(l.text, r.vars, glob.Quote)
		if err != nil {
			r.fail(l.node, "", "domain %q: %v", shorten(l.text), err)
			continue
		}
		if address, ok := ParseAddress(text); ok {
			m.addresses = append(m.addresses, netip.PrefixFrom(address, address.BitLen()))
			continue
		}
		normal, err := normalPattern(text)
		if err != nil {
			r.fail(l.node, "", "domain %q: %v", shorten(l.text), err)
			continue
		}
		g, err := glob.Compile(glob.Host, normal)
		if err != nil {
			r.fail(l.node, "", "domain %q: %v", shorten(l.text), err)
			continue
		}
		m.domains = append(m.domains, g)
	}
}

func readCIDRs(r *reader, n *yaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		p, err := netip.ParsePrefix(l.text)
		if err != nil {
			a, err := netip.ParseAddr(l.text)
			if err != nil {
				r.fail(l.node, "write it as 10.0.0.0/8 or fd00::/8", "%q is not an address or a network", shorten(l.text))
				continue
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Masked() != p {
			r.fail(l.node, "write "+p.Masked().String(), "%s has bits set beyond its length", p)
			continue
		}
		d.rule.network.cidrs = append(d.rule.network.cidrs, p)
	}
}

func readPorts(r *reader, n *yaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		low, high, isRange := strings.Cut(l.text, "-")
		if !isRange {
			high = low
		}
		a, errLow := strconv.ParseUint(low, 10, 16)
		b, errHigh := strconv.ParseUint(high, 10, 16)
		if errLow != nil || errHigh != nil || a > b {
			r.fail(l.node, "write 443 or \"8000-8080\"", "%q is not a port or a range of ports", shorten(l.text))
			continue
		}
		d.rule.network.ports = append(d.rule.network.ports, portRange{uint16(a), uint16(b)})
	}
}
