package supervisor

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/probe"
)

// TestThePlaceDecidesAboutTheNetwork: OpenShell's proxy is reached by TCP, which agentsh otherwise refuses below such a
// listener and filters.
func TestThePlaceDecidesAboutTheNetwork(t *testing.T) {
	if testenv.Outer() == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.Landlock)
		for _, mode := range []string{"whole", "older"} { // OpenShell 0.1, and before
			testenv.Below(t, t.Name(), mode, "network", "OUTER_UID=60600", "HOME=/nonexistent")
		}
		return
	}
	proxy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	go func() { // ends with the listener
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "reached\n") // a caller that is gone reads nothing
			_ = c.Close()
		}
	}()
	const rules = "network_rules: [{name: api, domains: [api.example.com], ports: [443], decision: allow}]\n"
	script := fmt.Sprintf("exec 2>/dev/null; { cat <&3; } 3<>/dev/tcp/127.0.0.1/%d || echo refused", proxy.Addr().(*net.TCPAddr).Port)
	for by, want := range map[string]string{"": "refused\n", "OpenShell": "reached\n"} {
		cfg, log := testConfig(t, strings.NewReplacer(", /tmp, '/tmp/**'", "").Replace(besidePolicy)+rules)
		cfg.Degraded = []probe.Setting{{Name: "nested_commands", At: "c.yaml:1:2"}}
		boot := wire.Bootstrap{NetworkBy: by, NetworkVars: map[string]string{"HTTPS_PROXY": "http://10.200.0.1:3128"}}
		cfg.Network = SessionConfig(OperatorConfig{}, Request{Boot: boot}).Network
		s, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
		if exit, out := b.run(t, "bash", "-c", script); exit.Kind != wire.ExitExited || out != want {
			t.Errorf("the network is of %q: %+v %q, want %q", by, exit, out, want)
		}
		if exit, out := b.run(t, "printenv", "HTTPS_PROXY"); by != "" && out != "http://10.200.0.1:3128\n" {
			t.Errorf("the proxy of the place: %+v %q", exit, out)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	cfg, _ := testConfig(t, strings.NewReplacer(", /tmp, '/tmp/**'", "").Replace(besidePolicy)+rules)
	cfg.Degraded = []probe.Setting{{Name: "nested_commands", At: "c.yaml:1:2"}}
	cfg.Network = Network{Shared: true, By: "OpenShell"}
	cfg.Network.Egress.Credentials = []egress.Credential{{Name: "one"}}
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "OpenShell decides about the network") {
		t.Errorf("credentials: %v", err)
	}
	t.Log("held: network")
}
