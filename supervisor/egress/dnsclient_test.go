package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// reply answers a query the way its name says.
func reply(t *testing.T, query []byte, tcp bool) [][]byte {
	t.Helper()
	var q dnsmessage.Message
	if err := q.Unpack(query); err != nil {
		t.Error(err)
		return nil
	}
	one := q.Questions[0]
	a := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions}
	record := func(name string, ttl uint32, body dnsmessage.ResourceBody) {
		a.Answers = append(
			a.Answers,
			dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   body,
			},
		)
	}
	four := one.Type == dnsmessage.TypeA
	switch one.Name.String() {
	case "alias.test.":
		record("alias.test.", 300, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("real.test.")})
		record("stranger.test.", 1, &dnsmessage.AResource{A: [4]byte{203, 0, 113, 9}})
		if four {
			record("real.test.", 30, &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}})
		} else {
			record("real.test.", 200, &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::1").As16()})
		}
	case "large.test.":
		a.Truncated = !tcp
		if tcp && four {
			record("large.test.", 60, &dnsmessage.AResource{A: [4]byte{192, 0, 2, 2}})
		}
	case "broken.test.":
		a.RCode = dnsmessage.RCodeServerFailure
	case "other.test.":
		a.Questions[0].Name = dnsmessage.MustNewName("else.test.")
		record("else.test.", 60, &dnsmessage.AResource{A: [4]byte{203, 0, 113, 9}})
	default:
		a.RCode = dnsmessage.RCodeNameError
	}
	packed, err := a.Pack()
	if err != nil {
		t.Error(err)
	}
	forged := append([]byte(nil), packed...)
	binary.BigEndian.PutUint16(forged, q.ID+1)
	return [][]byte{forged, packed}
}

// nameServer answers over UDP, after an answer with another id, and over TCP.
func nameServer(t *testing.T) netip.AddrPort {
	t.Helper()
	for {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err != nil { // somebody has that port
			_ = tcp.Close()
			continue
		}
		t.Cleanup(func() { _ = tcp.Close(); _ = udp.Close() })
		go func() { // ends with the socket
			buf := make([]byte, 2048)
			for {
				n, from, err := udp.ReadFrom(buf)
				if err != nil {
					return
				}
				for _, m := range reply(t, buf[:n], false) {
					_, _ = udp.WriteTo(m, from)
				}
			}
		}()
		go func() { // ends with the listener
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				if query, err := readFrame(c); err == nil {
					m := reply(t, query, true)[1]
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
				}
				_ = c.Close()
			}
		}()
		return netip.MustParseAddrPort(tcp.Addr().String())
	}
}

func TestNameServersAreAsked(t *testing.T) {
	r := resolver{[]netip.AddrPort{nameServer(t)}}
	for _, test := range []struct {
		name, want string
		life       time.Duration
	}{
		{"alias.test", "[192.0.2.1 2001:db8::1] <nil>", 30 * time.Second}, {"large.test", "[192.0.2.2] <nil>", time.Minute},
		{"none.test", "[] the name has no address", 0}, {"broken.test", "[] no name server answers: the name server says ServerFailure", 0},
		{"other.test", "[] no name server answers: an answer to another question", 0},
	} {
		addrs, life, err := r.lookup(t.Context(), test.name)
		if got := fmt.Sprint(addrs, " ", err); got != test.want || life != test.life {
			t.Errorf("%s: %s, %s", test.name, got, life)
		}
	}
	n := newNames(r.servers, 1)
	if addrs, err := n.lookup(t.Context(), "alias.test"); err != nil || len(addrs) != 2 {
		t.Errorf("%v %v", addrs, err)
	}
	n.slots <- struct{}{}
	if _, err := n.lookup(t.Context(), "more.test"); !errors.Is(err, errBusy) {
		t.Errorf("%v", err)
	}
	if addrs, err := n.lookup(t.Context(), "alias.test"); err != nil || len(addrs) != 2 {
		t.Errorf("what is known: %v %v", addrs, err)
	}
}

func TestAnswersAreRememberedWithinBounds(t *testing.T) {
	n := newNames(nil, 1)
	for i := range givenMost + 100 {
		n.remember(fmt.Sprintf("n%d.test", i), []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
	}
	if n.number > givenMost || n.number != len(n.given) {
		t.Errorf("%d of %d", n.number, len(n.given))
	}
	a := netip.MustParseAddr("192.0.2.1")
	n.remember("one.test", []netip.Addr{a})
	n.remember("two.test", []netip.Addr{a})
	if got := fmt.Sprint(n.of(a)); got != "[two.test one.test]" {
		t.Error(got)
	}
}

func FuzzReadAnswer(f *testing.F) {
	query, _, err := buildQuery("a.test", typeA)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(query[2:])
	f.Fuzz(func(t *testing.T, message []byte) {
		if addrs, life, err := readAnswer(message, "a.test", dnsmessage.TypeA); err != nil && (len(addrs) > 0 || life > 0) {
			t.Fatal("an answer with an error")
		}
	})
}
