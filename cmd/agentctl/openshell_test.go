package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/wire"
)

// atOpenShell has the runs of a fixture at a double of OpenShell's gateway. more belongs to openshell of agentctl.yaml.
func atOpenShell(t *testing.T, agent, more string) (*fixture, *openshelldouble.Double) {
	t.Helper()
	d := openshelldouble.New(t)
	p := newFixture(t, agent, "image: "+openshelldouble.Image+"\nbackend: openshell\n")
	p.write("config/agentsh/agentctl.yaml", fmt.Sprintf("openshell: {gateway: '%s', ca: '%s', token_file: '%s'%s}\n",
		d.Address(), d.CA(), d.TokenFile(), more), 0o644)
	p.setenv = append(p.setenv, "XDG_CONFIG_HOME="+p.path("config"))
	return p, d
}

// given are the guarantees that the policy of a fixture has and OpenShell does not hold.
const given = "without: [baseline_files, binary_descendants, commands, env, file_metadata, file_operations, file_parts, git_guard, " +
	"path_readings, private_addresses, resource_limits, signals, unix_sockets]"

func TestRunsAtADoubleOfOpenShell(t *testing.T) {
	t.Parallel()
	p, d := atOpenShell(t, `env >a.txt; git commit -qam changed`, ", "+given)
	r, code := p.run()
	if code != 0 || r.Backend != "openshell" || r.Image == nil || r.Image.Name != openshelldouble.Image || len(r.Commits) != 1 {
		t.Fatalf("exit code %d: %+v, image %+v", code, r.Error, r.Image)
	}
	said := p.git("show", r.Branch+":a.txt")
	for _, want := range []string{"HTTPS_PROXY=" + openshelldouble.Proxy, "https_proxy=" + openshelldouble.Proxy, "NO_PROXY=127.0.0.1"} {
		if !strings.Contains(said, want) {
			t.Errorf("the environment has no %s:\n%s", want, said)
		}
	}
	if strings.Contains(said, openshelldouble.Token) {
		t.Errorf("the sandbox shows the token:\n%s", said)
	}
	i := slices.IndexFunc(r.Guarantees, func(g controller.Guarantee) bool { return g.Group == wire.GroupNetwork })
	if i < 0 || r.Guarantees[i].HeldBy != "OpenShell" || !strings.Contains(r.Guarantees[i].How, "the place of the sandbox decides") {
		t.Errorf("who holds the network: %+v", r.Guarantees)
	}
	if left := d.Names(); len(left) > 0 || len(d.Policies()) != 1 {
		t.Errorf("left: %q, %d policies", left, len(d.Policies()))
	}
}

func TestAPolicyThatOpenShellCannotHoldIsRefused(t *testing.T) {
	t.Parallel()
	p, d := atOpenShell(t, "true", "")
	r, code := p.run()
	if code != controller.ExitConfiguration || r.Error == nil || !strings.Contains(r.Error.Message, "OpenShell cannot hold the policy") ||
		!strings.Contains(r.Error.Message, "policy.yaml:") ||
		!strings.Contains(r.Error.Message, "write openshell: {without: [commands, env, ") {
		t.Errorf("exit code %d: %+v", code, r.Error)
	}
	if len(d.Policies()) > 0 {
		t.Error("a sandbox was made")
	}
	p.write("harness.yaml", p.read("harness.yaml")+"container: {pids: 100}\n", 0o644)
	if out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml"); code != controller.ExitConfiguration ||
		!strings.Contains(out+errs, "container.pids: OpenShell decides about the containers of its sandboxes") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// TestTheStartOfAGatewayIsConfigured has no run: each is refused before.
func TestTheStartOfAGatewayIsConfigured(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "image: "+openshelldouble.Image+"\nbackend: openshell\n")
	p.setenv = append(p.setenv, "XDG_CONFIG_HOME="+p.path("config"))
	const address = "gateway: 'http://127.0.0.1:1'"
	for config, want := range map[string]string{
		"{gateway: 'https://gateway.example.com', start: true}":    "the gateway is at another machine",
		"{gateway: 'https://127.0.0.1:1', start: []}":              "start names no program",
		"{gateway: 'https://127.0.0.1:1', start: yes}":             "write start: true, or start: [PROGRAM, ARGUMENT]",
		"{gateway: 'https://gateway.invalid:8080', " + given + "}": "does 'curl -v https://gateway.invalid:8080' reach it from here?",
		"{start: true}": "no gateway of OpenShell is active",
		"{" + address + ", start: 'openshell gateway start'}": "write start: true, or start: [PROGRAM, ARGUMENT]",
		"{gateway: missing}":               "gateway missing is not registered",
		"{" + address + ", " + given + "}": "systemctl --user start openshell-gateway",
		"{" + address + ", start: [sh, -c, 'echo none >&2; exit 1'], " + given + "}": "none",
	} {
		p.write("config/agentsh/agentctl.yaml", "openshell: "+config+"\n", 0o644)
		out, errs, code := p.try("", "run", "harness.yaml", "--repo", "repo", "--out", "out")
		if code == 0 || !strings.Contains(out+errs, want) {
			t.Errorf("%s: exit code %d: %s%s", config, code, out, errs)
		}
	}
}

// TestCredentialsOfARunAreThoseOfOpenShell: a provider of the harness becomes one of the gateway.
func TestCredentialsOfARunAreThoseOfOpenShell(t *testing.T) {
	t.Parallel()
	const secret, theirs = realValue, "openshell:resolve:env:v1_API_TOKEN"
	for _, tt := range []struct {
		name, setting, credentials string
		environ                    []string
		kept                       int
	}{
		{"made for the run", "", `{API_TOKEN: "${API_TOKEN}"}`, []string{"API_TOKEN=" + secret}, 0},
		{"a bare key", "", `[API_TOKEN]`, []string{"API_TOKEN=" + secret}, 0},
		{"of the operator, with no value here", "{api: {name: team-api}}", `{API_TOKEN: "${API_TOKEN}"}`, nil, 1},
		{"made once", "{api: {name: other-api, type: team, reconcile: create}}", `[API_TOKEN]`, []string{"API_TOKEN=" + secret}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			more := ", " + given
			if tt.setting != "" {
				more += ", providers: " + tt.setting
			}
			p, d := atOpenShell(t, `env >a.txt; cat /proc/*/environ | tr '\0' '\n' >>a.txt; cat /sandbox/workspace/file.txt >>a.txt; git commit -qam changed`, more)
			d.Profile("team", "API_TOKEN")
			if tt.kept > 0 {
				d.Provide("team-api", "team", map[string]string{"API_TOKEN": secret})
			}
			p.setenv = append(p.setenv, tt.environ...)
			p.write("policy.yaml", p.read("policy.yaml")+
				"network_rules: [{name: api, domains: [api.example.com], ports: [443], decision: allow}]\n", 0o644)
			p.write("providers/api.yaml", "name: api\ntype: rest\nendpoints: [api.example.com]\nheader: Authorization\ncredentials: "+tt.credentials+"\n", 0o644)
			p.write("file.txt", "in-a-file ${API_TOKEN}\n", 0o644)
			p.write("harness.yaml", p.read("harness.yaml")+"providers: [providers/api.yaml]\nenv: {sandbox: {ALSO: '${API_TOKEN}'}}\n"+
				"host_files: [{src: file.txt, dest: /sandbox/workspace/file.txt, expand: true}]\n", 0o644)
			r, code := p.run()
			if code != 0 || len(r.Commits) != 1 {
				t.Fatalf("exit code %d: %+v", code, r.Error)
			}
			said := p.git("show", r.Branch+":a.txt")
			for _, want := range []string{"\nAPI_TOKEN=" + theirs + "\n", "\nALSO=" + theirs + "\n", "in-a-file " + theirs} {
				if !strings.Contains("\n"+said+"\n", want) {
					t.Errorf("the sandbox has no %q:\n%s", want, said)
				}
			}
			p.withoutValue(nil)
			if len(d.Providers()) != tt.kept || len(d.Names()) > 0 {
				t.Errorf("left: %v, %q", d.Providers(), d.Names())
			}
			i := slices.IndexFunc(r.Guarantees, func(g controller.Guarantee) bool { return g.Group == wire.GroupCredentials })
			if i < 0 || r.Guarantees[i].HeldBy != "OpenShell" {
				t.Errorf("who holds the credentials: %+v", r.Guarantees)
			}
		})
	}
}

// TestAKeyThatOpenShellDoesNotHoldIsNamed has one key of the policy that is not given up: a run says where it is, and so does lint.
func TestAKeyThatOpenShellDoesNotHoldIsNamed(t *testing.T) {
	t.Parallel()
	p, d := atOpenShell(t, "true", ", "+strings.Replace(given, "env, ", "", 1))
	policy := p.read("policy.yaml")
	line := strings.Count(policy[:strings.Index("\n"+policy, "\nenv_inject")], "\n") + 1
	want := fmt.Sprintf("policy.yaml:%d:1: env_inject: OpenShell restores no variables", line)
	r, code := p.run()
	if code != controller.ExitConfiguration || r.Error == nil || !strings.Contains(r.Error.Message, want) ||
		strings.Contains(r.Error.Message, "agentctl-run.yaml") {
		t.Errorf("exit code %d: %+v, want %s", code, r.Error, want)
	}
	at := strings.Replace(want, "1: ", "1: error: ", 1)
	for _, args := range [][]string{{"lint", "harness.yaml"}, {"lint", "--repo", "repo", "harness.yaml"}} {
		if out, errs, code := p.try("", args...); code != controller.ExitConfiguration || !strings.Contains(out+errs, at) {
			t.Errorf("%s: %d %s%s", args, code, out, errs)
		}
	}
	if len(d.Policies()) > 0 {
		t.Error("a sandbox was made")
	}

	// A gateway that does not answer is no fault of what is written.
	p.write("config/agentsh/agentctl.yaml", "openshell: {gateway: 'http://127.0.0.1:1', "+given+"}\n", 0o644)
	if r, code := p.run(); code != controller.ExitSandbox || r.Error == nil || !strings.Contains(r.Error.Message, "127.0.0.1:1") {
		t.Errorf("without an answer: %d %+v", code, r.Error)
	}

	// A machine that has no gateway may not be the one that runs: what can be given up is not refused there.
	p.write("config/agentsh/agentctl.yaml", "", 0o644)
	if out, errs, code := p.try("", "lint", "harness.yaml"); code != 0 {
		t.Errorf("without a gateway: %d %s%s", code, out, errs)
	}
	p.write("policy.yaml", policy+"defaults: {network: allow}\n", 0o644)
	if out, errs, code := p.try("", "lint", "harness.yaml"); code != controller.ExitConfiguration ||
		!strings.Contains(out+errs, "error: defaults: OpenShell denies hosts that no rule names") {
		t.Errorf("what nobody can give up: %d %s%s", code, out, errs)
	}
}
