package policy

import (
	"errors"
	"net/netip"
	"strings"
)

// Host is one destination in a form without ambiguity: a normalised name, or an
// address. The zero value is neither.
type Host struct {
	name string
	addr netip.Addr
}

var errHost = errors.New("not a host name or address")

// ParseHost parses a host name or an address. It accepts upper case, a final
// dot, characters beyond ASCII, and every address form of [ParseAddress]. It
// returns an error for text that two programs could interpret differently: a
// name with a character that host names cannot have, and a name that ends in a
// number but is not an address.
func ParseHost(text string) (Host, error) {
	if len(text) > 1024 { // a name of 253 bytes can be longer before normalisation
		return Host{}, errHost
	}
	if a, ok := ParseAddress(text); ok {
		return Host{addr: a}, nil
	}
	if strings.HasSuffix(text, "..") {
		return Host{}, errHost
	}
	name, err := NormalHost(text)
	if err != nil || !plainLabels(name) {
		return Host{}, errHost
	}
	if a, ok := ParseAddress(name); ok { // it had digits of another script
		return Host{addr: a}, nil
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; numeric(last) {
		return Host{}, errHost
	}
	return Host{name: name}, nil
}

// HostOf returns the host for an address.
func HostOf(a netip.Addr) Host { return Host{addr: a.WithZone("").Unmap()} }

// Name returns the host name. It is empty for an address.
func (h Host) Name() string { return h.name }

// Addr returns the address. It is the zero value for a name.
func (h Host) Addr() netip.Addr { return h.addr }

// String returns the name or the address.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// plainLabels reports whether every label has 1 to 63 characters and only
// characters that host names can have.
func plainLabels(name string) bool {
	length := 0
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c == '.':
			if length == 0 {
				return false
			}
			length = 0
			continue
		case c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z'):
			return false
		}
		if length++; length > 63 {
			return false
		}
	}
	return length > 0
}

// numeric reports whether a C library would parse a label as part of an
// address.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
