package scan

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kinds of hosts that are not of the public network.
const (
	hostPublic   = ""
	hostMetadata = "metadata service of a cloud"
	hostLoopback = "this machine"
	hostLocal    = "link-local address"
	hostPrivate  = "private network"
	hostSpecial  = "address of no public host"
)

// Host is the target of a URL.
type Host struct {
	Scheme string     // small letters
	Name   string     // as it will be resolved: small letters, no user, port, brackets or last dot
	Addr   netip.Addr // when the name is an address in any spelling
	Kind   string     // what kind of internal host it is; empty: none
	Odd    string     // how the spelling disguises the host; empty: it does not
}

// ParseHost reads the host of a URL as lenient clients do: an address may have
// one to four decimal, octal or hexadecimal parts. It returns an error if there
// is no host.
func ParseHost(raw string) (Host, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(raw), ":")
	if !ok || scheme == "" || strings.ContainsAny(scheme, "/?#@ ") {
		return Host{}, fmt.Errorf("url %.200q has no scheme", raw)
	}
	h := Host{Scheme: strings.ToLower(scheme)}
	authority := strings.TrimLeft(rest, `/\`)
	if i := strings.IndexAny(authority, `/\?#`); i >= 0 {
		authority = authority[:i]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		if user := authority[:i]; strings.Contains(user, ".") && !strings.Contains(user, ":") {
			h.Odd = "a user name that looks like a host"
		}
		authority = authority[i+1:]
	}
	h.Name = authority
	if strings.HasPrefix(authority, "[") {
		h.Name, _, _ = strings.Cut(authority[1:], "]")
	} else if i := strings.LastIndexByte(authority, ':'); i >= 0 {
		h.Name = authority[:i]
	}
	plainName, err := url.PathUnescape(h.Name)
	if err != nil || h.Name == "" {
		return Host{}, fmt.Errorf("url %.200q has no host", raw)
	}
	if plainName != h.Name {
		h.Odd = "percent encoding"
	}
	h.normalize(plainName)
	return h, nil
}

// normalize writes the name as resolvers see it and sets its kind.
func (h *Host) normalize(name string) {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r >= 0xFF01 && r <= 0xFF5E:
			r -= 0xFF01 - '!'
			h.Odd = "characters of full width"
		case r == 0x3002 || r == 0xFF61:
			r, h.Odd = '.', "a dot of another script"
		case confusable[r] != 0:
			h.Odd = "letters of another script"
		}
		b.WriteRune(r)
	}
	h.Name = strings.TrimSuffix(strings.ToLower(b.String()), ".")
	if addr, odd, ok := parseAddr(h.Name); ok {
		h.Addr = addr
		if odd != "" {
			h.Odd = odd
		}
		h.Kind = addrKind(addr)
		return
	}
	h.Kind = nameKind(h.Name)
	for _, zone := range []string{".nip.io", ".sslip.io", ".xip.io"} {
		if addr, ok := embedded(strings.TrimSuffix(h.Name, zone)); ok && strings.HasSuffix(h.Name, zone) && addrKind(addr) != hostPublic {
			h.Kind, h.Odd = addrKind(addr), "a name that resolves to the address in it"
		}
	}
	for _, zone := range []string{"localtest.me", "lvh.me", "vcap.me", "lacolhost.com"} {
		if h.Name == zone || strings.HasSuffix(h.Name, "."+zone) {
			h.Kind, h.Odd = hostLoopback, "a public name of this machine"
		}
	}
}

func nameKind(name string) string {
	switch {
	case name == "metadata.google.internal" || name == "metadata.goog" || name == "metadata" || name == "instance-data":
		return hostMetadata
	case name == "localhost" || strings.HasSuffix(name, ".localhost") || name == "ip6-localhost" || name == "localhost.localdomain":
		return hostLoopback
	}
	for _, zone := range []string{".internal", ".local", ".svc", ".cluster.local", ".lan", ".intranet", ".corp", ".home.arpa"} {
		if strings.HasSuffix(name, zone) {
			return hostPrivate
		}
	}
	return hostPublic
}

// parseAddr reads an address in any spelling that clients accept; odd names an
// unusual spelling. See inet_aton(3) and RFC 4291, section 2.5.5.
func parseAddr(name string) (addr netip.Addr, odd string, ok bool) {
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.WithZone("")
		if a.Is4In6() {
			return a.Unmap(), "an IPv4 address written as IPv6", true
		}
		if b := a.As16(); a.Is6() &&
			(bytes.HasPrefix(b[:], []byte{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0,
				0}) || a != netip.IPv6Unspecified() && a != netip.IPv6Loopback() && bytes.Equal(b[:12], make([]byte, 12))) {
			return netip.AddrFrom4([4]byte(b[12:])), "an IPv4 address written as IPv6", true
		}
		return a, "", true
	}
	parts := strings.Split(name, ".")
	if len(parts) > 4 {
		return netip.Addr{}, "", false
	}
	var value uint64
	for i, p := range parts {
		base := 10
		switch {
		case strings.HasPrefix(p, "0x"):
			p, base = p[2:], 16
		case len(p) > 1 && p[0] == '0':
			p, base = p[1:], 8
		}
		n, err := strconv.ParseUint(p, base, 64)
		room := uint64(1) << 8
		if i == len(parts)-1 {
			room = 1 << (8 * (5 - len(parts)))
		}
		if err != nil || n >= room {
			return netip.Addr{}, "", false
		}
		if i < len(parts)-1 {
			value |= n << (8 * (3 - i))
		} else {
			value |= n
		}
	}
	return netip.AddrFrom4(
		[4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)},
	), "an address written as other numbers", true
}

// embedded reads the address in a test name such as 10-0-0-1 or app.10.0.0.1.
func embedded(name string) (netip.Addr, bool) {
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '.' || r == '-' })
	if len(parts) < 4 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(strings.Join(parts[len(parts)-4:], "."))
	return addr, err == nil
}

var (
	metadataAddrs = []netip.Addr{
		netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("169.254.170.2"), netip.MustParseAddr("100.100.100.200"),
		netip.MustParseAddr("192.0.0.192"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("168.63.129.16"),
	}
	specialNets = []netip.Prefix{
		netip.MustParsePrefix(
			"0.0.0.0/8",
		), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
		netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b:1::/48"),
	}
)

func addrKind(a netip.Addr) string {
	for _, m := range metadataAddrs {
		if a == m {
			return hostMetadata
		}
	}
	switch {
	case a.IsLoopback(), a.IsUnspecified():
		return hostLoopback
	case a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast():
		return hostLocal
	case a.IsPrivate():
		return hostPrivate
	case a.IsMulticast():
		return hostSpecial
	}
	for _, p := range specialNets {
		if p.Contains(a) {
			return hostSpecial
		}
	}
	return hostPublic
}

// oddSchemes reach services that do not expect an HTTP client.
var oddSchemes = map[string]bool{
	"gopher": true,
	"dict":   true,
	"ldap":   true,
	"ldaps":  true,
	"tftp":   true,
	"jar":    true,
	"netdoc": true,
	"phar":   true,
}

// URL judges a URL before it is fetched. An internal host, a disguised host and
// a scheme of other services are critical.
func URL(raw string) []Finding {
	f := Finding{File: "url", Line: 1, Column: 1, Rule: RuleURL, Severity: Critical, Excerpt: excerpt([]byte(raw)), Hint: "name a public host"}
	scheme, _, _ := strings.Cut(strings.ToLower(raw), ":")
	if scheme == "file" || oddSchemes[scheme] {
		f.Message = "the scheme " + scheme + " is not for the network"
		return []Finding{f}
	}
	h, err := ParseHost(raw)
	switch {
	case err != nil:
		f.Message = err.Error()
	case h.Kind != hostPublic && h.Odd != "":
		f.Message = h.Kind + ", disguised by " + h.Odd
	case h.Kind != hostPublic:
		f.Message = h.Kind
	case h.Odd != "":
		f.Severity, f.Message = High, "a host that is not what it looks like: "+h.Odd
	default:
		return nil
	}
	return []Finding{f}
}

// urls finds URLs of internal services in a text. A loopback or private address
// is ordinary in documentation.
func (s *span) urls() {
	b := s.raw
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte("://"))
		if i < 0 {
			break
		}
		mark := at + i
		at = mark + 3
		start := mark
		for start > 0 && mark-start < 12 && (isLetter(b[start-1]) || b[start-1] == '+') {
			start--
		}
		end := at
		for end < len(b) && end-at < 512 && b[end] > ' ' && !strings.ContainsRune("\"'<>`", rune(b[end])) {
			_, size := utf8.DecodeRune(b[end:])
			end += size
		}
		s.url(start, end)
	}
	for _, name := range []string{"169.254.169.254", "metadata.google.internal"} {
		if i := bytes.Index(b, []byte(name)); i >= 0 && (i < 3 || string(b[i-3:i]) != "://") {
			s.report(i, i+len(name), s.urlFinding(Host{Kind: hostMetadata}))
		}
	}
}

func (s *span) url(start, end int) {
	h, err := ParseHost(string(s.raw[start:end]))
	if err != nil {
		return
	}
	disguised := h.Odd != "" && h.Kind != hostPublic
	odd := oddSchemes[h.Scheme] && h.Kind != hostPublic
	if h.Kind == hostMetadata || disguised || odd || h.Odd == "letters of another script" {
		s.report(start, end, s.urlFinding(h))
	}
}

func (s *span) urlFinding(h Host) Finding {
	f := Finding{Rule: RuleURL, Severity: Medium, Message: "leads to the " + h.Kind, Hint: "an agent has no reason to call it"}
	switch {
	case h.Odd != "" && h.Kind != hostPublic:
		f.Severity, f.Message = High, "leads to the "+h.Kind+", disguised by "+h.Odd
	case h.Kind == hostPublic:
		f.Message = "a host that is not what it looks like: " + h.Odd
	}
	if s.job.kind == Instructions {
		f.Severity++
	}
	return f
}
