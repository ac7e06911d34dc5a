package policy

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// hosts normalises names like browsers, and also allows underscores, which
// resolvers accept.
var hosts = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false))

// NormalHost returns the form of a host name that rules are matched against:
// lower case, ASCII, without a final dot. It returns an error for text that is
// not a valid name.
func NormalHost(name string) (string, error) {
	name = strings.TrimSuffix(name, ".")
	if plainHost(name) {
		return name, nil
	}
	ascii, err := hosts.ToASCII(name)
	if err != nil {
		return "", errors.New("not a host name")
	}
	ascii = strings.TrimSuffix(ascii, ".")
	if again, err := hosts.ToASCII(ascii); err != nil || again != ascii {
		return "", errors.New("not a host name")
	}
	if ascii == "" || len(ascii) > 253 || strings.Contains(ascii, "..") {
		return "", errors.New("not a host name")
	}
	return ascii, nil
}

// plainHost reports whether a name is already in its normal form.
func plainHost(name string) bool {
	if name == "" || len(name) > 253 || name[0] == '.' || strings.Contains(name, "..") || strings.Contains(name, "xn--") {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// ParseAddress parses an IP address in any form that a C library accepts:
// dotted, with octal or hexadecimal parts, with fewer than four parts, as one
// number, in brackets, with a zone, or mapped into IPv6. IPv4 addresses are
// returned as IPv4. ok is false for any other text. See inet_aton(3).
func ParseAddress(text string) (netip.Addr, bool) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if strings.Contains(text, ":") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Addr{}, false
		}
		return a.WithZone("").Unmap(), true
	}
	text = strings.TrimSuffix(text, ".")
	if text == "" || len(text) > 64 {
		return netip.Addr{}, false
	}
	var value uint64
	last := false
	for part := 0; !last; part++ {
		digits, rest, more := strings.Cut(text, ".")
		text, last = rest, !more
		n, ok := parsePart(digits)
		if !ok || part > 3 || more && n > 255 {
			return netip.Addr{}, false
		}
		if more {
			value |= n << (24 - 8*part)
			continue
		}
		if n >= 1<<(32-8*part) {
			return netip.Addr{}, false
		}
		value |= n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// parsePart parses one number of an address: decimal, 0octal or 0xhex.
func parsePart(digits string) (uint64, bool) {
	radix := 10
	switch {
	case len(digits) > 1 && (digits[:2] == "0x" || digits[:2] == "0X"):
		if digits = digits[2:]; digits == "" {
			return 0, true
		}
		radix = 16
	case len(digits) > 1 && digits[0] == '0':
		radix = 8
	}
	return parseDigits(digits, uint64(radix))
}

// parseDigits parses up to 32 bits. Unlike strconv.ParseUint it returns no
// error value, which would be allocated for every host name.
func parseDigits(digits string, radix uint64) (uint64, bool) {
	value := uint64(0)
	for i := 0; i < len(digits); i++ {
		c := digits[i]
		digit := uint64(99)
		switch {
		case '0' <= c && c <= '9':
			digit = uint64(c - '0')
		case 'a' <= c && c <= 'f':
			digit = uint64(c-'a') + 10
		case 'A' <= c && c <= 'F':
			digit = uint64(c-'A') + 10
		}
		if digit >= radix {
			return 0, false
		}
		if value = value*radix + digit; value > 1<<32-1 {
			return 0, false
		}
	}
	return value, digits != ""
}

var (
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local  = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour   = netip.MustParsePrefix("2002::/16")
	compatible  = netip.MustParsePrefix("::/96")
	translated  = netip.MustParsePrefix("::ffff:0:0:0/96")
	teredo      = netip.MustParsePrefix("2001::/32")
	embeddedEnd = []netip.Prefix{nat64, nat64Local, compatible, translated}
)

// embedded returns the IPv4 address to which a translator would map an IPv6
// address.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	if sixToFour.Contains(a) {
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	if teredo.Contains(a) {
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	}
	for _, p := range embeddedEnd {
		if p.Contains(a) && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback() {
			return netip.AddrFrom4([4]byte(b[12:16])), true
		}
	}
	return netip.Addr{}, false
}

// guarded are addresses that only an explicit rule allows. The rule must have a
// network that is no wider than the guarded one, or one of the host names.
var guarded = []struct {
	what     string
	networks []netip.Prefix
	names    []string
}{
	{"loopback", prefixes("127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128"), []string{"localhost"}},
	{
		"cloud metadata",
		prefixes(
			"169.254.169.254/32",
			"169.254.170.2/32",
			"169.254.170.23/32",
			"fd00:ec2::254/128",
			"fd00:ec2::23/128",
			"100.100.100.200/32",
			"192.0.0.192/32",
			"168.63.129.16/32",
		),
		[]string{"metadata.google.internal", "metadata"},
	},
	{"link-local", prefixes("169.254.0.0/16", "fe80::/10"), nil},
	{"multicast and broadcast", prefixes("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"), nil},
	{"private", prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10"), nil},
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// Guarded reports whether only a rule that names an address allows it: one of loopback, for
// example, or of a private network.
func Guarded(a netip.Addr) bool { return guard(HostOf(a).addr) >= 0 }

// GuardedNetworks returns the networks of the addresses that [Guarded] is about.
func GuardedNetworks() []netip.Prefix {
	var out []netip.Prefix
	for i := range guarded {
		out = append(out, guarded[i].networks...)
	}
	return out
}

// guard returns the index in guarded of the network that contains a, or -1.
func guard(a netip.Addr) int {
	for i := range guarded {
		for _, p := range guarded[i].networks {
			if p.Contains(a) {
				return i
			}
		}
	}
	return -1
}

// names reports whether the rule names the guarded address a of guarded[at].
func (m *NetworkSelector) names(a netip.Addr, at int, domain string) bool {
	if narrow(m.CIDRs, a, at) || narrow(m.Addresses, a, at) {
		return true
	}
	for _, g := range m.Domains {
		if name, ok := g.Literal(); ok && name == domain {
			for _, known := range guarded[at].names {
				if name == known && (name != "localhost" || localhost(a)) {
					return true
				}
			}
		}
	}
	return false
}

// narrow reports whether one of networks contains a and is no wider than the
// guarded network that contains a.
func narrow(networks []netip.Prefix, a netip.Addr, at int) bool {
	for _, c := range networks {
		if !c.Contains(a) {
			continue
		}
		for _, p := range guarded[at].networks {
			if p.Contains(a) && c.Bits() >= p.Bits() {
				return true
			}
		}
	}
	return false
}

// localhost reports whether the name localhost stands for a: of 127.0.0.0/8 the other
// addresses can be those of other services.
func localhost(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || a == netip.IPv6Loopback() || a.IsUnspecified()
}
