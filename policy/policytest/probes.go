package policytest

import (
	"net/netip"
	"strconv"
	"strings"

	"agentsh/policy"
)

// Probes are requests made from the patterns of policies: for each rule,
// requests that it matches and requests that it almost matches. Two policies
// that decide all probes of both alike count as equal.
type Probes map[policy.Group][]policy.Request

// maxProbes bounds the requests of one group.
const maxProbes = 50_000

// NewProbes makes the probes of some policies.
func NewProbes(policies ...*policy.Policy) (Probes, error) {
	var rules []writtenRule
	for _, p := range policies {
		more, err := written(p)
		if err != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	by := map[policy.Group][]writtenRule{}
	for _, r := range rules {
		by[r.group] = append(by[r.group], r)
	}
	return Probes{
		policy.GroupCommand:    commandProbes(by[policy.GroupCommand]),
		policy.GroupFile:       fileProbes(by[policy.GroupFile]),
		policy.GroupNetwork:    networkProbes(by[policy.GroupNetwork]),
		policy.GroupUnixSocket: unixProbes(by[policy.GroupUnixSocket]),
		policy.GroupSignal:     signalProbes(by[policy.GroupSignal]),
	}, nil
}

// commandProbes pairs every program with the arguments of its own rules, then
// with those of every other rule, and varies who asks.
func commandProbes(rules []writtenRule) []policy.Request {
	names := []string{"some-other-program"}
	arguments := [][]string{nil, {"some-argument"}}
	var who callers
	var out []policy.Request
	for _, r := range rules {
		own := programs(all(r.texts("commands"), globTexts))
		lists := argumentLists(r)
		for _, name := range own {
			for _, args := range lists {
				out = append(out, Command(append([]string{name}, args...)))
			}
		}
		names = append(names, own...)
		arguments = append(arguments, lists...)
		who.add(r)
	}
	names, arguments = bounded(names, 5000), uniqueLists(arguments)
	for _, name := range names {
		out = append(out, who.probes(name)...)
	}
	for _, args := range arguments {
		for _, name := range names {
			if len(out) >= maxProbes {
				return out
			}
			out = append(out, Command(append([]string{name}, args...)))
		}
	}
	return out
}

// programs removes the texts that are not names of programs.
func programs(texts []string) []string {
	var out []string
	for _, s := range texts {
		if s != "" && !strings.HasSuffix(s, "/") {
			out = append(out, s)
		}
	}
	return out
}

// argumentLists returns argument lists that a rule matches and some that it
// does not.
func argumentLists(r writtenRule) [][]string {
	lists := wordTexts(r.texts("args"))
	for _, text := range all(r.texts("args_patterns"), regexTexts) {
		lists = append(lists, strings.Fields(text))
	}
	return lists
}

// callers are the conditions of rules on the caller.
type callers struct {
	parents, cwds []string
	depths        []int
}

func (c *callers) add(r writtenRule) {
	c.parents = append(c.parents, all(r.texts("when", "parent"), globTexts)...)
	c.parents = append(c.parents, all(r.texts("when", "ancestor"), globTexts)...)
	c.cwds = append(c.cwds, all(r.texts("when", "cwd"), globTexts)...)
	for _, text := range append(r.texts("context", "min_depth"), r.texts("context", "max_depth")...) {
		if n, err := strconv.Atoi(text); err == nil {
			c.depths = append(c.depths, n, n+1)
		}
	}
}

// probes are a program asked for in different ways.
func (c *callers) probes(name string) []policy.Request {
	var out []policy.Request
	for _, parent := range bounded(append([]string{"/usr/bin/bash"}, c.parents...), 20) {
		for _, depth := range append([]int{1, 4}, c.depths[:min(len(c.depths), 20)]...) {
			out = append(out, nested(name, parent, depth))
		}
	}
	for _, cwd := range bounded(append([]string{"/"}, c.cwds...), 20) {
		q := Command([]string{name})
		q.Cwd, q.Interactive = cwd, true
		out = append(out, q)
	}
	return out
}

// nested requests a program that another one starts.
func nested(name, caller string, depth int) policy.Request {
	c := Command([]string{name})
	if !strings.Contains(caller, "/") {
		caller = "/usr/bin/" + caller
	}
	c.Parent, c.Depth, c.Ancestors = caller, depth, []string{caller}
	return c
}

func uniqueLists(lists [][]string) [][]string {
	seen := map[string]bool{}
	var out [][]string
	for _, l := range lists {
		key := strings.Join(l, "\x00")
		if !seen[key] && len(out) < 400 {
			seen[key] = true
			out = append(out, l)
		}
	}
	return out
}

// wordTexts are argument lists for a list of word patterns.
func wordTexts(words []string) [][]string {
	if len(words) == 0 {
		return nil
	}
	lists := [][]string{nil}
	for _, w := range words {
		var choices [][]string
		if w == "**" {
			choices = [][]string{nil, {"x"}, {"x", "y"}}
		} else {
			for _, alternative := range strings.Split(w, "|") {
				if name, values, ok := strings.Cut(alternative, "=!"); ok {
					choices = append(choices, []string{name, "some-other-value"}, []string{name, globTexts(values)[0]})
					continue
				}
				for _, text := range bounded(globTexts(alternative), 4) {
					choices = append(choices, []string{text})
				}
			}
		}
		var next [][]string
		for _, l := range lists {
			for _, c := range choices {
				next = append(next, append(append([]string(nil), l...), c...))
			}
		}
		lists = next[:min(len(next), 64)]
	}
	return append(lists, words[:len(words)-1])
}

func fileProbes(rules []writtenRule) []policy.Request {
	paths := []string{"/", "/some-other-file"}
	for _, r := range rules {
		for _, text := range all(r.texts("paths"), globTexts) {
			paths = append(paths, cleanPath(text), cleanPath(text+"-other"))
		}
	}
	var out []policy.Request
	for _, p := range bounded(paths, maxProbes/17) {
		for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
			out = append(out, &policy.FileRequest{Path: p, Op: op})
		}
	}
	return out
}

// cleanPath makes the text of a pattern a path a kernel could report.
func cleanPath(s string) string {
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	if !strings.HasPrefix(s, "/") {
		s = "/" + s
	}
	if len(s) > 1 {
		s = strings.TrimSuffix(s, "/")
	}
	return s
}

func networkProbes(rules []writtenRule) []policy.Request {
	hosts := []policy.NetworkRequest{{Domain: "some-other.example", Port: 443}}
	for _, a := range []string{"203.0.113.77", "127.0.0.1", "169.254.169.254", "2001:db8::7"} {
		hosts = append(hosts, policy.NetworkRequest{Addr: netip.MustParseAddr(a)})
	}
	ports := []int{1, 80, 443, 50000}
	methods, paths, binaries := []string{"", "GET"}, []string{"", "/"}, []string{"", "/usr/bin/curl"}
	for _, r := range rules {
		for _, d := range all(r.texts("domains"), globTexts) {
			if d != "" {
				hosts = append(hosts, policy.NetworkRequest{Domain: strings.ToLower(d)})
			}
		}
		for _, c := range r.texts("cidrs") {
			hosts = append(hosts, cidrProbes(c)...)
		}
		ports = append(ports, portTexts(r.texts("ports"))...)
		methods = append(methods, r.texts("methods")...)
		paths = append(paths, all(r.texts("paths"), globTexts)...)
		for _, b := range all(r.texts("binaries"), globTexts) {
			binaries = append(binaries, Command([]string{b}).Path)
		}
	}
	methods, paths, binaries = bounded(methods, 6), bounded(paths, 12), bounded(binaries, 12)
	var out []policy.Request
	for _, h := range hosts {
		for _, port := range uniquePorts(ports) {
			for _, protocol := range []string{"tcp", "udp"} {
				q := h
				q.Port, q.Protocol = port, protocol
				out = append(out, &q)
			}
		}
		for _, m := range methods {
			for _, p := range paths {
				for _, b := range binaries {
					out = append(out, &policy.NetworkRequest{
						Domain: h.Domain, Addr: h.Addr, Port: 443, Protocol: "tcp", Method: m, Path: p, Binary: b,
					})
				}
			}
		}
		if len(out) > maxProbes {
			break
		}
	}
	return out
}

// cidrProbes are the first address of a network, its last, and the next one.
func cidrProbes(cidr string) []policy.NetworkRequest {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		addr, err := netip.ParseAddr(cidr)
		if err != nil {
			return nil
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	first := prefix.Masked().Addr()
	bytes := first.AsSlice()
	for bit := prefix.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	out := []policy.NetworkRequest{{Addr: first}, {Addr: last}}
	for _, beside := range []netip.Addr{first.Prev(), last.Next()} {
		if beside.IsValid() {
			out = append(out, policy.NetworkRequest{Addr: beside})
		}
	}
	return out
}

// portTexts are the ends of port ranges and their neighbours.
func portTexts(ports []string) []int {
	var out []int
	for _, text := range ports {
		low, high, _ := strings.Cut(text, "-")
		for _, s := range []string{low, high} {
			if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
				out = append(out, n-1, n, n+1)
			}
		}
	}
	return out
}

func uniquePorts(ports []int) []int {
	seen := map[int]bool{}
	var out []int
	for _, p := range ports {
		if p > 0 && p < 65536 && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

// unixOps are the operations on Unix sockets.
var unixOps = []string{"connect", "bind", "listen", "sendto"}

func unixProbes(rules []writtenRule) []policy.Request {
	paths := []string{"/some-other.sock", "@some-other"}
	for _, r := range rules {
		for _, text := range all(r.texts("paths"), globTexts) {
			if !strings.HasPrefix(text, "@") {
				text = cleanPath(text)
			}
			paths = append(paths, text, text+"-other")
		}
	}
	var out []policy.Request
	for _, p := range bounded(paths, maxProbes/4) {
		for _, op := range unixOps {
			out = append(out, &policy.UnixSocketRequest{Path: p, Op: op})
		}
	}
	return out
}

// signalTargets are the relations a target can have to the sender.
var signalTargets = []string{"self", "children", "descendants", "siblings", "session", "parent", "external", "system"}

func signalProbes(rules []writtenRule) []policy.Request {
	names, pids := []string{"", "some-other-program"}, []int{1, 2, 1000}
	for _, r := range rules {
		names = append(names, all(r.texts("target", "pattern"), globTexts)...)
		for _, text := range append(r.texts("target", "min"), r.texts("target", "max")...) {
			if n, err := strconv.Atoi(text); err == nil {
				pids = append(pids, n-1, n, n+1)
			}
		}
	}
	names = bounded(names, 20)
	pids = pids[:min(len(pids), 20)]
	var out []policy.Request
	for signal := 0; signal <= 64; signal++ {
		for _, target := range signalTargets {
			out = append(out, &policy.SignalRequest{Signal: signal, Target: target, PID: 1000})
		}
	}
	for _, signal := range []int{0, 9, 15, 19} {
		for _, target := range signalTargets {
			for _, name := range names {
				for _, pid := range pids {
					out = append(out, &policy.SignalRequest{Signal: signal, Target: target, PID: pid, Name: name})
				}
			}
		}
	}
	return out
}
