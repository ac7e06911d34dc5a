package netns

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Ports are the ports of loopback to which nf_tables redirects connections.
type Ports struct {
	TCP uint16 // gets every TCP connection to an address outside loopback
	DNS uint16 // gets port 53 of every address outside loopback, UDP and TCP
}

// Batch is a group of netlink messages. They are sent in one datagram.
type Batch struct {
	Protocol int // NETLINK_NETFILTER or NETLINK_ROUTE
	Messages []byte
	Acks     int // messages that the kernel acknowledges
}

// family holds what differs between IPv4 and IPv6.
type family struct {
	number   uint8  // AF_INET or AF_INET6; nf_tables numbers families the same way
	offset   uint32 // of the destination address in the network header, bytes
	mask     []byte // of the loopback network
	loopback []byte // the loopback network, under the mask
	source   []byte // source address of redirected packets
}

var (
	inet  = family{unix.AF_INET, 16, []byte{255, 0, 0, 0}, []byte{127, 0, 0, 0}, []byte{127, 0, 0, 1}}
	ones  = []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}
	one   = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	inet6 = family{unix.AF_INET6, 24, ones, one, one}
)

// RedirectIPv4 returns the rules and the route for IPv4. Send the route only if
// the kernel accepted the rules. With the route alone, an address of another
// machine would reach whatever listens inside.
func RedirectIPv4(p Ports) (rules, route Batch) { return inet.rules(p), inet.route() }

// RedirectIPv6 is [RedirectIPv4] for IPv6.
func RedirectIPv6(p Ports) (rules, route Batch) { return inet6.rules(p), inet6.route() }

// Verdicts. See linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
)

const (
	table   = "agentsh"
	natHook = "redirected"
	outHook = "out"
)

// rules makes the table of one family. nft(8) would print it like this:
//
//	chain redirected { type nat hook output priority dstnat
//	  ip daddr != 127.0.0.0/8 meta l4proto udp th dport 53 redirect to DNS
//	  ip daddr != 127.0.0.0/8 meta l4proto tcp th dport 53 redirect to DNS
//	  ip daddr != 127.0.0.0/8 meta l4proto tcp redirect to TCP }
//	chain out { type filter hook output priority filter; policy drop
//	  ip daddr 127.0.0.0/8 accept }
func (f family) rules(p Ports) Batch {
	m := &messages{family: f.number}
	m.batch(unix.NFNL_MSG_BATCH_BEGIN)
	m.add(unix.NFT_MSG_NEWTABLE, func(a *attributes) { a.text(unix.NFTA_TABLE_NAME, table) })
	m.chain(natHook, "nat", unix.NF_INET_LOCAL_OUT, -100, nfAccept)
	m.chain(outHook, "filter", unix.NF_INET_LOCAL_OUT, 0, nfDrop)
	outside, dns := f.destination(unix.NFT_CMP_NEQ), destinationPort(53)
	m.rule(natHook, outside, protocol(unix.IPPROTO_UDP), dns, redirect(p.DNS))
	m.rule(natHook, outside, protocol(unix.IPPROTO_TCP), dns, redirect(p.DNS))
	m.rule(natHook, outside, protocol(unix.IPPROTO_TCP), redirect(p.TCP))
	m.rule(outHook, f.destination(unix.NFT_CMP_EQ), accept)
	m.batch(unix.NFNL_MSG_BATCH_END)
	return Batch{unix.NETLINK_NETFILTER, m.data, m.acks}
}

// route makes every address local, so that connect(2) finds a route. The interface
// with index 1 is lo in every namespace.
func (f family) route() Batch {
	m := &messages{}
	m.message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, []byte{
		f.number, 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0,
	}, func(a *attributes) {
		a.add(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, 1))
		a.add(unix.RTA_PREFSRC, f.source)
	})
	return Batch{unix.NETLINK_ROUTE, m.data, m.acks}
}

// expression is one expression of an nf_tables rule: it loads, compares or decides.
type expression func(*attributes)

const register = unix.NFT_REG_1

// destination compares the destination address of a packet with loopback.
func (f family) destination(op uint32) expression {
	length := uint32(len(f.mask))
	return func(a *attributes) {
		a.expression("payload", func(a *attributes) {
			a.number(unix.NFTA_PAYLOAD_DREG, register)
			a.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
			a.number(unix.NFTA_PAYLOAD_OFFSET, f.offset)
			a.number(unix.NFTA_PAYLOAD_LEN, length)
		})
		a.expression("bitwise", func(a *attributes) {
			a.number(unix.NFTA_BITWISE_SREG, register)
			a.number(unix.NFTA_BITWISE_DREG, register)
			a.number(unix.NFTA_BITWISE_LEN, length)
			a.value(unix.NFTA_BITWISE_MASK, f.mask)
			a.value(unix.NFTA_BITWISE_XOR, make([]byte, length))
		})
		a.compare(op, f.loopback)
	}
}

func protocol(number byte) expression {
	return func(a *attributes) {
		a.expression("meta", func(a *attributes) {
			a.number(unix.NFTA_META_DREG, register)
			a.number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
		})
		a.compare(unix.NFT_CMP_EQ, []byte{number})
	}
}

func destinationPort(port uint16) expression {
	return func(a *attributes) {
		a.expression("payload", func(a *attributes) {
			a.number(unix.NFTA_PAYLOAD_DREG, register)
			a.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER)
			a.number(unix.NFTA_PAYLOAD_OFFSET, 2)
			a.number(unix.NFTA_PAYLOAD_LEN, 2)
		})
		a.compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, port))
	}
}

// redirect changes the destination of a packet to a port of loopback.
func redirect(port uint16) expression {
	return func(a *attributes) {
		a.expression("immediate", func(a *attributes) {
			a.number(unix.NFTA_IMMEDIATE_DREG, register)
			a.value(unix.NFTA_IMMEDIATE_DATA, binary.BigEndian.AppendUint16(nil, port))
		})
		a.expression("redir", func(a *attributes) { a.number(unix.NFTA_REDIR_REG_PROTO_MIN, register) })
	}
}

func accept(a *attributes) {
	a.expression("immediate", func(a *attributes) {
		a.number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		a.nested(unix.NFTA_IMMEDIATE_DATA, func(a *attributes) {
			a.nested(unix.NFTA_DATA_VERDICT, func(a *attributes) { a.number(unix.NFTA_VERDICT_CODE, nfAccept) })
		})
	})
}
