package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/policy"
)

// ServeDNS answers DNS queries over UDP and TCP, either of which may be nil,
// until they or the proxy are closed. It closes both. Only addresses are
// answered, and only of names that the policy could permit a connection to.
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
	if !p.hold(udp) {
		return errors.Join(ErrClosed, udp.Close())
	}
	defer p.release(udp)
	slots := make(chan struct{}, packetsMost)
	buf := make([]byte, answerMost)
	for {
		n, from, err := udp.ReadFrom(buf)
		if err != nil {
			return err
		}
		query := append([]byte(nil), buf[:n]...)
		select {
		case slots <- struct{}{}:
		default:
			continue // the program asks again
		}
		p.serving.Go(func() {
			defer func() { <-slots }()
			c := &client{p: p, via: viaDNS, ctx: p.ctx}
			if p.opts.IdentifyPacket != nil {
				if caller, err := p.opts.IdentifyPacket(from); err == nil {
					c.caller = caller
				}
			}
			if answer := c.answerDNS(query); answer != nil {
				_, _ = udp.WriteTo(answer, from) // the program asks again
			}
		})
	}
}

// serveDNS answers queries over one TCP connection.
func (c *client) serveDNS() {
	c.via = viaDNS
	for {
		c.limitTime(c.conn)
		query, err := readFrame(c.conn)
		if err != nil {
			return
		}
		answer := c.answerDNS(query)
		if answer == nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(make([]byte, 0, len(answer)+2), uint16(len(answer)))
		if _, err := c.conn.Write(append(framed, answer...)); err != nil {
			return
		}
	}
}

// lookupTime bounds one lookup, waiting for a person not included.
const lookupTime = 10 * time.Second

// answerDNS answers one query; nil: it is none.
func (c *client) answerDNS(query []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(query)
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
	a, code := c.lookupFor(question)
	reply.RCode = code
	return buildReply(reply, &question, a)
}

// lookupFor judges a question and looks its name up.
func (c *client) lookupFor(q dnsmessage.Question) (*answer, dnsmessage.RCode) {
	text := q.Name.String()
	host, err := policy.ParseHost(text)
	if err != nil || host.Name() == "" {
		_ = c.refuse(wireName(text), against("name", "the name asked for is malformed", ""))
		return nil, dnsmessage.RCodeRefused
	}
	name := host.Name()
	if s := c.p.secrets.inName(name); s != nil {
		_ = c.refuse(name, s.misplaced("a host name"))
		return nil, dnsmessage.RCodeRefused
	}
	decided := c.p.opts.Policy().EvaluateHost(&policy.HostRequest{Host: host, Binary: c.caller.Process.Exe})
	d, diag := decided.Decision, decided.Diagnostic
	var refused *refusal
	switch {
	case d.Effect == policy.Approve:
		refused = c.askName(name, d, diag)
	case !d.Permits():
		refused = denied(diag)
	}
	if refused != nil {
		_ = c.refuse(name, refused)
		return nil, dnsmessage.RCodeRefused
	}
	const https, svcb = 65, 64
	switch q.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
	case https, svcb: // they name keys that hide server names, and ways around
		return nil, dnsmessage.RCodeSuccess
	default:
		_ = c.refuse(name, against("name", "only addresses are looked up, not "+q.Type.String(), ""))
		return nil, dnsmessage.RCodeRefused
	}
	ctx, cancel := context.WithTimeout(c.ctx, lookupTime)
	defer cancel()
	a, err := c.p.names.find(ctx, name)
	switch {
	case errors.Is(err, errNoAddress):
		return nil, dnsmessage.RCodeNameError
	case err != nil:
		return nil, dnsmessage.RCodeServerFailure
	}
	if refused := c.recordName(name, d, diag); refused != nil {
		_ = c.refuse(name, refused)
		return nil, dnsmessage.RCodeRefused
	}
	c.p.names.tell(name, a.addrs)
	return a, dnsmessage.RCodeSuccess
}

// wireName is a name of a query as events show it.
func wireName(s string) string { return s[:min(len(s), 300)] }

// askName asks a person about a name, once for a while.
func (c *client) askName(name string, d policy.Decision, diag policy.Diagnostic) *refusal {
	if c.p.names.granted(name) {
		return nil
	}
	if refused := c.ask(c.ctx, d, diag, "dns "+name); refused != nil {
		return refused
	}
	c.p.names.grant(name)
	return nil
}

// recordName records that a name was looked up, where its rule says so.
func (c *client) recordName(name string, d policy.Decision, diag policy.Diagnostic) *refusal {
	if d.Effect == policy.Allow {
		return nil // the connection is recorded
	}
	e := c.event(name)
	e.Decision, e.Rule, e.Op = d.Effect.String(), ruleAt(diag), "lookup"
	if err := c.p.opts.Emit(e); err != nil {
		return against("audit", "the lookup cannot be recorded: "+err.Error(), "")
	}
	return nil
}

// buildReply makes an answer; nil when it cannot be made.
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
