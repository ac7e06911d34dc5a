package host

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheNetworkIsConfigured(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewTLSServer(nil)
	server.Close() // its certificate is all that is needed
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	good, bad := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(good, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig("c.yaml", []byte("network:\n  resolvers: [192.0.2.53, '[2001:db8::53]:5353']\n  ca_files: ["+good+"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Egress.Resolvers) != 2 || c.Egress.Resolvers[0].String() != "192.0.2.53:53" ||
		c.Egress.Resolvers[1].String() != "[2001:db8::53]:5353" ||
		c.Egress.Roots == nil {
		t.Errorf("%+v", c.Egress)
	}
	for text, want := range map[string]string{
		"network: {resolvers: [dns.example]}":     `c.yaml:1:23: "dns.example" is no address of a name server`,
		"network: {resolvers: 192.0.2.53}":        "network.resolvers must be a list",
		"network: {resolvers: [~]}":               "network.resolvers must be a list of texts",
		"network: {resolvers: ['192.0.2.53:0']}":  "is no address of a name server",
		"network: {ca_files: [" + bad + "]}":      "holds no certificate in PEM",
		"network: {ca_files: [" + dir + "]}":      "is not a regular file",
		"network: {ca_files: [/nosuch/ca.pem]}":   "no such file",
		"network: {proxy: 'http://example:3128'}": `network has no key "proxy"`,
	} {
		if _, err := parseConfig("c.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
