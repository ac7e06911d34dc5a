// Package shellsocket is the protocol between a session's supervisor and its clients without
// the Go runtime: shells of a shared session, and 'agentsh exec --session'. The client is C
// (internal/shim/client), which keep in step with this file.
//
// It runs over a Unix socket of packets (SOCK_SEQPACKET). The first byte of a packet is its
// kind. Numbers have the byte order of the machine.
//
//	supervisor                          client
//	                             <-     request: version, key, files, then its body in parts
//	hello: version, last words   ->     sent before the request is read
//	refusal                      ->     nothing was begun: the Go program takes over
//	note                         ->     a line for standard error; none, one or more
//	pipes: three descriptors     ->     unless the command did not start
//	                             <-     signal, kill, end of input, closed output, ping
//	pong                         ->
//	exited                       ->     it reads what is left in the pipes
//	                             <-     delivered: the bytes that it read; if it had pipes
//	end, then its body in parts  ->
//
// The command never gets a descriptor of the client: both copy over pipes that the
// supervisor made.
package shellsocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/refusals"
	"agentsh/internal/shim"
	"agentsh/internal/wire"
)

// Version changes with every change of the protocol. The request of a client of another
// version is refused. The client does not wait for the hello, so both name theirs.
const Version = 2

// KeySize is the size of a session's key, in bytes.
const KeySize = 32

// Kinds of packets.
const (
	kindHello   = 'H'
	kindRefusal = 'F'
	kindNote    = 'N'
	kindPipes   = 'P'
	kindExited  = 'X'
	kindEnd     = 'E'
	kindPong    = 'q'
	kindPart    = 'e'

	kindRequest   = 'R'
	kindBody      = 'r'
	kindSignal    = 'S'
	kindKill      = 'K'
	kindInputEnd  = 'I'
	kindClosed    = 'O'
	kindDelivered = 'C'
	kindPing      = 'Q'
)

// Sizes, in bytes.
const (
	headerSize = 12 + KeySize + 2*fileSize
	fileSize   = 5 * 8
	partSize   = 32 << 10 // the part of a body in one packet
	maxBody    = wire.MaxMessage
	maxEnd     = 8 << 20
	maxNote    = 16<<10 - 1
)

var order = binary.NativeEndian

// Request asks for one command. That of 'agentsh exec --session' has no Path and no Env.
type Request struct {
	Key      [KeySize]byte // of the session
	Manifest shim.File     // that the client has seen
	Program  shim.File     // that the client runs
	Path     string        // of that program; empty: it is no shell
	Here     string        // the client's directory; empty: it was removed
	Argv     []string
	Env      []string
}

// parseHeader reads the first packet of a request. It returns the size of the body.
func parseHeader(b []byte) (*Request, int, error) {
	if len(b) != headerSize || b[0] != kindRequest {
		return nil, 0, errors.New("no request")
	}
	if version := order.Uint32(b[8:]); version != Version {
		return nil, 0, fmt.Errorf("a request of version %d, not %d", version, Version)
	}
	size := order.Uint32(b[4:])
	if size > maxBody {
		return nil, 0, fmt.Errorf("a body of %d bytes, at most %d", size, maxBody)
	}
	r := &Request{}
	b = b[12+copy(r.Key[:], b[12:]):]
	for _, f := range []*shim.File{&r.Manifest, &r.Program} {
		for i, field := range []*uint64{&f.Dev, &f.Ino, &f.Size, &f.Mtime, &f.Ctime} {
			*field = order.Uint64(b[8*i:])
		}
		b = b[fileSize:]
	}
	return r, int(size), nil
}

// parseBody reads the body: two counts, then words that each end with a NUL.
func (r *Request) parseBody(b []byte) error {
	if len(b) < 9 || b[len(b)-1] != 0 {
		return errors.New("a body without an end")
	}
	argc, envc := int64(order.Uint32(b)), int64(order.Uint32(b[4:]))
	words := strings.Split(string(b[8:len(b)-1]), "\x00")
	if int64(len(words)) != 2+argc+envc || argc == 0 {
		return fmt.Errorf("a body of %d words with %d arguments and %d variables", len(words), argc, envc)
	}
	r.Path, r.Here, r.Argv, r.Env = words[0], words[1], words[2:2+argc], words[2+argc:]
	if r.Argv[0] == "" {
		return errors.New("a command without a name")
	}
	return nil
}

// Message is what a client sends while its command runs. Exactly one field is set.
type Message struct {
	Signal    int
	Kill      bool
	InputEnd  bool
	Closed    int             // 1: its standard output, 2: its standard error
	Delivered *wire.OutputEnd // the last one
	Ping      bool
}

// parseMessage reads a message.
func parseMessage(b []byte) (m Message, err error) {
	kind := byte(0)
	if len(b) > 0 {
		kind = b[0]
	}
	switch {
	case kind == kindKill && len(b) == 1:
		m.Kill = true
	case kind == kindInputEnd && len(b) == 1:
		m.InputEnd = true
	case kind == kindPing && len(b) == 1:
		m.Ping = true
	case kind == kindSignal && len(b) == 2 && b[1] >= 1 && b[1] <= 64:
		m.Signal = int(b[1])
	case kind == kindClosed && len(b) == 2 && (b[1] == 1 || b[1] == 2):
		m.Closed = int(b[1])
	case kind == kindDelivered && len(b) == 24:
		m.Delivered = &wire.OutputEnd{Stdout: int64(order.Uint64(b[8:])), Stderr: int64(order.Uint64(b[16:]))}
		if m.Delivered.Stdout < 0 || m.Delivered.Stderr < 0 {
			return m, errors.New("a number of bytes below 0")
		}
	default:
		return m, fmt.Errorf("a packet of %d bytes and kind %q", len(b), kind)
	}
	return m, nil
}

// End is how a command ended, for its caller.
type End struct {
	Code    int // the exit status of the caller
	Refused refusals.List
	Audit   string // the log that has more refusals
	Said    string // what the caller prints last; lines
}

// encode returns the body of an end. Refusals that do not fit are counted.
func (e *End) encode() []byte {
	var list []byte
	n, sure, more := uint32(0), 0, uint32(e.Refused.Dropped)
	room := maxEnd - len(e.Said) - len(e.Audit) - 64
	for _, r := range e.Refused.All {
		first, line := "", r.Line()
		if r.Answered() {
			first = r.First()
		} else {
			sure++
		}
		if sure > refusals.MaxPrinted {
			line = "" // one more that is not printed, unless the command has shown it
		}
		if sure > refusals.MaxPrinted && first == "" || len(list)+len(first)+len(line)+16 > room {
			more++
			continue
		}
		list = text(text(list, first), line)
		n++
	}
	b := order.AppendUint32(nil, uint32(e.Code))
	b = order.AppendUint32(order.AppendUint32(b, n), more)
	return append(text(text(b, e.Audit), e.Said), list...)
}

// text appends a text with its length. A NUL ends it, so that C need not copy it.
func text(b []byte, s string) []byte {
	return append(append(order.AppendUint32(b, uint32(len(s))), s...), 0)
}

// Conn is the supervisor's end of a connection. It is safe for one reader and several
// writers.
type Conn struct {
	conn *net.UnixConn
	mu   sync.Mutex // one message at a time
}

// NewConn returns the supervisor's end of a connection.
func NewConn(conn *net.UnixConn) *Conn { return &Conn{conn: conn} }

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

func (c *Conn) send(kind byte, data ...byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(append([]byte{kind}, data...))
	return err
}

// Hello begins a connection. lastWords is what the client prints if the supervisor dies. Without
// a hello the client takes its request as not read.
func (c *Conn) Hello(lastWords string) error {
	return c.send(kindHello, append(order.AppendUint32([]byte{0, 0, 0}, Version), lastWords...)...)
}

// Refuse says that nothing was begun.
func (c *Conn) Refuse() error { return c.send(kindRefusal) }

// Note has the client print lines on its standard error.
func (c *Conn) Note(lines string) error {
	return c.send(kindNote, []byte(lines[:min(len(lines), maxNote)])...)
}

// Pong answers a ping.
func (c *Conn) Pong() error { return c.send(kindPong) }

// Exited says that the command has ended. With forced nobody waits long for who reads its
// output.
func (c *Conn) Exited(forced bool) error {
	if forced {
		return c.send(kindExited, 1)
	}
	return c.send(kindExited, 0)
}

// Pipes gives the client its ends of the pipes of the command. Their modes stay as they are.
func (c *Conn) Pipes(files ...*os.File) error {
	fds := make([]int, 0, len(files))
	var send func(rest []*os.File) error
	send = func(rest []*os.File) error {
		if len(rest) == 0 {
			c.mu.Lock()
			defer c.mu.Unlock()
			_, _, err := c.conn.WriteMsgUnix([]byte{kindPipes}, unix.UnixRights(fds...), nil)
			return err
		}
		raw, err := rest[0].SyscallConn()
		if err != nil {
			return err
		}
		var sent error
		err = raw.Control(func(fd uintptr) { // the file stays open meanwhile
			fds = append(fds, int(fd))
			sent = send(rest[1:])
		})
		return errors.Join(err, sent)
	}
	return send(files)
}

// End ends the conversation.
func (c *Conn) End(e End) error {
	body := e.encode()
	if err := c.send(kindEnd, order.AppendUint32([]byte{0, 0, 0}, uint32(len(body)))...); err != nil {
		return err
	}
	for len(body) > 0 {
		n := min(len(body), partSize)
		if err := c.send(kindPart, body[:n]...); err != nil {
			return err
		}
		body = body[n:]
	}
	return nil
}

// ReadRequest reads the request of a client, for at most the given time.
func (c *Conn) ReadRequest(limit time.Duration) (*Request, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	var header [headerSize + 1]byte
	n, err := c.conn.Read(header[:])
	if err != nil {
		return nil, err
	}
	r, size, err := parseHeader(header[:n])
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer // grows with what arrives, not with what is announced
	part := make([]byte, 1+partSize)
	for body.Len() < size {
		n, err := c.conn.Read(part)
		if err != nil {
			return nil, err
		}
		if n < 2 || part[0] != kindBody || body.Len()+n-1 > size {
			return nil, errors.New("a part of a request that does not fit")
		}
		body.Write(part[1:n])
	}
	if err := r.parseBody(body.Bytes()); err != nil {
		return nil, err
	}
	return r, c.conn.SetReadDeadline(time.Time{})
}

// Next reads a message of a client whose command runs. The error is io.EOF when the client
// has gone.
func (c *Conn) Next() (Message, error) {
	var b [32]byte
	n, err := c.conn.Read(b[:])
	if errors.Is(err, unix.ECONNRESET) {
		err = io.EOF
	}
	if err != nil {
		return Message{}, err
	}
	return parseMessage(b[:n])
}
