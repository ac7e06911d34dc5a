package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/policy"
)

// ServeDNS answers DNS queries over UDP and TCP, either of which may be nil,
// until they or the proxy are closed. It closes both. It answers only addresses,
// and only of names that the policy could permit a connection to.
func (p *Proxy) ServeDNS(udp net.PacketConn, tcp net.Listener) error {
	errs := make(chan error, 2)
	n := 0
	if udp != nil {
		n++
		go func() { errs <- p.servePackets(udp) }()
	}
	if tcp != nil {
		n++
		go func() { errs <- p.accept(tcp, func(c *client) { c.serveDNS() }) }()
	}
	var all []error
	for i := range n {
		err := <-errs
		all = append(all, err)
		if i == 0 { // the other one ends with it
			if udp != nil {
				_ = udp.Close()
			}
			if tcp != nil {
				_ = tcp.Close()
			}
		}
	}
	if p.ctx.Err() != nil {
		return ErrClosed
	}
	return errors.Join(all...)
}

// packetsMost is how many queries over UDP are answered at a time.
const packetsMost = 64

func (p *Proxy) servePackets(udp net.PacketConn) error {
	if !p.open.addListener(udp) {
		return errors.Join(ErrClosed, udp.Close())
	}
	defer p.open.removeListener(udp)
	slots := make(chan struct{}, packetsMost)
	buf := make([]byte, answerMost)
	for {
		n, from, err := udp.ReadFrom(buf)
		if err != nil {
			return err
		}
		message := append([]byte(nil), buf[:n]...)
		select {
		case slots <- struct{}{}:
		default:
			continue // the program asks again
		}
		p.open.serving.Go(func() {
			defer func() { <-slots }()
			q := nameQuery{p: p, ctx: p.ctx, from: origin{via: viaDNS}}
			if p.opts.IdentifyPacket != nil {
				if caller, err := p.opts.IdentifyPacket(from); err == nil {
					q.from.caller = caller
				}
			}
			if answer := q.answer(message); answer != nil {
				_, _ = udp.WriteTo(answer, from) // the program asks again
			}
		})
	}
}

// serveDNS answers queries over one TCP connection.
func (c *client) serveDNS() {
	c.from.via = viaDNS
	for {
		c.limitTime(c.conn)
		message, err := readFrame(c.conn)
		if err != nil {
			return
		}
		answer := nameQuery{c.p, c.ctx, c.from}.answer(message)
		if answer == nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(make([]byte, 0, len(answer)+2), uint16(len(answer)))
		if _, err := c.conn.Write(append(framed, answer...)); err != nil {
			return
		}
	}
}

// lookupTime bounds one lookup. The wait for an approval does not count.
const lookupTime = 10 * time.Second

// nameQuery is one DNS query of the session.
type nameQuery struct {
	p    *Proxy
	ctx  context.Context // ends with the client
	from origin
}

// answer returns the answer to a message, or nil if it is not a query.
func (q nameQuery) answer(message []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(message)
	if err != nil || head.Response {
		return nil
	}
	reply := dnsmessage.Header{
		ID:                 head.ID,
		Response:           true,
		OpCode:             head.OpCode,
		RecursionDesired:   head.RecursionDesired,
		RecursionAvailable: true,
	}
	question, err := parser.Question()
	if err != nil {
		reply.RCode = dnsmessage.RCodeFormatError
		return buildReply(reply, nil, nil)
	}
	if _, err := parser.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) || head.OpCode != 0 || question.Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeNotImplemented
		return buildReply(reply, nil, nil)
	}
	a, code := q.resolve(question)
	reply.RCode = code
	return buildReply(reply, &question, a)
}

// resolve judges a question and looks its name up.
func (q nameQuery) resolve(question dnsmessage.Question) (*answer, dnsmessage.RCode) {
	text := question.Name.String()
	host, err := policy.ParseHost(text)
	if err != nil || host.Name() == "" {
		return nil, q.refuse(text[:min(len(text), 300)], against("name", "the name asked for is malformed", ""))
	}
	name := host.Name()
	if a, code, known := q.p.local(q.from, host, question.Type); known {
		return a, code
	}
	d, refused := q.judge(host, question.Type)
	if refused != nil {
		return nil, q.refuse(name, refused)
	}
	if question.Type == typeHTTPS || question.Type == typeSVCB { // they name keys that encrypt server names, and other ports
		return nil, dnsmessage.RCodeSuccess
	}
	ctx, cancel := context.WithTimeout(q.ctx, lookupTime)
	defer cancel()
	a, err := q.p.judge.names.find(ctx, name)
	switch {
	case errors.Is(err, errNoAddress):
		return nil, dnsmessage.RCodeNameError
	case err != nil:
		return nil, dnsmessage.RCodeServerFailure
	}
	if refused := q.record(name, d); refused != nil {
		return nil, q.refuse(name, refused)
	}
	q.p.judge.names.remember(name, a.addrs)
	return a, dnsmessage.RCodeSuccess
}

// Types that dnsmessage has no name for. See RFC 9460.
const typeSVCB, typeHTTPS dnsmessage.Type = 64, 65

// judge decides whether a name may be looked up. Nobody is asked about what is refused
// anyway.
func (q nameQuery) judge(host policy.Host, kind dnsmessage.Type) (policy.HostDecision, *refusal) {
	if s := q.p.judge.secrets().inName(host.Name()); s != nil {
		return policy.HostDecision{}, s.misplaced("a host name")
	}
	d := q.p.judge.host(q.from, destination{host: host})
	addresses := slices.Contains([]dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, typeSVCB, typeHTTPS}, kind)
	switch {
	case !addresses && (d.Permits() || d.Effect == policy.Approve):
		return d, against("name", "only addresses are looked up, not "+strings.TrimPrefix(kind.String(), "Type")+" records", "")
	case d.Effect == policy.Approve:
		return d, q.approve(host.Name(), d)
	case !d.Permits():
		return d, denied(d.Diagnostic)
	}
	return d, nil
}

// approve has a person decide about a name. The decision is cached for a while.
func (q nameQuery) approve(name string, d policy.HostDecision) *refusal {
	names := q.p.judge.names
	if names.approved(name) {
		return nil
	}
	if refused := q.p.judge.ask(q.ctx, q.from, verdict{d.Decision, d.Diagnostic}, "dns "+name); refused != nil {
		return refused
	}
	names.approve(name)
	return nil
}

// record records that a name was looked up, if its rule says so.
func (q nameQuery) record(name string, d policy.HostDecision) *refusal {
	if d.Effect == policy.Allow {
		return nil // the connection is recorded
	}
	e := q.from.event(name)
	e.Decision, e.Rule, e.Op = d.Effect.String(), ruleOf(d.Diagnostic), "lookup"
	if err := q.p.opts.Emit(e); err != nil {
		return against("audit", "the lookup cannot be recorded: "+err.Error(), "")
	}
	return nil
}

// refuse records a refusal and returns the code that answers it.
func (q nameQuery) refuse(name string, refused *refusal) dnsmessage.RCode {
	_ = q.p.refuse(q.from, name, refused)
	return dnsmessage.RCodeRefused
}

// buildReply encodes an answer. It returns nil if that is not possible.
func buildReply(head dnsmessage.Header, q *dnsmessage.Question, a *answer) []byte {
	b := dnsmessage.NewBuilder(make([]byte, 0, 512), head)
	if q == nil {
		out, _ := b.Finish() // a header alone cannot be wrong
		return out
	}
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(*q) != nil || b.StartAnswers() != nil {
		return nil
	}
	if a != nil {
		life := uint32(max(time.Until(a.until)/time.Second, 1))
		rr := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: life}
		for _, addr := range a.addrs {
			var err error
			switch {
			case q.Type == dnsmessage.TypeA && addr.Is4():
				err = b.AResource(rr, dnsmessage.AResource{A: addr.As4()})
			case q.Type == dnsmessage.TypeAAAA && addr.Is6():
				err = b.AAAAResource(rr, dnsmessage.AAAAResource{AAAA: addr.As16()})
			}
			if err != nil {
				return nil
			}
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
