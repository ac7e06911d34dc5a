package policytest

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// DeniedCommands returns the names and patterns of programs in the denying
// command rules of a policy.
func DeniedCommands(p *policy.Policy) ([]string, error) {
	rules, err := denying(p, policy.GroupCommand)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rules {
		out = append(out, r.texts("commands")...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// DeniedFiles returns paths that the denying file rules of a policy match, one
// or two for each pattern.
func DeniedFiles(p *policy.Policy) ([]string, error) {
	rules, err := denying(p, policy.GroupFile)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rules {
		for _, pattern := range r.texts("paths") {
			for _, text := range bounded(globTexts(pattern), 16) {
				text = cleanPath(text)
				if text != "/" && !strings.HasSuffix(text, "/x/y") { // as good as /x
					out = append(out, text)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// DeniedHosts returns the destinations, HOST:PORT, of the denying network rules
// of a policy.
func DeniedHosts(p *policy.Policy) ([]string, error) {
	rules, err := denying(p, policy.GroupNetwork)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rules {
		var hosts []string
		for _, d := range all(r.texts("domains"), globTexts) {
			if strings.Contains(d, ".") && !strings.HasPrefix(d, ".") {
				hosts = append(hosts, d)
			}
		}
		for _, c := range r.texts("cidrs") {
			for _, q := range cidrProbes(c)[:1] {
				hosts = append(hosts, q.Host())
			}
		}
		port := 443
		for _, text := range r.texts("ports") {
			low, _, _ := strings.Cut(text, "-")
			if n, err := strconv.Atoi(low); err == nil {
				port = n
			}
		}
		for _, host := range bounded(hosts, 16) {
			out = append(out, net.JoinHostPort(host, strconv.Itoa(port)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// denying returns the rules of one group that deny, as written.
func denying(p *policy.Policy, g policy.Group) ([]writtenRule, error) {
	rules, err := written(p)
	if err != nil {
		return nil, err
	}
	var out []writtenRule
	for _, r := range rules {
		if decision := strictyaml.Value(r.node, "decision"); r.group == g && decision != nil && decision.Value == policy.Deny.String() {
			out = append(out, r)
		}
	}
	return out, nil
}
