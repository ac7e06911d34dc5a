package netns

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Address returns the messages that give an interface an address, and the routes to its
// network and, by gateway, to everything else. Without a gateway there is no such route. See
// rtnetlink(7).
func Address(index int, address netip.Prefix, gateway netip.Addr) []Batch {
	family := uint8(unix.AF_INET)
	if address.Addr().Is6() {
		family = unix.AF_INET6
	}
	m := &messages{}
	own := address.Addr().AsSlice()
	fixed := binary.NativeEndian.AppendUint32([]byte{family, uint8(address.Bits()), 0, unix.RT_SCOPE_UNIVERSE}, uint32(index))
	m.message(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, fixed, func(a *attributes) {
		a.add(unix.IFA_LOCAL, own)
		a.add(unix.IFA_ADDRESS, own)
	})
	batches := []Batch{{unix.NETLINK_ROUTE, m.data, m.acks}}
	if !gateway.IsValid() {
		return batches
	}
	m = &messages{}
	m.message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, []byte{
		family, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0,
	}, func(a *attributes) {
		a.add(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
		a.add(unix.RTA_GATEWAY, gateway.AsSlice())
	})
	return append(batches, Batch{unix.NETLINK_ROUTE, m.data, m.acks})
}
