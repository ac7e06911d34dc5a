package netns

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
)

// ParseResolver reads the address of a name server. The port is 53 unless the
// text has one.
func ParseResolver(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, dnsPort), nil
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 {
		return at, fmt.Errorf("%q is no address of a name server (192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53)", text)
	}
	return at, nil
}

// maxRoots is the largest file of authorities, in bytes.
const maxRoots = 4 << 20

// AddRoots adds the certificates of a PEM file to a pool. If the pool is nil it
// adds them to the authorities of the machine. It returns the pool.
func AddRoots(pool *x509.CertPool, file string) (*x509.CertPool, error) {
	info, err := os.Stat(file)
	if err != nil {
		return pool, fmt.Errorf("authorities: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRoots {
		return pool, fmt.Errorf("authorities: %s is not a regular file of at most %d bytes", file, maxRoots)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return pool, err
	}
	if pool == nil {
		if pool, err = x509.SystemCertPool(); err != nil {
			pool = x509.NewCertPool() // the machine has no authorities
		}
	}
	if !pool.AppendCertsFromPEM(pem) {
		return pool, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}
