package shellsocket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/refusals"
	"agentsh/internal/shim"
	"agentsh/internal/wire"
)

// header is the first packet of a request whose body has a size.
func header(size uint32) []byte {
	b := append([]byte{kindRequest, 0, 0, 0}, order.AppendUint32(order.AppendUint32(nil, size), Version)...)
	b = append(b, bytes.Repeat([]byte{'k'}, KeySize)...)
	for i := range uint64(10) {
		b = order.AppendUint64(b, i)
	}
	return b
}

// body is the body of a request.
func body(argc, envc uint32, words ...string) []byte {
	b := order.AppendUint32(order.AppendUint32(nil, argc), envc)
	for _, w := range words {
		b = append(append(b, w...), 0)
	}
	return b
}

// pair is a connection: its supervisor's end, and a client that is tested with bytes.
func pair(t *testing.T) (*Conn, *net.UnixConn) {
	t.Helper()
	l, err := channel.ListenPackets(context.Background(), filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unixpacket", l.Addr().String())
	if err != nil { // the socket was renamed
		client, err = net.Dial("unixpacket", filepath.Join(filepath.Dir(filepath.Dir(l.Addr().String())), "s"))
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := NewConn(server.(*net.UnixConn))
	t.Cleanup(func() { _, _ = c.Close(), client.Close() })
	return c, client.(*net.UnixConn)
}

func TestARequestArrivesInParts(t *testing.T) {
	c, client := pair(t)
	long := strings.Repeat("x", 3*partSize)
	b := body(2, 2, "/bin/sh", "/work", "sh", long, "A=\xff", "B=")
	go func() {
		_, _ = client.Write(header(uint32(len(b))))
		for part := range bytes.NewBuffer(b).Len()/partSize + 1 {
			_, _ = client.Write(append([]byte{kindBody}, b[part*partSize:min(len(b), (part+1)*partSize)]...))
		}
	}()
	r, err := c.ReadRequest(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := &Request{
		Manifest: shim.File{Dev: 0, Ino: 1, Size: 2, Mtime: 3, Ctime: 4}, Program: shim.File{Dev: 5, Ino: 6, Size: 7, Mtime: 8, Ctime: 9},
		Path: "/bin/sh", Here: "/work", Argv: []string{"sh", long}, Env: []string{"A=\xff", "B="},
	}
	copy(want.Key[:], bytes.Repeat([]byte{'k'}, KeySize))
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v", r)
	}
}

func TestARequestThatIsMalformedIsRefused(t *testing.T) {
	good := body(1, 0, "/bin/sh", "", "sh")
	part := func(b []byte) []byte { return append([]byte{kindBody}, b...) }
	for name, packets := range map[string][][]byte{
		"nothing":              {{}},
		"another kind":         {[]byte("K")},
		"a short header":       {header(8)[:headerSize-1]},
		"a long header":        {append(header(8), 0)},
		"another version":      {append(header(8)[:8:8], append([]byte{Version + 1, 0, 0, 0}, header(8)[12:]...)...)},
		"too much":             {header(maxBody + 1)},
		"an empty body":        {header(0)},
		"a body without words": {header(8), part(body(0, 0))},
		"no arguments":         {header(uint32(len(good))), part(body(0, 1, "/bin/sh", "", "sh"))},
		"too few words":        {header(uint32(len(good))), part(body(2, 0, "/bin/sh", "", "sh"))},
		"counts that overflow": {header(uint32(len(good))), part(body(1<<32-1, 2, "/bin/sh", "", "sh"))},
		"no name":              {header(uint32(len(good) - 2)), part(body(1, 0, "/bin/sh", "", ""))},
		"no end":               {header(uint32(len(good) - 1)), part(good[:len(good)-1])},
		"more than announced":  {header(uint32(len(good) - 1)), part(good)},
		"an empty part":        {header(uint32(len(good))), part(nil), part(good)},
		"a part of another kind": {
			header(uint32(len(good))), append([]byte{kindSignal}, good...),
		},
		"a client that goes": {header(uint32(len(good)))},
	} {
		t.Run(name, func(t *testing.T) {
			c, client := pair(t)
			for _, p := range packets {
				if _, err := client.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if r, err := c.ReadRequest(time.Minute); err == nil {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestAClientThatSendsNothingIsNotAwaited(t *testing.T) {
	c, _ := pair(t)
	if _, err := c.ReadRequest(time.Nanosecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

func TestMessagesOfAClient(t *testing.T) {
	delivered := order.AppendUint64(order.AppendUint64([]byte{kindDelivered, 0, 0, 0, 0, 0, 0, 0}, 5), 7)
	for text, want := range map[string]Message{
		"K": {Kill: true}, "I": {InputEnd: true}, "Q": {Ping: true}, "S\x0f": {Signal: 15}, "O\x02": {Closed: 2},
		string(delivered): {Delivered: &wire.OutputEnd{Stdout: 5, Stderr: 7}},
	} {
		if got, err := parseMessage([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "K ", "S", "S\x00", "S\x41", "O\x00", "O\x03", "C", "x", string(delivered[:23]),
		string(order.AppendUint64(delivered[:16:16], 1<<63))} {
		if got, err := parseMessage([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	c, client := pair(t)
	client.Close()
	if _, err := c.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// refused is a list of refusals.
func refused(n int, answered bool) refusals.List {
	var l refusals.List
	for i := range n {
		e := wire.Event{Decision: "deny", Op: "read", Path: "/" + strconv.Itoa(i)}
		if answered {
			e.Net = &wire.Net{Via: "http"}
		}
		l.Note(e)
	}
	return l
}

// decode reads the body of an end as the client does.
func decode(t *testing.T, b []byte) (code, more int, texts []string) {
	t.Helper()
	n := order.Uint32(b[4:])
	code, more = int(order.Uint32(b)), int(order.Uint32(b[8:]))
	b = b[12:]
	for range 2 + 2*n {
		size := order.Uint32(b)
		if b[4+size] != 0 {
			t.Fatal("a text without an end")
		}
		texts, b = append(texts, string(b[4:4+size])), b[5+size:]
	}
	if len(b) > 0 {
		t.Errorf("%d bytes too many", len(b))
	}
	return code, more, texts
}

func TestTheEndOfACommand(t *testing.T) {
	e := End{Code: 3, Audit: "/log", Said: "agentsh: x\n", Refused: refused(25, false)}
	code, more, texts := decode(t, e.encode())
	if code != 3 || more != 5 || len(texts) != 2+2*20 || texts[0] != "/log" || texts[1] != "agentsh: x\n" || texts[2] != "" ||
		texts[3] != "agentsh: denied: read /0" {
		t.Errorf("%d %d %q", code, more, texts)
	}
	// The command may have shown any of these itself, so the client gets all.
	e.Refused = refused(25, true)
	if _, more, texts := decode(t, e.encode()); more != 0 || len(texts) != 2+2*25 || texts[2] != texts[3] ||
		texts[50] != "agentsh: denied: read /24" {
		t.Errorf("%d %q", more, texts)
	}
	// What does not fit is counted.
	e.Refused = refusals.List{Dropped: 2}
	for _, x := range "ab" {
		e.Refused.Note(wire.Event{Decision: "deny", Op: "read", Path: strings.Repeat(string(x), maxEnd/2)})
	}
	if b := e.encode(); len(b) > maxEnd {
		t.Errorf("%d bytes", len(b))
	}
	if _, more, _ := decode(t, e.encode()); more != 3 {
		t.Errorf("%d more", more)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(header(8), body(1, 1, "/bin/sh", "/work", "sh", "A=b"))
	f.Add(header(0), []byte{})
	f.Fuzz(func(t *testing.T, head, text []byte) {
		r, size, err := parseHeader(head)
		if err != nil {
			return
		}
		if size > maxBody {
			t.Errorf("a body of %d bytes", size)
		}
		if r.parseBody(text) != nil {
			return
		}
		words := append(append([]string{r.Path, r.Here}, r.Argv...), r.Env...)
		if again := body(uint32(len(r.Argv)), uint32(len(r.Env)), words...); !bytes.Equal(again, text) {
			t.Errorf("%q is read as %+v", text, r)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, text := range []string{"K", "I", "Q", "S\x01", "O\x01", "C" + strings.Repeat("\x00", 23)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMessage(text)
		if err == nil && reflect.DeepEqual(m, Message{}) {
			t.Errorf("%q is no message", text)
		}
	})
}
