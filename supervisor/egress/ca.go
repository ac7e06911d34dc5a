package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"agentsh/internal/layout"
)

// authority signs the certificates of inspected connections. It is made for one
// session and exists in memory only.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	leaf *ecdsa.PrivateKey // of every certificate: the session need not tell servers apart by keys

	mu     sync.Mutex
	issued map[string]*tls.Certificate
}

const (
	authorityLife = 90 * 24 * time.Hour
	issuedMost    = 1024 // certificates in memory
)

func (a *authority) make() error {
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	if a.leaf, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "agentsh session authority " + rand.Text()[:8]},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, a.key.Public(), a.key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.issued = map[string]*tls.Certificate{}
	return nil
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

// certificate returns the certificate of a host, which is a name or an address.
func (a *authority) certificate(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.issued[host]; c != nil && time.Until(c.Leaf.NotAfter) > time.Hour {
		return c, nil
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial(), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		tmpl.IPAddresses = []net.IP{ip.AsSlice()}
	} else {
		tmpl.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(a.issued) >= issuedMost {
		clear(a.issued)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: leaf}
	a.issued[host] = c
	return c, nil
}

// CABundle returns [Proxy.CA] together with the authorities of this machine, in PEM.
// Programs of a session whose TLS is inspected must trust it. A machine without
// authorities adds nothing.
func (p *Proxy) CABundle() ([]byte, error) {
	out := bytes.Clone(p.ca.pem)
	names := layout.Authorities
	if own := os.Getenv("SSL_CERT_FILE"); own != "" { // as crypto/x509 does
		names = []string{own}
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("authorities of this machine: %w", err)
		}
		return append(append(out, '\n'), data...), nil
	}
	return out, nil
}
