// Package channel is the one connection between host and supervisor. It uses SSH over
// any byte stream. Each end has an Ed25519 key and knows the public key of the other
// end. Every command and file operation has its own SSH channel with its own window.
// So a blocked one never delays another.
//
// After the SSH handshake the client sends a hello as a global request and the server
// answers with its own. Then the client can open channels of these types:
//
// \texec@agentsh    one command: request, standard streams, typed end
// \tfiles@agentsh   one file operation: request, bytes in or out, reply
// \tevents@agentsh  audit events from a sequence number on
// \tsession@agentsh approvals and the policy of the whole session
//
// The first message of a channel is JSON. It is in the extra data of the open request,
// or in the first frame if it is too large for that.
package channel

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// Channel types and requests.
const (
	typeExec    = "exec@agentsh"
	typeFiles   = "files@agentsh"
	typeEvents  = "events@agentsh"
	typeSession = "session@agentsh"

	reqHello     = "hello@agentsh"     // global; client to server
	reqKeepalive = "keepalive@agentsh" // global; either way
	reqControl   = "control@agentsh"   // exec; client to server
	reqStdinEnd  = "stdin-end@agentsh" // exec; client to server
	reqStarted   = "started@agentsh"   // exec; server to client
	reqExit      = "exit@agentsh"      // exec; server to client, if output follows it
	reqEnd       = "end@agentsh"       // exec, events; server to client, last
	reqError     = "error@agentsh"     // events; server to client
)

// These sizes and times apply at both ends.
const (
	maxInline      = 64 << 10 // first message in the open request, bytes
	maxText        = 4 << 10  // one message of an exit, bytes
	maxLeftover    = 1000     // process ids of one tree_empty
	maxOpen        = 128      // channels of one connection; each may have a window of 2 MiB
	handshakeLimit = 10 * time.Second
	remoteDead     = 15 * time.Second // a peer on another machine without an answer
)

// Keepalive has the times for detecting a dead peer. A zero field means the default.
type Keepalive struct {
	Interval time.Duration // between requests; default 5 s
	Dead     time.Duration // without an answer; default 60 s on one machine, else 15 s
}

// over returns the times for a connection. Both ends of a UNIX socket are on one
// machine. There the kernel reports the end of a process at once: a peer that is silent
// is stopped or starved, and may go on.
func (k Keepalive) over(conn net.Conn) Keepalive {
	d := Keepalive{Interval: 5 * time.Second, Dead: remoteDead}
	if _, local := conn.(*net.UnixConn); local {
		d.Dead = time.Minute
	}
	if k.Interval > 0 {
		d.Interval = k.Interval
	}
	if k.Dead > 0 {
		d.Dead = k.Dead
	}
	return d
}

// handshake is the time for both sides to authenticate.
func (k Keepalive) handshake() time.Duration {
	if k.Dead > remoteDead {
		return k.Dead
	}
	return handshakeLimit
}

// ErrDead is wrapped by the errors of a connection whose peer stopped answering.
var ErrDead = errors.New("peer does not answer")

// NewKeyPair creates an Ed25519 key. It returns the private key in OpenSSH's PEM form
// and the public key as one authorized_keys line.
func NewKeyPair() (private, public []byte, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, nil, fmt.Errorf("encode private key: %w", err)
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		return nil, nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(sshPub), nil
}

// parseKeys reads this side's private key and the other side's public key. It accepts
// only Ed25519.
func parseKeys(private, public []byte) (ssh.Signer, ssh.PublicKey, error) {
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("own key: %w", err)
	}
	peer, _, _, _, err := ssh.ParseAuthorizedKey(public) //nolint:dogsled // comment, options and rest of the line mean nothing here
	if err != nil {
		return nil, nil, fmt.Errorf("peer's key: %w", err)
	}
	for _, t := range []string{signer.PublicKey().Type(), peer.Type()} {
		if t != ssh.KeyAlgoED25519 {
			return nil, nil, fmt.Errorf("key type %s, only %s is used", t, ssh.KeyAlgoED25519)
		}
	}
	return signer, peer, nil
}

// sshConfig has the algorithms that both ends negotiate: one modern suite, and a
// fallback for machines without AES instructions.
func sshConfig() ssh.Config {
	return ssh.Config{
		KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
		Ciphers:      []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305},
	}
}

// sameMajor refuses a peer with another major version.
func sameMajor(peer wire.Version) error {
	if peer.Major == wire.Current.Major {
		return nil
	}
	return &wire.Error{Code: wire.CodeVersion, Message: fmt.Sprintf(
		"peer speaks channel protocol %d.%d, this side %d.%d: install the same release on both sides",
		peer.Major, peer.Minor, wire.Current.Major, wire.Current.Minor)}
}

// keepalive sends requests to the peer until ctx is done or the peer is dead. In the
// latter case it closes the connection. A peer that answers anything is alive. A peer
// is also considered alive while silent returns true, and when this process itself was
// stopped: it could not see an answer.
func keepalive(ctx context.Context, conn ssh.Conn, k Keepalive, silent func() bool) error {
	tick := time.NewTicker(k.Interval)
	defer tick.Stop()
	answers, asking, last := make(chan error, 1), false, time.Now()
	looked := last
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-answers:
			if err != nil {
				return nil // the connection has ended and reports its own error
			}
			asking, last = false, time.Now()
		case <-tick.C:
			if silent() || time.Since(looked) >= 2*k.Interval {
				last = time.Now()
			}
			looked = time.Now()
			if asking && time.Since(last) >= k.Dead {
				_ = conn.Close() // ends the pending request below
				<-answers
				return fmt.Errorf("no answer for %s: %w", time.Since(last).Round(time.Millisecond), ErrDead)
			}
			if asking {
				continue
			}
			asking = true
			go func() {
				_, _, err := conn.SendRequest(reqKeepalive, true, nil)
				answers <- err
			}()
		}
	}
}

// copyBuffer is the size, in bytes, of the buffer for copying a stream.
const copyBuffer = 128 << 10

var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// copyStream copies r to w until r ends. It avoids methods of r and w that would
// allocate another buffer.
func copyStream(w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[copyBuffer]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(onlyWriter{w}, onlyReader{r}, buf[:])
}

// onlyReader and onlyWriter hide other methods, so that the given buffer is used.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// firstMessage returns the extra data of an open request, and the frame that must
// follow it if the message is too large.
func firstMessage(msg any) (extra, frame []byte, err error) {
	data, err := json.Marshal(msg)
	if err != nil {
		return nil, nil, err
	}
	if len(data) > wire.MaxMessage {
		return nil, nil, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("request of %d bytes, at most %d", len(data), wire.MaxMessage)}
	}
	if len(data) <= maxInline {
		return data, nil, nil
	}
	return nil, data, nil
}

// readFirst reads the first message of a channel that was opened with extra.
func readFirst(extra []byte, r io.Reader, msg any) error {
	if len(extra) == 0 {
		return readFrame(r, msg)
	}
	return json.Unmarshal(extra, msg)
}

// clip shortens a message so that it fits a request.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return s[:maxText] + "..."
}
