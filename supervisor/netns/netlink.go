package netns

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// messages is a sequence of netlink messages that ask for acknowledgement. See
// netlink(7) and linux/netfilter/nfnetlink.h.
type messages struct {
	data   []byte
	acks   int
	family uint8 // address family of the nf_tables objects
}

// message appends one message: the header, the fixed part and the attributes.
func (m *messages) message(kind, flags uint16, fixed []byte, fill func(*attributes)) {
	start := len(m.data)
	m.data = binary.NativeEndian.AppendUint32(m.data, 0) // length, set below
	m.data = binary.NativeEndian.AppendUint16(m.data, kind)
	m.data = binary.NativeEndian.AppendUint16(m.data, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m.data = binary.NativeEndian.AppendUint32(m.data, uint32(m.acks)+1) // sequence number
	m.data = binary.NativeEndian.AppendUint32(m.data, 0)                // sender: the kernel fills it in
	m.data = append(m.data, fixed...)
	a := attributes{m.data}
	fill(&a)
	m.data = a.data
	binary.NativeEndian.PutUint32(m.data[start:], uint32(len(m.data)-start))
	m.acks++
}

// add appends a message that creates an nf_tables object.
func (m *messages) add(kind uint16, fill func(*attributes)) {
	m.message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_CREATE|unix.NLM_F_APPEND, []byte{m.family, unix.NFNETLINK_V0, 0, 0}, fill)
}

// batch appends the message that begins or ends an nf_tables transaction. The
// kernel acknowledges neither.
func (m *messages) batch(kind uint16) {
	start := len(m.data)
	m.message(kind, 0, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}, func(*attributes) {})
	binary.NativeEndian.PutUint16(m.data[start+6:], unix.NLM_F_REQUEST)
	m.acks--
}

func (m *messages) chain(name, kind string, hook uint32, priority int32, policy uint32) {
	m.add(unix.NFT_MSG_NEWCHAIN, func(a *attributes) {
		a.text(unix.NFTA_CHAIN_TABLE, table)
		a.text(unix.NFTA_CHAIN_NAME, name)
		a.text(unix.NFTA_CHAIN_TYPE, kind)
		a.number(unix.NFTA_CHAIN_POLICY, policy)
		a.nested(unix.NFTA_CHAIN_HOOK, func(a *attributes) {
			a.number(unix.NFTA_HOOK_HOOKNUM, hook)
			a.number(unix.NFTA_HOOK_PRIORITY, uint32(priority))
		})
	})
}

func (m *messages) rule(chain string, steps ...expression) {
	m.add(unix.NFT_MSG_NEWRULE, func(a *attributes) {
		a.text(unix.NFTA_RULE_TABLE, table)
		a.text(unix.NFTA_RULE_CHAIN, chain)
		a.nested(unix.NFTA_RULE_EXPRESSIONS, func(a *attributes) {
			for _, step := range steps {
				step(a)
			}
		})
	})
}

// attributes appends attributes to a message. Numbers are in network byte order,
// which nf_tables expects.
type attributes struct{ data []byte }

func (a *attributes) add(kind uint16, value []byte) {
	a.data = binary.NativeEndian.AppendUint16(a.data, uint16(4+len(value)))
	a.data = binary.NativeEndian.AppendUint16(a.data, kind)
	a.data = append(a.data, value...)
	for len(a.data)%4 != 0 {
		a.data = append(a.data, 0)
	}
}

func (a *attributes) text(kind uint16, value string) { a.add(kind, append([]byte(value), 0)) }

func (a *attributes) number(kind uint16, value uint32) {
	a.add(kind, binary.BigEndian.AppendUint32(nil, value))
}

func (a *attributes) nested(kind uint16, fill func(*attributes)) {
	start := len(a.data)
	a.add(kind|unix.NLA_F_NESTED, nil)
	fill(a)
	binary.NativeEndian.PutUint16(a.data[start:], uint16(len(a.data)-start))
}

func (a *attributes) expression(name string, fill func(*attributes)) {
	a.nested(unix.NFTA_LIST_ELEM, func(a *attributes) {
		a.text(unix.NFTA_EXPR_NAME, name)
		a.nested(unix.NFTA_EXPR_DATA, fill)
	})
}

func (a *attributes) value(kind uint16, data []byte) {
	a.nested(kind, func(a *attributes) { a.add(unix.NFTA_DATA_VALUE, data) })
}

func (a *attributes) compare(op uint32, data []byte) {
	a.expression("cmp", func(a *attributes) {
		a.number(unix.NFTA_CMP_SREG, register)
		a.number(unix.NFTA_CMP_OP, op)
		a.value(unix.NFTA_CMP_DATA, data)
	})
}
