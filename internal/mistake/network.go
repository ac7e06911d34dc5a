package mistake

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"agentsh/internal/lazy"
)

// services are the ports that people write by name.
var services = map[string]int{
	"ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "dns": 53, "domain": 53, "http": 80, "ws": 80, "https": 443, "wss": 443, "git": 9418,
	"ldap": 389, "mysql": 3306, "postgres": 5432, "postgresql": 5432, "redis": 6379, "mongodb": 27017, "amqp": 5672,
}

var digits = lazy.Regexp(`^[0-9]+$`)

// Domain finds mistakes in a host name or a glob of host names.
func Domain(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if m := scheme().FindStringSubmatch(text); m != nil {
		return Finding{shown(text) + " is a URL, not a host name", hostHint(strings.ToLower(m[1]), text[len(m[0]):])}
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return Finding{shown(text) + " is a network, not a host name", "write cidrs: [\"" + p.Masked().String() + "\"]"}
	}
	if list := split(text, ",|; "); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + listed(list)}
	}
	switch {
	case strings.Contains(text, "@"):
		_, host, _ := strings.Cut(text, "@")
		host, _, _ = strings.Cut(host, ":")
		return Finding{shown(text) + " names a user, and a host name does not", hostHint("", host)}
	case strings.HasPrefix(text, "//"), unescaped(text, "/") > 0:
		return Finding{shown(text) + " has a path, and a host name has none", hostHint("", strings.TrimPrefix(text, "//"))}
	case hasPort(text):
		return Finding{shown(text) + " has a port, and a host name has none", hostHint("", text)}
	case bareVariable().MatchString(text):
		return Finding{shown(text) + ": a variable has braces", "write " + quoted(bareVariable().ReplaceAllString(text, "${$1}"))}
	case expression().MatchString(text):
		return Finding{shown(text) + " is a regular expression, and names of hosts are globs", "write " + quoted(plainExpression(text))}
	case strings.HasPrefix(text, "!"):
		return Finding{"an entry cannot be negated with !", "write a rule for " + text[1:] + " before this one"}
	case strings.HasPrefix(text, ".") && len(text) > 1:
		return Finding{shown(text) + " begins with a dot", "write " + quoted("*"+text) + " for every name below " + text[1:]}
	}
	return Finding{}
}

// hasPort reports a colon that is not part of an IPv6 address.
func hasPort(text string) bool {
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return false
	}
	return unescaped(text, ":") >= 0
}

// hostHint says how the parts of HOST[:PORT][/PATH] are written.
func hostHint(protocol, rest string) string {
	rest, _, _ = strings.Cut(rest, "?")
	rest, _, _ = strings.Cut(rest, "#")
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(host, "@"); at >= 0 {
		host = host[at+1:]
	}
	port := ""
	if name, number, err := net.SplitHostPort(host); err == nil {
		host, port = name, number
	}
	if n := services[protocol]; port == "" && n > 0 {
		port = strconv.Itoa(n)
	}
	if host == "" {
		return "write the name of a host"
	}
	hint := "write domains: " + listed([]string{strings.Trim(host, "[]")})
	if digits().MatchString(port) {
		hint += " and ports: [" + port + "]"
	}
	if path != "" && path != "*" && path != "**" {
		if unsafe, err := url.PathUnescape(path); err == nil {
			path = unsafe
		}
		hint += " and paths: " + listed([]string{"/" + strings.TrimSuffix(path, "/")})
	}
	return hint
}

// Network finds mistakes in an address or a network.
func Network(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	wrong := shown(text) + " is not an address or a network"
	if m := scheme().FindStringSubmatch(text); m != nil {
		return Finding{wrong, hostHint(strings.ToLower(m[1]), text[len(m[0]):])}
	}
	if list := split(text, ",; "); len(list) > 1 {
		return Finding{wrong, "write " + listed(list)}
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return Finding{wrong, "write cidrs: [\"" + a.Addr().String() + "\"] and ports: [" + strconv.Itoa(int(a.Port())) + "]"}
	}
	if address, mask, ok := strings.Cut(text, "/"); ok {
		m := net.ParseIP(mask).To4()
		a, err := netip.ParseAddr(address)
		if ones, bits := net.IPMask(m).Size(); m != nil && err == nil && bits == 32 {
			return Finding{wrong, "write " + netip.PrefixFrom(a, ones).Masked().String()}
		}
	}
	if strings.Trim(text, "0123456789.*") == "" && strings.Contains(text, "*") {
		if parts := strings.Split(strings.TrimRight(text, ".*"), "."); len(parts) < 4 && parts[0] != "" {
			network := strings.Join(append(parts, []string{"0", "0", "0"}[:4-len(parts)]...), ".")
			return Finding{wrong, "write " + network + "/" + strconv.Itoa(8*len(parts))}
		}
	}
	if low, high, ok := strings.Cut(text, "-"); ok && net.ParseIP(low) != nil && net.ParseIP(high) != nil {
		return Finding{wrong, "write the networks that the range consists of"}
	}
	if strings.Trim(text, "0123456789.:/") != "" && !strings.Contains(text, "/") && strings.Contains(text, ".") {
		return Finding{wrong, hostHint("", text)}
	}
	return Finding{}
}

// Port finds mistakes in a port or a range of ports.
func Port(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	wrong := shown(text) + " is not a port or a range of ports"
	if n := services[strings.ToLower(text)]; n > 0 {
		return Finding{wrong, "write " + strconv.Itoa(n)}
	}
	number, protocol, slash := strings.Cut(text, "/")
	low, high, colon := strings.Cut(text, ":")
	dots, until, dotted := strings.Cut(text, "..")
	list := split(text, ",; ")
	switch {
	case text == "*" || text == "all" || text == "any":
		return Finding{wrong, "leave ports out to mean every port"}
	case text == "0":
		return Finding{"0 is no port", "leave ports out to mean every port"}
	case slash && digits().MatchString(number) && (protocol == "tcp" || protocol == "udp"):
		return Finding{wrong, "write ports: [" + number + "] and protocols: [" + protocol + "]"}
	case colon && low == "" && digits().MatchString(high):
		return Finding{wrong, "write " + high}
	case colon && digits().MatchString(low) && digits().MatchString(high):
		return Finding{wrong, `write "` + low + "-" + high + `"`}
	case dotted && digits().MatchString(dots) && digits().MatchString(strings.TrimPrefix(until, ".")):
		return Finding{wrong, `write "` + dots + "-" + strings.TrimPrefix(until, ".") + `"`}
	case len(list) > 1:
		return Finding{wrong, "write [" + strings.Join(list, ", ") + "]"}
	case colon:
		if _, port, err := net.SplitHostPort(text); err == nil && digits().MatchString(port) {
			return Finding{wrong, hostHint("", text)}
		}
	}
	return Finding{}
}

// Destination finds mistakes in HOST:PORT, the form of command lines.
func Destination(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	wrong := shown(text) + " is not HOST:PORT"
	if m := scheme().FindStringSubmatch(text); m != nil {
		host, _, _ := strings.Cut(text[len(m[0]):], "/")
		if _, _, err := net.SplitHostPort(host); err != nil {
			if n := services[strings.ToLower(m[1])]; n > 0 {
				host += ":" + strconv.Itoa(n)
			} else {
				host += ":PORT"
			}
		}
		return Finding{wrong, "write " + host}
	}
	if _, _, err := net.SplitHostPort(text); err != nil {
		host, _, _ := strings.Cut(text, "/")
		if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
			host = "[" + host + "]"
		}
		return Finding{wrong, "write " + host + ":443"}
	}
	return Finding{}
}

// Signal finds mistakes in the name of a signal.
func Signal(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if list := split(text, ",; |"); len(list) > 1 {
		if list[0] == "kill" {
			list = list[1:]
		}
		for i := range list {
			list[i] = strings.TrimPrefix(list[i], "-")
		}
		return Finding{"unknown signal " + shown(text), "write [" + strings.Join(list, ", ") + "]"}
	}
	if rest, ok := strings.CutPrefix(text, "-"); ok && rest != "" {
		return Finding{"unknown signal " + shown(text), "write " + rest}
	}
	if text == "*" || text == "all" {
		return Finding{"unknown signal " + shown(text), `write "@all"`}
	}
	return Finding{}
}

// Method finds mistakes in an HTTP method.
func Method(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if list := split(text, ",|; "); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + strings.ToUpper(listed(list))}
	}
	if text == "*" {
		return Finding{"methods are not globs", "leave methods out to mean every method"}
	}
	return Finding{}
}

var query = lazy.Regexp(`\?[A-Za-z0-9_]+=`)

// WebPath finds mistakes in a glob of the paths of URLs.
func WebPath(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if m := scheme().FindStringSubmatch(text); m != nil {
		return Finding{shown(text) + " is a URL, not its path", hostHint(strings.ToLower(m[1]), text[len(m[0]):])}
	}
	if at := query().FindStringIndex(text); at != nil {
		return Finding{shown(text) + " has a query, which is not part of the path", "write " + quoted(text[:at[0]])}
	}
	if list := splitPaths(text); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + listed(list)}
	}
	return Finding{}
}

// Socket finds mistakes in the name of a Unix socket.
func Socket(text string) Finding {
	if text == "*" || text == "**" {
		return Finding{}
	}
	for _, zero := range []string{`\0`, `\x00`} {
		if rest, ok := strings.CutPrefix(text, zero); ok {
			return Finding{shown(text) + " is an abstract socket", `write "@` + rest + `"`}
		}
	}
	if strings.HasPrefix(text, "@") {
		return Around(text)
	}
	return Path(text)
}

// Host finds mistakes in a host name that is no glob.
func Host(text string) Finding {
	return Domain(text).One()
}

// One is a finding about a key that takes one destination instead of a list.
func (f Finding) One() Finding {
	f.Hint = one.Replace(f.Hint)
	return f
}

// one names the keys of a single destination.
var one = strings.NewReplacer("domains: ", "domain: ", "cidrs: ", "address: ", "ports: ", "port: ", "paths: ", "path: ", "[", "", "]", "")
