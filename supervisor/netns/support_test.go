package netns

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLookupsAreTriedWithASocketThatIsThere(t *testing.T) {
	if of, err := Lookups(); err != nil || of != "TCP, UDP" {
		t.Errorf("%q: %v", of, err)
	}
	s, err := machineSockets()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// The kernel answers for a protocol without a module as it does without inet_diag.
	if err := s.finds(unix.IPPROTO_SCTP + 1); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a kernel that finds nothing passes: %v", err)
	}
}

// Without lookups a service of the machine that a rule permits is not taken for absent.
func TestWithoutLookupsNobodyKnowsWhoListens(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	if listening, err := machineListens(at); err != nil || !listening {
		t.Errorf("%v, %v", listening, err)
	}
	defer func(f func() error) { lookups = f }(lookups)
	lookups = func() error { return unix.ENOENT }
	if listening, err := machineListens(at); err == nil {
		t.Errorf("it is known: %v", listening)
	}
}
