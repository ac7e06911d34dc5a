package egress

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	typeA    = uint16(dnsmessage.TypeA)
	typeAAAA = uint16(dnsmessage.TypeAAAA)
	// answerMost is the most bytes of an answer over UDP that are asked for.
	answerMost = 1232
)

// askServer asks one name server over UDP, and over TCP if the answer does not fit.
func askServer(ctx context.Context, server netip.AddrPort, name string, kind uint16) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	query, id, err := buildQuery(name, kind)
	if err != nil {
		return nil, 0, err
	}
	for _, network := range []string{"udp", "tcp"} {
		message, err := exchangeDNS(ctx, network, server, query, id)
		if err != nil {
			return nil, 0, err
		}
		addrs, life, err := readAnswer(message, name, dnsmessage.Type(kind))
		if !errors.Is(err, errTruncated) {
			return addrs, life, err
		}
	}
	return nil, 0, errTruncated
}

func buildQuery(name string, kind uint16) ([]byte, uint16, error) {
	full, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, 0, err
	}
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails, see crypto/rand
	id := binary.BigEndian.Uint16(random[:])
	b := dnsmessage.NewBuilder(make([]byte, 2, 512), dnsmessage.Header{ID: id, RecursionDesired: true})
	err = b.StartQuestions()
	if err == nil {
		err = b.Question(dnsmessage.Question{Name: full, Type: dnsmessage.Type(kind), Class: dnsmessage.ClassINET})
	}
	if err == nil {
		err = b.StartAdditionals()
	}
	var extended dnsmessage.ResourceHeader
	if err == nil {
		err = extended.SetEDNS0(answerMost, dnsmessage.RCodeSuccess, false)
	}
	if err == nil {
		err = b.OPTResource(extended, dnsmessage.OPTResource{})
	}
	if err != nil {
		return nil, 0, err
	}
	message, err := b.Finish()
	if err != nil {
		return nil, 0, err
	}
	binary.BigEndian.PutUint16(message, uint16(len(message)-2)) // the length prefix of TCP
	return message, id, nil
}

// exchangeDNS sends a query, which begins with its length, and returns the
// answer with the same id.
func exchangeDNS(ctx context.Context, network string, server netip.AddrPort, query []byte, id uint16) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if network == "udp" {
		query = query[2:]
	}
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	if network == "tcp" {
		return readFrame(conn)
	}
	buf := make([]byte, answerMost)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n >= 12 && binary.BigEndian.Uint16(buf) == id { // otherwise it answers another query
			return buf[:n], nil
		}
	}
}

// readFrame reads a message of DNS over TCP.
func readFrame(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}

var errTruncated = errors.New("the answer is truncated")

// readAnswer returns the addresses in an answer to a question for name, following
// its aliases, and how long they are valid.
func readAnswer(message []byte, name string, kind dnsmessage.Type) ([]netip.Addr, time.Duration, error) {
	var p dnsmessage.Parser
	head, err := p.Start(message)
	if err != nil {
		return nil, 0, err
	}
	question, err := p.Question()
	switch {
	case err != nil:
		return nil, 0, err
	case !head.Response || question.Type != kind || !sameName(question.Name, name):
		return nil, 0, errors.New("an answer to another question")
	case head.Truncated:
		return nil, 0, errTruncated
	case head.RCode == dnsmessage.RCodeNameError:
		return nil, 0, errNoAddress
	case head.RCode != dnsmessage.RCodeSuccess:
		return nil, 0, errors.New("the name server says " + strings.TrimPrefix(head.RCode.String(), "RCode"))
	}
	if err := p.SkipAllQuestions(); err != nil {
		return nil, 0, err
	}
	return readRecords(&p, name, kind)
}

func sameName(n dnsmessage.Name, name string) bool { return strings.EqualFold(n.String(), name+".") }

// readRecords reads the records of a name and of its aliases.
func readRecords(p *dnsmessage.Parser, name string, kind dnsmessage.Type) ([]netip.Addr, time.Duration, error) {
	owner := name + "."
	life := lifeMost
	var addrs []netip.Addr
	for {
		head, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return addrs, life, nil
		}
		if err != nil {
			return nil, 0, err
		}
		own := strings.EqualFold(head.Name.String(), owner)
		if own {
			life = min(life, time.Duration(head.TTL)*time.Second)
		}
		switch {
		case own && head.Type == dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return nil, 0, err
			}
			owner = r.CNAME.String()
		case own && head.Type == kind && kind == dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return nil, 0, err
			}
			addrs = append(addrs, netip.AddrFrom4(r.A))
		case own && head.Type == kind:
			r, err := p.AAAAResource()
			if err != nil {
				return nil, 0, err
			}
			addrs = append(addrs, netip.AddrFrom16(r.AAAA))
		default:
			if err := p.SkipAnswer(); err != nil {
				return nil, 0, err
			}
		}
	}
}
