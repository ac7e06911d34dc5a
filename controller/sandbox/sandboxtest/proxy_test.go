package sandboxtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"agentsh/internal/testenv"
)

// terminating starts an nginx that ends TLS before a place that listens for WebSocket at
// to, as the proxies of vendors do. This process trusts its certificate. It returns the address.
func terminating(t *testing.T, dir, to string) string {
	t.Helper()
	testenv.Need(t, testenv.Program("nginx"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	file, err := l.(*net.TCPListener).File()
	if err = errors.Join(err, l.Close(), certificate(dir)); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv("SSL_CERT_FILE", filepath.Join(dir, "cert.pem")) // read once, at the first use
	config := fmt.Sprintf(`daemon off; pid %[1]s/nginx.pid; error_log %[1]s/error.log;
events { worker_connections 256; }
http {
  access_log off; client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3; uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5;
  server {
    listen %[2]s ssl; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem;
    location /place { proxy_pass http://%[3]s; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }
  }
}
`, dir, at, to)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	// nginx takes a socket that listens already by the variable, as when it replaces itself.
	cmd := exec.Command("nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", filepath.Join(dir, "error.log"))
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "NGINX=3;"), []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it ends its workers
		_ = cmd.Wait()
		if log, err := os.ReadFile(filepath.Join(dir, "error.log")); err == nil && t.Failed() {
			t.Logf("nginx: %s", log)
		}
	})
	_, port, _ := net.SplitHostPort(at)
	return "wss://localhost:" + port + "/place?token=of-the-proxy"
}

// certificate makes a certificate for localhost.
func certificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
