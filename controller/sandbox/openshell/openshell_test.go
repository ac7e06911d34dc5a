package openshell

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rules "agentsh/controller/openshell"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/openshelldouble"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func TestMain(m *testing.M) {
	openshelldouble.Main()
	testenv.Main(m)
}

// all are the words of all guarantees.
func all() []string {
	var out []string
	for _, g := range rules.Guarantees() {
		out = append(out, g.Word)
	}
	return out
}

// open makes a backend of a double.
func open(t *testing.T, d *openshelldouble.Double) *Backend {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir, err := os.MkdirTemp("/var/tmp", "openshell")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statedir.RemoveTree(dir) })
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{
		Gateway: Gateway{Address: d.Address(), CA: d.CA(), TokenFile: d.TokenFile()},
		Without: all(), State: state, Agentsh: testenv.Agentsh(t), Lease: 20 * time.Second, Look: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var container = sandbox.Container{Image: sandbox.Image{Name: openshelldouble.Image, ID: openshelldouble.Image}}

// described is a sandbox of a test.
func described(id string) sandbox.Spec {
	const policy = "version: 1\nname: all\ncommand_rules: [{name: all, commands: ['*'], decision: allow}]\nfile_rules:\n" +
		"  - {name: own, paths: ['/sandbox', '/sandbox/**'], operations: ['*'], decision: allow}\n" +
		"  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/**'],\n" +
		"     operations: [read, list, stat, execute], decision: allow}\n" +
		"network_rules: [{name: api, domains: [api.example.com], ports: [443], methods: [GET, HEAD], paths: ['/v1/**'], decision: allow}]\n"
	return sandbox.Spec{
		RunID: id, Policy: []wire.PolicySource{{Name: "all.yaml", Data: []byte(policy)}}, Home: "/sandbox/home", Container: container,
		Vars: map[string]string{"WORKSPACE": "/sandbox", "PROJECT_ROOT": "/sandbox", "HOME": "/sandbox/home", "TMPDIR": "/tmp"},
	}
}

func TestASandboxAtADouble(t *testing.T) {
	d := openshelldouble.New(t)
	d.Slowly(2)
	sandboxtest.Run(t, open(t, d), sandbox.Container{Image: sandbox.Image{Name: openshelldouble.Image}})
	if left := d.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// kindOf is the kind of the end in an error.
func kindOf(err error) sandbox.EndKind {
	var end *sandbox.End
	if errors.As(err, &end) {
		return end.Kind
	}
	return ""
}

func TestWhatAGatewayRefusesIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(*openshelldouble.Double, *Config)
		kind    sandbox.EndKind
		says    string
	}{
		{"another version", func(d *openshelldouble.Double, _ *Config) { d.Version("0.2.0") }, sandbox.EndRefused, "0.1.x"},
		{"an old version", func(d *openshelldouble.Double, _ *Config) { d.Version("0.0.44") }, sandbox.EndRefused, "--backend exec"},
		{"an expired token", func(d *openshelldouble.Double, _ *Config) { d.Expire() }, sandbox.EndRefused, "token_file"},
		{"no token", func(_ *openshelldouble.Double, c *Config) { c.Gateway.TokenFile = "" }, sandbox.EndRefused, "token_file"},
		{"another authority", func(_ *openshelldouble.Double, c *Config) { c.Gateway.CA = "" }, sandbox.EndUnreachable, "certificate"},
		{"no client certificate", func(d *openshelldouble.Double, _ *Config) { d.Mutual() }, sandbox.EndUnreachable, "cert and key of"},
		{"a full quota", func(d *openshelldouble.Double, _ *Config) { d.Quota(0) }, sandbox.EndQuota, "agentctl gc"},
		{"another workspace", func(_ *openshelldouble.Double, c *Config) { c.Gateway.Workspace = "other" }, sandbox.EndRefused, "other"},
		{"a policy that OpenShell cannot hold", func(_ *openshelldouble.Double, c *Config) { c.Without = nil }, "", "all.yaml:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openshelldouble.New(t)
			cfg := open(t, d).cfg
			tt.prepare(d, &cfg)
			b, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			s := described("refused-1")
			if err = b.Check(t.Context(), s); err == nil {
				_, err = b.Create(t.Context(), s)
			}
			var end *sandbox.End
			said := ""
			if err != nil {
				said = err.Error()
			}
			if errors.As(err, &end) {
				said += end.Hint
			}
			if kindOf(err) != tt.kind || !strings.Contains(said, tt.says) {
				t.Errorf("%v, kind %q, want %q and %q", said, kindOf(err), tt.kind, tt.says)
			}
			if left := d.Names(); len(left) > 0 || strings.Contains(said, openshelldouble.Token) {
				t.Errorf("left: %q, %s", left, said)
			}
		})
	}
}

// made makes a sandbox that is ready.
func made(t *testing.T, b *Backend, id string) sandbox.Sandbox {
	t.Helper()
	box, err := b.Create(t.Context(), described(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return box
}

func TestAGatewayKnowsTheCertificateOfItsCaller(t *testing.T) {
	d := openshelldouble.New(t)
	cfg := open(t, d).cfg
	cfg.Gateway.Cert, cfg.Gateway.Key = d.Mutual()
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	echo := wire.ExecRequest{Argv: []string{"echo", "in"}, Cwd: "/sandbox"}
	_, err = made(t, b, "mutual-1").Run(t.Context(), echo, sandbox.Streams{Stdout: &out})
	if err != nil || out.String() != "in\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	for name, change := range map[string]func(*Gateway){
		"a client certificate needs its key":   func(g *Gateway) { g.Key = "" },
		"client certificate: tls: private key": func(g *Gateway) { g.Cert = d.CA() },
	} {
		changed := cfg
		change(&changed.Gateway)
		if _, err := Open(changed); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// restarting is the output of a command. It starts the gateway again when a line arrives.
type restarting struct {
	strings.Builder
	d *openshelldouble.Double
}

func (r *restarting) Write(p []byte) (int, error) {
	if r.Len() < 8 {
		r.d.Restart()
	}
	return r.Builder.Write(p)
}

// TestAGatewayThatStartsAgainFailsNoRun starts it again while a command prints.
func TestAGatewayThatStartsAgainFailsNoRun(t *testing.T) {
	d := openshelldouble.New(t)
	box := made(t, open(t, d), "again-1")
	out := &restarting{d: d}
	script := "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done"
	_, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"sh", "-c", script}, Cwd: "/sandbox"}, sandbox.Streams{Stdout: out})
	if err != nil || out.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestTheEndOfASandboxIsNamed(t *testing.T) {
	name := nameOf("ended-1")
	for _, tt := range []struct {
		name string
		end  func(*openshelldouble.Double)
		kind sandbox.EndKind
		says string
	}{
		{"completed", func(d *openshelldouble.Double) { d.End(name, pb.SandboxPhase_SANDBOX_PHASE_COMPLETED) }, sandbox.EndDied, "Completed"},
		{"an error", func(d *openshelldouble.Double) { d.End(name, pb.SandboxPhase_SANDBOX_PHASE_ERROR) }, sandbox.EndDied, "Error"},
		{"stopped", func(d *openshelldouble.Double) { d.End(name, pb.SandboxPhase_SANDBOX_PHASE_STOPPED) }, sandbox.EndKilled, "stopped"},
		{"deleted", func(d *openshelldouble.Double) { d.Lose(name) }, sandbox.EndRemoved, "no more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openshelldouble.New(t)
			box := made(t, open(t, d), "ended-1")
			tt.end(d)
			<-box.Gone()
			if err := box.Cause(); kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestSandboxesOfDeadControllersAreFound(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	collectsTheDead(t, b, func(s sandbox.Spec) remote.Carrier { return &place{b: b, spec: s} }, func(labels map[string]string) error {
		held, err := rendered(described("policy"), b.cfg.Without)
		if err != nil {
			return err
		}
		_, err = b.gateway.client.CreateSandbox(t.Context(), &pb.CreateSandboxRequest{
			Name: foreign, Labels: labels, WorkspaceScope: b.gateway.scope(), Spec: &pb.SandboxSpec{
				Template: &pb.SandboxTemplate{Image: openshelldouble.Image}, Policy: held, Command: []string{"sleep", "infinity"},
			},
		})
		return err
	}, d.Names)
}

// foreign is a sandbox of somebody else, with labels of this host.
const foreign = "a-foreign"

// collectsTheDead makes sandboxes whose controllers are gone, one that lives and a foreign one, and collects.
func collectsTheDead(
	t *testing.T, b *Backend, of func(sandbox.Spec) remote.Carrier, makeForeign func(labels map[string]string) error, names func() []string,
) {
	t.Helper()
	for _, id := range []string{"dead-1", "dead-2", "dead-3"} {
		s, err := of(described(id)).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Kill()
	}
	made(t, b, "living-1")
	owner, err := remote.Owner(b.cfg.State)
	if err == nil {
		err = makeForeign(map[string]string{labelOwner: owner, labelRun: "dead-4"})
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := b.Leftovers(t.Context())
	if err != nil || len(left) != 3 {
		t.Fatalf("%+v, %v", left, err)
	}
	if left, err = b.Collect(t.Context()); err != nil || len(left) != 3 {
		t.Fatalf("%+v, %v", left, err)
	}
	if got := names(); !slices.Equal(got, []string{foreign, nameOf("living-1")}) {
		t.Errorf("there are %q", got)
	}
}

// TestASandboxOfSomebodyElseIsLeftAlone waits, after a lost answer, for a sandbox whose name somebody else took.
func TestASandboxOfSomebodyElseIsLeftAlone(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	held, err := rendered(described("policy"), b.cfg.Without)
	if err == nil {
		_, err = b.gateway.client.CreateSandbox(t.Context(), &pb.CreateSandboxRequest{
			Name: nameOf("taken-1"), Labels: map[string]string{labelRun: "other"}, WorkspaceScope: b.gateway.scope(), Spec: &pb.SandboxSpec{
				Template: &pb.SandboxTemplate{Image: openshelldouble.Image}, Policy: held, Command: []string{"sleep", "infinity"},
			},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &place{b: b, spec: described("taken-1"), asked: true}
	if err := p.wait(t.Context(), nil, errors.New("the answer was lost")); !errors.Is(err, errForeign) || p.asked {
		t.Errorf("%v, asked %v", err, p.asked)
	}
	if err := p.remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := b.gateway.get(t.Context(), nameOf("taken-1")); err != nil {
		t.Error(err)
	}
}

func TestAListThatDoesNotEndIsAnError(t *testing.T) {
	n := 0
	endless := func(string) (page, error) { n++; return &pb.ListProvidersResponse{NextPageToken: strconv.Itoa(n)}, nil }
	if err := pages(endless); kindOf(err) != sandbox.EndRefused || n != maxPages {
		t.Errorf("%d pages, %v", n, err)
	}
	n = 0
	huge := strings.Repeat("x", maxMessage-100)
	large := func(string) (page, error) { n++; return &pb.ListProvidersResponse{NextPageToken: huge[n:]}, nil }
	if err := pages(large); kindOf(err) != sandbox.EndRefused || n > maxList/maxMessage+1 {
		t.Errorf("%d large pages, %v", n, err)
	}
	if err := pages(func(string) (page, error) { return &pb.ListProvidersResponse{NextPageToken: "same"}, nil }); err != nil {
		t.Error(err)
	}
}

// TestAnAnswerThatIsTooLargeIsNoQuota has a provider whose name is larger than an answer may be.
func TestAnAnswerThatIsTooLargeIsNoQuota(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	d.Provide(strings.Repeat("x", maxMessage), openshelldouble.Builtin, map[string]string{"BUILTIN_TOKEN": "other"})
	_, err := b.Leftovers(t.Context())
	var end *sandbox.End
	if !errors.As(err, &end) || end.Kind != sandbox.EndRefused || !strings.Contains(end.Hint, "more than 16 MiB") || len(end.Text) > 1000 {
		t.Errorf("%.300v", err)
	}
}

// TestNamesOfAGatewayAreNotShownAsTheyAre has a sandbox, a provider and a profile with codes of a terminal in their labels.
func TestNamesOfAGatewayAreNotShownAsTheyAre(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	owner, err := remote.Owner(b.cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	const run = "\x1b[2J"
	labels := map[string]string{labelOwner: owner, labelRun: run}
	held, err := rendered(described("policy"), b.cfg.Without)
	if err == nil {
		_, err = b.gateway.client.CreateSandbox(t.Context(), &pb.CreateSandboxRequest{
			Name: nameOf(run), Labels: labels, WorkspaceScope: b.gateway.scope(),
			Spec: &pb.SandboxSpec{Template: &pb.SandboxTemplate{Image: openshelldouble.Image}, Policy: held},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := b.Leftovers(t.Context()); err != nil || len(left) > 0 || len(d.Names()) != 1 {
		t.Errorf("%+v, %v, %q", left, err, d.Names())
	}
}

// TestTheGatewayGetsThePolicy compares what arrives with the rendering.
func TestTheGatewayGetsThePolicy(t *testing.T) {
	d := openshelldouble.New(t)
	made(t, open(t, d), "policy-1")
	p := d.Policies()[0]
	rule := p.GetNetworkPolicies()["api-1"]
	if p.GetLandlock().GetCompatibility() != "hard_requirement" || !slices.Contains(p.GetFilesystem().GetReadWrite(), "/sandbox") ||
		len(rule.GetEndpoints()) != 1 {
		t.Fatalf("%v", p)
	}
	e := rule.GetEndpoints()[0]
	if e.GetHost() != "api.example.com" || !slices.Equal(e.GetPorts(), []uint32{443}) || e.GetProtocol() != "rest" ||
		e.GetEnforcement() != pb.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE || e.GetRules()[0].GetAllow().GetMethod() != "GET" {
		t.Errorf("%v", e)
	}
}

// TestAgentshHasWhatItNeedsInASandbox has rules about directories that a run makes, and a path within another one.
func TestAgentshHasWhatItNeedsInASandbox(t *testing.T) {
	p := &rules.Policy{
		ReadOnly:  []string{"/sandbox", "/usr/lib/agentsh/agentsh", "/opt", "/opt-2", "/srv/data/x", "/usr"},
		ReadWrite: []string{"/sandbox/home", "/srv/data", "/tmp/x"},
	}
	widen(p)
	if want := []string{"/dev/null", "/sandbox", "/srv/data", "/tmp", "/var/tmp"}; !slices.Equal(p.ReadWrite, want) {
		t.Errorf("writes %q", p.ReadWrite)
	}
	if want := []string{"/bin", "/dev/urandom", "/etc", "/lib", "/opt", "/opt-2", "/proc", "/usr"}; !slices.Equal(p.ReadOnly, want) {
		t.Errorf("reads %q", p.ReadOnly)
	}
}

func TestNamesOfSandboxesAreShort(t *testing.T) {
	seen := map[string]bool{}
	for _, run := range []string{"20261126t173208-293e5cd2", "20261126t173208-293e5cd3", "a", "20270101t000000-00000000"} {
		name := nameOf(run)
		if checkName(name) != nil || seen[name] {
			t.Errorf("%s: %q", run, name)
		}
		seen[name] = true
	}
}
