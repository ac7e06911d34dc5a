package fuse

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"agentsh/internal/wire"
)

// Sizes of the control socket. A message is split into packets, because one packet
// must fit the socket's send buffer.
const (
	packetBytes  = 48 << 10
	messageBytes = 4 * wire.MaxMessage
)

// errMalformed is wrapped by the error of a message that the other side cannot have
// sent.
var errMalformed = errors.New("a control message is malformed")

// request is a message of the supervisor.
type request struct {
	ID        uint64          `json:"id"`
	Configure *Config         `json:"configure,omitempty"`
	Prepare   *Config         `json:"prepare,omitempty"` // rules that Commit activates
	Commit    bool            `json:"commit,omitempty"`
	Changes   string          `json:"changes,omitempty"`    // tag of a mount
	Baseline  bool            `json:"baseline,omitempty"`   // of all mounts
	Forget    []wire.Name     `json:"invalidate,omitempty"` // paths inside the sandbox
	Purge     []string        `json:"purge,omitempty"`      // ids in the trash
	Restore   *restoreRequest `json:"restore,omitempty"`
	Init      int             `json:"init,omitempty"` // pid of the session's init
	Freeze    bool            `json:"freeze,omitempty"`
	Unfreeze  *unfreeze       `json:"unfreeze,omitempty"`
	Answer    *answered       `json:"answer,omitempty"`   // has no reply
	Seen      uint64          `json:"seen,omitempty"`     // the event of that number is recorded; has no reply
	Ping      bool            `json:"ping,omitempty"`     // answer
	Replayer  *uint32         `json:"replayer,omitempty"` // thread id in requests of the supervisor, see replays
	Drain     bool            `json:"drain,omitempty"`    // answer when every event so far was sent
}

// asked is an approval request. Without a question it cancels the request with that
// id.
type asked struct {
	ID       uint64         `json:"id"`
	Question *wire.Question `json:"question,omitempty"`
}

// answered is the answer to an approval request.
type answered struct {
	ID uint64 `json:"id"`
	wire.Answer
}

// unfreeze ends a freeze. It lists the changes that were made meanwhile to the mount
// with the tag.
type unfreeze struct {
	Tag     string        `json:"tag,omitempty"`
	Changes []wire.Change `json:"changes,omitempty"`
	More    bool          `json:"more,omitempty"` // more changes follow: the freeze continues
}

// restoreRequest asks the server to restore one file from the trash.
type restoreRequest struct {
	ID    string `json:"id"`
	Force bool   `json:"force,omitempty"` // replace the present file of that name
}

// reply is a message of the server: an event, or the answer to a request.
type reply struct {
	ID      uint64        `json:"id,omitempty"`
	Error   string        `json:"error,omitempty"`
	Changes []wire.Change `json:"changes,omitempty"`
	More    bool          `json:"more,omitempty"` // further changes follow under the same id
	Event   *wire.Event   `json:"event,omitempty"`
	Number  uint64        `json:"number,omitempty"` // of an event that somebody waits for
	Ask     *asked        `json:"ask,omitempty"`
	Replay  *Replay       `json:"replay,omitempty"`
}

// channel sends and receives JSON messages over a SOCK_SEQPACKET socket. One goroutine
// receives. Any number of goroutines may send.
type channel struct {
	conn net.Conn
	in   []byte

	sendMu sync.Mutex
	out    []byte
}

// newChannel makes a channel from the socket f and closes f when the channel closes.
func newChannel(f *os.File) (*channel, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &channel{conn: conn, in: make([]byte, packetBytes+1)}, nil
}

// send writes one message. The first byte of a packet says whether further packets of
// the message follow.
func (c *channel) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > messageBytes {
		return fmt.Errorf("message of %d bytes is larger than %d", len(data), messageBytes)
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	for {
		n := min(len(data), packetBytes)
		last := byte(0)
		if n == len(data) {
			last = 1
		}
		c.out = append(append(c.out[:0], last), data[:n]...)
		if _, err := c.conn.Write(c.out); err != nil {
			return err
		}
		if data = data[n:]; last == 1 {
			return nil
		}
	}
}

// receive reads one message into v. It returns io.EOF at the end of the connection.
func (c *channel) receive(v any) error {
	var data []byte
	for {
		n, err := c.conn.Read(c.in)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		data = append(data, c.in[1:n]...)
		if len(data) > messageBytes {
			return fmt.Errorf("%w: more than %d bytes", errMalformed, messageBytes)
		}
		if c.in[0] != 1 {
			continue
		}
		if err := json.Unmarshal(data, v); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		return nil
	}
}

// close ends the connection. A blocked receive returns an error.
func (c *channel) close() { _ = c.conn.Close() }
