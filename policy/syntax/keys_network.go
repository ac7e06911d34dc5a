package syntax

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/glob"
)

var protocolWords = []string{"tcp", "udp"}

func networkKeys() []key[draft] {
	return append(commonKeys(policy.Allow, policy.Deny, policy.Audit, policy.Approve), []key[draft]{
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
				doc:   "HTTP methods, in capital letters. A rule that denies by method also matches a connection that is not inspected.",
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
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.selected = true
				d.rule.Network.Binaries = r.names(r.texts(n), false)
			},
		},
	}...)
}

func readMethods(r *reader, n *strictyaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Method(l.text)) {
			continue
		}
		if upper := strings.ToUpper(l.text); !policy.ValidMethod(upper) {
			r.Fail(l.node, "write one as GET or PROPFIND", "%q is no HTTP method", strictyaml.Shorten(l.text))
		} else if upper != l.text {
			r.Fail(l.node, "write "+upper, "the method %s is not in capital letters: methods have case, and no other spelling is let through",
				l.text)
		} else {
			d.rule.Network.Methods = append(d.rule.Network.Methods, l.text)
		}
	}
}

func readWebPaths(r *reader, n *strictyaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.WebPath(l.text)) {
			continue
		}
		if !strings.HasPrefix(l.text, "/") && !strings.HasPrefix(l.text, "**") {
			r.Fail(l.node, "begin it with / or **/", "pattern %q matches no path of a URL", strictyaml.Shorten(l.text))
			continue
		}
		g := r.pattern(l.node, glob.URL, l.text)
		if g == nil {
			continue
		}
		d.rule.Network.Paths = append(d.rule.Network.Paths, g)
		folded, err := foldedPatterns(g.String())
		if err != nil {
			r.Fail(
				l.node,
				"write its sets in small letters",
				"pattern %q cannot be read without regard to case: %v",
				strictyaml.Shorten(l.text),
				err,
			)
			continue
		}
		d.rule.Network.LowerPaths = append(d.rule.Network.LowerPaths, folded...)
	}
}

// foldedPatterns returns a pattern in lower case, with and without its final
// slash.
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

// readProtocols records rules for datagrams as a setting that the caller must
// enforce.
func readProtocols(r *reader, n *strictyaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if f := mistake.Port(l.text); f.Found() {
			hint := "write protocols: [tcp], and in ports " + strings.TrimPrefix(f.Hint, "write ")
			r.Fail(l.node, hint, "unknown protocol %q", strictyaml.Shorten(l.text))
			continue
		}
		i, ok := r.Word(l.node, "protocol", protocolWords)
		if !ok {
			continue
		}
		d.rule.Network.Protocols = append(d.rule.Network.Protocols, protocolWords[i])
		if protocolWords[i] == "udp" {
			d.settings = append(d.settings, policy.Setting{Key: "network_rules.protocols.udp", Pos: r.pos(l.node)})
		}
	}
}

var readNetworkRules = func(r *reader, n *strictyaml.Node, doc *document) {
	readRules(policy.GroupNetwork, networkKeys(), func(rule *policy.Rule) { rule.Network = &policy.NetworkSelector{} },
		func(r *reader, n *strictyaml.Node, d *draft) {
			if d.rule.Effect == policy.Deny {
				d.settings = nil // denied datagrams need no support
			}
			if !d.selected {
				r.Fail(n, `write domains: ["*"] to mean every destination`, "the rule selects nothing")
			}
		})(r, n, doc)
}

func readDomains(r *reader, n *strictyaml.Node, d *draft) {
	m := d.rule.Network
	d.selected, m.HasDomains = true, true
	for _, l := range r.texts(n) {
		if l.text == "*" || l.text == "**" {
			m.Any = true
			continue
		}
		text, err := expand(l.text, r.vars, glob.Quote)
		if err != nil {
			r.Fail(l.node, "", "domain %q: %v", strictyaml.Shorten(l.text), err)
			continue
		}
		if r.mistaken(l.node, mistake.Domain(text)) {
			continue
		}
		if address, ok := policy.ParseAddress(text); ok {
			m.Addresses = append(m.Addresses, netip.PrefixFrom(address, address.BitLen()))
			continue
		}
		normal, err := normalPattern(text)
		if err != nil {
			r.Fail(l.node, "", "domain %q: %v", strictyaml.Shorten(l.text), err)
			continue
		}
		g, err := glob.Compile(glob.Host, normal)
		if err != nil {
			r.Fail(l.node, "", "domain %q: %v", strictyaml.Shorten(l.text), err)
			continue
		}
		m.Domains = append(m.Domains, g)
	}
}

// normalPattern normalises the labels of a domain pattern that have no
// wildcard.
func normalPattern(pattern string) (string, error) {
	labels := strings.Split(strings.TrimSuffix(pattern, "."), ".")
	for i, label := range labels {
		if label == "" {
			return "", errors.New("a label is empty")
		}
		if strings.ContainsAny(label, `*?[]{},\`) {
			labels[i] = strings.ToLower(label)
			continue
		}
		normal, err := policy.NormalHost(label)
		if err != nil {
			return "", err
		}
		labels[i] = normal
	}
	return strings.Join(labels, "."), nil
}

func readCIDRs(r *reader, n *strictyaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		p, err := netip.ParsePrefix(l.text)
		if err != nil {
			a, err := netip.ParseAddr(l.text)
			if err != nil && r.mistaken(l.node, mistake.Network(l.text)) {
				continue
			}
			if err != nil {
				r.Fail(l.node, "write it as 10.0.0.0/8 or fd00::/8", "%q is not an address or a network", strictyaml.Shorten(l.text))
				continue
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Masked() != p {
			r.Fail(l.node, "write "+p.Masked().String(), "%s has bits set beyond its length", p)
			continue
		}
		d.rule.Network.CIDRs = append(d.rule.Network.CIDRs, p)
	}
}

func readPorts(r *reader, n *strictyaml.Node, d *draft) {
	d.selected = true
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Port(l.text)) {
			continue
		}
		low, high, isRange := strings.Cut(l.text, "-")
		if !isRange {
			high = low
		}
		a, errLow := strconv.ParseUint(low, 10, 16)
		b, errHigh := strconv.ParseUint(high, 10, 16)
		if errLow != nil || errHigh != nil || a > b {
			r.Fail(l.node, "write 443 or \"8000-8080\"", "%q is not a port or a range of ports", strictyaml.Shorten(l.text))
			continue
		}
		d.rule.Network.Ports = append(d.rule.Network.Ports, policy.PortRange{Low: uint16(a), High: uint16(b)})
	}
}
