package supervisor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/internal/layout"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/egress"
)

// outside is what a session may reach: names that a server answers, and one web
// server behind every address.
type outside struct {
	resolver netip.AddrPort
	web      string // address of the web server
	ca       []byte // its authority, PEM
	roots    *x509.CertPool
}

// hosts are the names outside, with their addresses.
var hosts = map[string]string{
	"allowed.test.": "198.51.100.1", "six.test.": "2001:db8::6", "refused.test.": "198.51.100.2", "curl.test.": "198.51.100.3",
	"watched.test.": "198.51.100.4", "secret.test.": "198.51.100.5", "registry.test.": "198.51.100.6",
}

func newOutside(t testing.TB, handler http.Handler) *outside {
	t.Helper()
	o := &outside{roots: x509.NewCertPool()}
	o.serveNames(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		), Subject: pkix.Name{CommonName: "outside"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{"*.test"},
	}
	for name := range hosts {
		template.DNSNames = append(template.DNSNames, strings.TrimSuffix(name, "."))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	o.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	o.roots.AppendCertsFromPEM(o.ca)
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	o.web = server.Listener.Addr().String()
	return o
}

// serveNames answers A and AAAA questions about hosts.
func (o *outside) serveNames(t testing.TB) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	o.resolver = conn.LocalAddr().(*net.UDPAddr).AddrPort()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := answerName(buf[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

func answerName(question []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	text, known := hosts[strings.ToLower(q.Name.String())]
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	} else {
		a := netip.MustParseAddr(text)
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: a.As4()}}}
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
		}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

// dial reaches the web server by the address and port of any host.
func (o *outside) dial(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	for _, a := range hosts {
		if to.Addr() == netip.MustParseAddr(a) && (to.Port() == 443 || to.Port() == 8443) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", o.web)
		}
	}
	return nil, fmt.Errorf("connect %s: nothing is there", address)
}

// netRules are rules about hosts, put into the test policy.
const netRules = `network_rules:
  - {name: no-refused, domains: [refused.test], decision: deny, message: not that one}
  - {name: only-curl, domains: [curl.test], binaries: [curl], decision: allow}
  - {name: watched, domains: [watched.test], decision: audit}
  - {name: open, domains: [allowed.test, six.test, registry.test], ports: [443, 8443], protocols: [tcp], decision: allow}
env_policy:`

// netModes are the ways in which connections come to the proxy.
var netModes = map[string]func(*Config){
	"redirected": func(*Config) {},
	"emulated":   func(c *Config) { c.Network.Egress.NoRedirect = true },
	"shared":     func(c *Config) { c.Network.Shared = true },
}

// open opens a session with rules about the network.
func (o *outside) open(t *testing.T, rules string, change func(*Config)) *box {
	t.Helper()
	testenv.Need(t, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	cfg, log := testConfig(t, strings.Replace(testPolicy, "env_policy:", rules, 1))
	cfg.Network.Egress.Resolvers, cfg.Network.Egress.Dial, cfg.Network.Egress.Roots = []netip.AddrPort{o.resolver}, o.dial, o.roots
	change(&cfg)
	if err := os.WriteFile(filepath.Join(cfg.Cwd, "ca.pem"), o.ca, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
}

func greet(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s", r.Host) }

// eachMode runs a test in every mode.
func eachMode(t *testing.T, f func(t *testing.T, change func(*Config))) {
	t.Helper()
	for name, change := range netModes {
		t.Run(name, func(t *testing.T) { f(t, change) })
	}
}

func TestProgramsReachWhatRulesAllow(t *testing.T) {
	testenv.Need(t, testenv.Program("curl"), testenv.Program("node"), testenv.Program("python3"))
	eachMode(t, func(t *testing.T, change func(*Config)) {
		b := newOutside(t, http.HandlerFunc(greet)).open(t, netRules, change)
		const curl = "curl -sS --cacert ca.pem "
		python := `python3 -c 'import ssl, sys, urllib.request as u; print(u.urlopen(sys.argv[1], context=ssl.create_default_context(cafile="ca.pem")).read().decode())' `
		node := `NODE_EXTRA_CA_CERTS=ca.pem node -e 'require("https").get(process.argv[1], r => r.pipe(process.stdout)).on("error", e => console.log(e.code))' `
		tests := []struct{ name, script, want string }{
			{"curl by the proxy", curl + "https://allowed.test/", "hello from allowed.test"},
			{"curl by SOCKS", curl + "-x socks5h://${HTTPS_PROXY#http://} https://allowed.test:8443/", "hello from allowed.test:8443"},
			{"curl without a proxy", direct + curl + "https://allowed.test/", "hello from allowed.test"},
			{"an address of IPv6 by the proxy", curl + "https://six.test/", "hello from six.test"},
			{"an address of IPv6 without a proxy", direct + curl + "https://six.test/", "hello from six.test"},
			{"python by the proxy", python + "https://allowed.test/", "hello from allowed.test"},
			{"python without a proxy", direct + python + "https://allowed.test/", "hello from allowed.test"},
			{"node, which reads no proxy variables", node + "https://allowed.test/", "hello from allowed.test"},
			{"a rule for one program", curl + "https://curl.test/", "hello from curl.test"},
			{"the same without a proxy", direct + curl + "https://curl.test/", "hello from curl.test"},
			{"another program", python + "https://curl.test/ 2>/dev/null || echo refused", "refused"},
			{"another program without a proxy", direct + python + "https://curl.test/ 2>/dev/null || echo refused", "refused"},
			{"what a rule denies", curl + "https://refused.test/ 2>/dev/null || echo refused", "refused"},
			{"what no rule names", direct + curl + "https://198.51.100.5/ 2>/dev/null || echo refused", "refused"},
			{"another port", direct + curl + "https://allowed.test:444/ 2>/dev/null || echo refused", "refused"},
			{
				"an address that no name was asked for",
				direct + curl + "-k --connect-timeout 5 https://198.51.100.4/ 2>/dev/null || echo refused",
				"refused",
			},
			{
				"one name in the TLS of another",
				direct + curl + "-k --connect-to secret.test:443:allowed.test:443 https://secret.test/ 2>/dev/null || echo refused",
				"refused",
			},
			{"no name", "getent hosts nowhere.test || echo unknown", "unknown"},
			{"what is watched", curl + "https://watched.test/", "hello from watched.test"},
			{"datagrams", `python3 -c '
import socket
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("198.51.100.1", 443))
except PermissionError: print("refused")
except OSError as e: print("refused" if e.errno == 101 else e)'`, "refused"},
		}
		for _, tt := range tests {
			if b.network.Shared() && tt.name == "an address of IPv6 without a proxy" {
				continue // the C library looks up no such address on a machine without one of its own
			}
			if exit, out := b.request(t, wire.ExecRequest{ID: tt.name, Argv: []string{"bash", "-c", tt.script}}); exit.Code != 0 ||
				strings.TrimSpace(out) != tt.want {
				t.Errorf("%s: %+v %q instead of %q", tt.name, exit, out, tt.want)
			}
		}
		denied := b.events(t, func(e wire.Event) bool {
			return e.Type == wire.EventNet && e.Decision == "deny" && e.Command == "what a rule denies"
		})
		if len(denied) == 0 || denied[0].Rule.Name != "no-refused" || denied[0].Process == nil ||
			!strings.HasSuffix(denied[0].Process.Exe, "/curl") {
			t.Errorf("denied: %+v", denied)
		}
		if watched := b.events(t, func(e wire.Event) bool {
			return e.Type == wire.EventNet && e.Decision == "audit" && e.Command == "what is watched"
		}); len(watched) == 0 {
			t.Error("what is audited is not in the log")
		}
	})
}

func TestCredentialsNeverEnterTheSession(t *testing.T) {
	const value = "the-real-value-9021"
	var mu sync.Mutex
	var seen []string
	o := newOutside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Host+" "+r.Header.Get("Authorization"))
		fmt.Fprintf(w, "you said %s", r.Header.Get("Authorization"))
	}))
	const mark = "placeholder-of-the-token"
	b := o.open(t, netRules, func(c *Config) {
		c.Network.Egress.Credentials = []egress.Credential{
			{Name: "api.TOKEN", Placeholder: mark, Value: value, Endpoints: []string{"allowed.test"}, Header: "Authorization"},
		}
	})
	exit, out := b.run(
		t,
		"bash",
		"-c",
		`for header in Authorization X-Other; do curl -sS -H "$header: token `+mark+`" https://allowed.test/; echo; done
env -u HTTPS_PROXY -u https_proxy -u ALL_PROXY -u all_proxy curl -sS -u user:`+mark+` https://allowed.test/; echo
python3 -c 'import urllib.request as u; print(u.urlopen("https://allowed.test/").read())'
cat /usr/lib/agentsh/ca-bundle.pem; env`,
	)
	if exit.Code != 0 || strings.Contains(out, value) || !strings.Contains(out, "you said token ****") ||
		!strings.Contains(out, "SSL_CERT_FILE="+layout.CABundle) {
		t.Errorf("%+v\n%s", exit, out)
	}
	mu.Lock()
	defer mu.Unlock()
	basic := "allowed.test Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+value))
	if len(seen) != 3 || seen[0] != "allowed.test token "+value || seen[1] != basic || seen[2] != "allowed.test " {
		t.Errorf("the server saw %q\n%.1500s", seen, out)
	}
	data, err := os.ReadFile(b.log)
	if err != nil || strings.Contains(string(data), value) {
		t.Errorf("the log holds the value, or %v", err)
	}
	if denied := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventNet && e.Decision == "deny" }); len(denied) == 0 {
		t.Error("the placeholder in another header is not in the log")
	}
}

func TestAReloadClosesConnectionsThatAreNoLongerPermitted(t *testing.T) {
	o := newOutside(t, http.HandlerFunc(greet))
	b := o.open(t, netRules, func(*Config) {})
	exit, out := b.run(t, "curl", "-sS", "--cacert", "ca.pem", "https://allowed.test/")
	if exit.Code != 0 || out != "hello from allowed.test" {
		t.Fatalf("%+v %s", exit, out)
	}
	text := strings.Replace(testPolicy, "env_policy:", strings.Replace(netRules, "allowed.test, ", "", 1), 1)
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(text)},
		syntax.Options{Vars: map[string]string{"WORKSPACE": b.workspace, "PROJECT_ROOT": b.workspace, "HOME": "/home/sandbox", "TMPDIR": "/tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reload(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if exit, out := b.run(t, "curl", "-sS", "--cacert", "ca.pem", "https://allowed.test/"); exit.Code == 0 {
		t.Errorf("%+v %s", exit, out)
	}
}

// Another user than root opens its sessions in user namespaces.
func TestTheNetworkIsEnforcedWithoutPrivilege(t *testing.T) {
	testenv.Need(t, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.UserNS)
	if os.Geteuid() == 0 {
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		defer self.Close()
		cmd := exec.Command(
			"unshare",
			"-m",
			"sh",
			"-ec",
			`mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse; mkdir -m 777 /mnt/tmp; exec env TMPDIR=/mnt/tmp "$@"`,
			"sh",
			"setpriv",
			"--reuid",
			"1000",
			"--regid",
			"1000",
			"--clear-groups",
			"/proc/self/fd/3",
			"-test.run=^"+t.Name()+"$",
			"-test.v",
		)
		cmd.Dir, cmd.ExtraFiles = "/", []*os.File{self}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	o := newOutside(t, http.HandlerFunc(greet))
	for name, change := range netModes {
		b := o.open(t, netRules, change)
		exit, out := b.run(
			t,
			"bash",
			"-c",
			`curl -sS --cacert ca.pem https://allowed.test/; echo; curl -sS --cacert ca.pem https://curl.test/; echo
env -u HTTPS_PROXY -u https_proxy -u ALL_PROXY -u all_proxy curl -sS --cacert ca.pem https://allowed.test/; echo
curl -sS --cacert ca.pem https://refused.test/ 2>/dev/null || echo refused`,
		)
		if exit.Code != 0 || out != "hello from allowed.test\nhello from curl.test\nhello from allowed.test\nrefused\n" {
			t.Errorf("%s: %+v %s", name, exit, out)
		}
	}
}
