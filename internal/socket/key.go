package socket

import (
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Key is a secret that both ends of a stream have. Each end has a key pair that is
// derived from it, and accepts only the public key of the other end. Streams are TLS 1.3.
type Key struct {
	place, controller identity
}

// identity is the key pair of an end, in a certificate: peers without a key cost no signature.
type identity struct{ tls.Certificate }

// public is the public key of an end.
func (i identity) public() ed25519.PublicKey { return i.Leaf.PublicKey.(ed25519.PublicKey) }

// identify makes the certificate of a key pair. Peers compare the key alone. The certificate does not expire: see RFC 5280, 4.1.2.5.
func identify(key ed25519.PrivateKey) (identity, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return identity{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}, err
}

const (
	minKey     = 32 // bytes of a secret
	maxKeyFile = 16 << 10
)

const makeKey = "make one with: (umask 077; head -c 32 /dev/urandom | base64 >FILE)"

// ReadKey reads a key from a file: see [ReadSecret].
func ReadKey(name string) (*Key, error) {
	secret, err := ReadSecret(name)
	if err != nil {
		return nil, err
	}
	return NewKey(secret)
}

// ReadSecret reads a secret from a file: at least 32 random bytes in base64. Only its owner,
// this user or root, may have access to the file.
func ReadSecret(name string) ([]byte, error) {
	secret, more, err := readLines(name)
	if err == nil && more != "" {
		err = fmt.Errorf("key: %s has fields of requests after its first line, which are for the controller alone: "+
			"give the place that line: (umask 077; head -n 1 %[1]s >FILE)", name)
	}
	return secret, err
}

// readLines reads a secret and the lines after it. Blanks around them are removed.
func readLines(name string) (secret []byte, more string, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block
	if err != nil {
		return nil, "", fmt.Errorf("key: %w: %s", err, makeKey)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", fmt.Errorf("key: %w", err)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, "", fmt.Errorf("key: %s is not a regular file", name)
	case known && owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return nil, "", fmt.Errorf("key: %s belongs to user %d: it must belong to the user of this program, or to root", name, owner.Uid)
	case info.Mode().Perm()&0o077 != 0:
		return nil, "", fmt.Errorf("key: %s has mode %04o, so others can read it: chmod 600 %s", name, info.Mode().Perm(), name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("key: %w", err)
	}
	if len(data) > maxKeyFile {
		return nil, "", fmt.Errorf("key: %s has more than %d KiB: %s", name, maxKeyFile>>10, makeKey)
	}
	encoded, more, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	if !strings.ContainsRune(more, ':') { // base64 that was broken into lines
		encoded, more = encoded+more, ""
	}
	secret, err = base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil || len(secret) < minKey {
		return nil, "", fmt.Errorf("key: %s does not have %d bytes in base64: %s", name, minKey, makeKey)
	}
	return secret, strings.TrimSpace(more), nil
}

// NewKey makes a key of a secret: at least 32 random bytes.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < minKey {
		return nil, fmt.Errorf("key: %d bytes, at least %d", len(secret), minKey)
	}
	k := &Key{}
	for use, end := range map[string]*identity{"agentsh place": &k.place, "agentsh controller": &k.controller} {
		seed, err := hkdf.Key(sha256.New, secret, nil, use, ed25519.SeedSize)
		if err == nil {
			*end, err = identify(ed25519.NewKeyFromSeed(seed))
		}
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
	}
	return k, nil
}

// server authenticates the controller at the other end of a stream.
func (k *Key) server(ctx context.Context, conn net.Conn) (net.Conn, error) {
	return handshake(ctx, conn, k.place, k.controller, tls.Server)
}

// client authenticates the place at the other end of a stream.
func (k *Key) client(ctx context.Context, conn net.Conn) (net.Conn, error) {
	return handshake(ctx, conn, k.controller, k.place, tls.Client)
}

// ErrKey is the error of a peer that has another key.
var ErrKey = errors.New("the other end has another key")

func handshake(
	ctx context.Context, conn net.Conn, own, peer identity, role func(net.Conn, *tls.Config) *tls.Conn,
) (net.Conn, error) {
	want := peer.public()
	c := role(conn, &tls.Config{
		Certificates:           []tls.Certificate{own.Certificate},
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // the public key is compared instead of names and dates
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !want.Equal(s.PeerCertificates[0].PublicKey) {
				return ErrKey
			}
			return nil
		},
	})
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, explain(err)
	}
	return c, nil
}

// explain replaces the alert of a peer that refused the key of this end, and names a peer that does not speak TLS.
func explain(err error) error {
	var op *net.OpError
	if errors.As(err, new(tls.RecordHeaderError)) {
		return fmt.Errorf("the other end is not 'agentsh serve --listen ADDRESS --key FILE': %w", err)
	}
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("%w (%w)", ErrKey, op.Err)
	}
	return err
}
