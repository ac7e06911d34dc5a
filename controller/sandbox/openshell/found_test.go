package openshell

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/openshelldouble"
)

// register makes the directory that OpenShell's program would have of a double, and returns the environment that names it.
func register(t *testing.T, d *openshelldouble.Double) func(string) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := d.Mutual()
	metadata, err := json.Marshal(map[string]any{"name": "local", "gateway_endpoint": d.Address(), "is_remote": false, "auth_mode": "mtls"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"active_gateway": []byte("local"), "gateways/local/metadata.json": metadata}
	for name, from := range map[string]string{"ca.crt": d.CA(), "tls.crt": cert, "tls.key": key} {
		if files["gateways/local/mtls/"+name], err = os.ReadFile(from); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range files {
		name = filepath.Join(dir, "openshell", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return map[string]string{"XDG_CONFIG_HOME": dir}[name] }
}

func TestAGatewayIsFoundWhereOpenShellKeepsIt(t *testing.T) {
	d := openshelldouble.New(t)
	cfg := open(t, d).cfg
	cfg.Getenv = register(t, d)
	for _, name := range []string{"", "local"} {
		cfg.Gateway = Gateway{Address: name, TokenFile: d.TokenFile()}
		b, err := Open(cfg)
		if err == nil {
			err = b.Check(t.Context(), described("found-1"))
		}
		if err != nil {
			t.Errorf("gateway %q: %v", name, err)
		}
	}
	cfg.Gateway.Address = "other"
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "gateway other is not registered") {
		t.Error(err)
	}
}

// TestAGatewayThatIsDownIsStarted has a command that lets the double listen again.
func TestAGatewayThatIsDownIsStarted(t *testing.T) {
	d := openshelldouble.New(t)
	cfg := open(t, d).cfg
	fifo := filepath.Join(t.TempDir(), "start")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Start = []string{"sh", "-c", "echo start >" + fifo}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.Down()
	if err := b.gateway.check(t.Context()); kindOf(err) != sandbox.EndUnreachable {
		t.Fatalf("a gateway that is down: %v", err)
	}
	started := make(chan error, 1)
	go func() { // ends when the command has run
		_, err := os.ReadFile(fifo)
		d.Restart()
		started <- err
	}()
	if err := b.Check(t.Context(), described("start-1")); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
	if err := b.Check(t.Context(), described("start-1")); err != nil { // nobody reads the pipe now
		t.Error(err)
	}
	cfg.Gateway.Address = "https://gateway.example.com:8080"
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "at another machine") {
		t.Error(err)
	}
}
