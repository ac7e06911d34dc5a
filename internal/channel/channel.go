// Package channel is the one connection between host and supervisor. It is
// SSH over any byte stream: both ends hold an Ed25519 key and know the other's,
// every command and file operation has an SSH channel of its own, and with it a
// window of its own, so one that is stuck never holds up another.
//
// After the SSH handshake the client sends a hello as a global request and the
// server answers with its own. Then these channel types are open:
//
//	exec@agentsh    one command: request, standard streams, typed end
//	files@agentsh   one file operation: request, bytes in or out, reply
//	events@agentsh  audit events from a sequence number on
//	session@agentsh approvals and the policy of the session as a whole
//
// The first message of a channel is JSON. It travels in the extra data of the
// open request, or as the first frame when it does not fit there.
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
	reqExit      = "exit@agentsh"      // exec; server to client, when the output goes on after it
	reqEnd       = "end@agentsh"       // exec; server to client, last
	reqError     = "error@agentsh"     // events; server to client
)

// Sizes and times that both ends hold.
const (
	maxInline      = 64 << 10 // first message in the open request, bytes
	maxText        = 4 << 10  // one sentence of an exit, bytes
	maxLeftover    = 1000     // process ids of one tree_empty
	maxOpen        = 128      // channels of one connection; each may hold a window of 2 MiB
	handshakeLimit = 10 * time.Second
)

// Keepalive is how a dead peer is noticed. Zero means the default.
type Keepalive struct {
	Interval time.Duration // between questions; default 5 s
	Dead     time.Duration // without an answer; default 15 s
}

func (k Keepalive) withDefaults() Keepalive {
	d := Keepalive{Interval: 5 * time.Second, Dead: 15 * time.Second}
	if k.Interval > 0 {
		d.Interval = k.Interval
	}
	if k.Dead > 0 {
		d.Dead = k.Dead
	}
	return d
}

// ErrDead is in the chain of errors on a connection whose peer stopped
// answering.
var ErrDead = errors.New("peer does not answer")

// NewKeyPair makes an Ed25519 key: the private half in OpenSSH's PEM form, the
// public half as one authorized_keys line.
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

// parseKeys reads one's own private key and the other side's public key, and
// takes nothing but Ed25519.
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

// sshConfig is what both ends negotiate from: one modern suite and its
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

// keepalive asks the peer for a sign of life until ctx is done or the peer is
// dead; then it closes the connection. A peer that answers anything lives, and
// one that silent allows to be silent.
func keepalive(ctx context.Context, conn ssh.Conn, k Keepalive, silent func() bool) error {
	k = k.withDefaults()
	tick := time.NewTicker(k.Interval)
	defer tick.Stop()
	answers, asking, last := make(chan error, 1), false, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-answers:
			if err != nil {
				return nil // the connection has ended, and says so itself
			}
			asking, last = false, time.Now()
		case <-tick.C:
			if silent() {
				last = time.Now()
			}
			if asking && time.Since(last) >= k.Dead {
				_ = conn.Close() // ends the question below
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

// copyBuffer is the size, in bytes, of the buffer a stream passes.
const copyBuffer = 128 << 10

var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// copyStream copies r to w to its end, without the shortcuts of either that
// would take a buffer of their own.
func copyStream(w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[copyBuffer]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(onlyWriter{w}, onlyReader{r}, buf[:])
}

// onlyReader and onlyWriter hide other methods, so that the given buffer is used.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// firstMessage is the extra data of an open request, and what has to follow it.
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

// clip shortens a sentence that has to fit a request.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return s[:maxText] + "..."
}
