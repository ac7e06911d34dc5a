package policy

import (
	"errors"
	"net/netip"
	"strings"
)

// Host is one destination as every reader of it understands it: a name in its
// normal form, or an address. The zero value is neither.
type Host struct {
	name string
	addr netip.Addr
}

var errHost = errors.New("not a host name or address")

// ParseHost reads a name or an address in any of its spellings: letters of
// either case, a dot at the end, characters beyond ASCII, and for addresses what
// [ParseAddress] takes. What two readers could take for different hosts is an
// error: a name with a character that names do not have, and a name that ends in
// a number without being an address.
func ParseHost(text string) (Host, error) {
	if len(text) > 1024 { // a name of 253 bytes can be written in more
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
	if a, ok := ParseAddress(name); ok { // digits of another script
		return Host{addr: a}, nil
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; numeric(last) {
		return Host{}, errHost
	}
	return Host{name: name}, nil
}

// HostOf is the host that an address is.
func HostOf(a netip.Addr) Host { return Host{addr: a.WithZone("").Unmap()} }

// Name is the name, or empty for an address.
func (h Host) Name() string { return h.name }

// Addr is the address; the zero one for a name.
func (h Host) Addr() netip.Addr { return h.addr }

// String is the name or the address.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// plainLabels reports names of which every label has 1 to 63 of the characters
// that names have.
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

// numeric reports what a C library would try to read as a part of an address.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
