package openshell

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/openshell/program"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// openOlder makes a backend of a double of 0.0.83 with its program.
func openOlder(t *testing.T, d *openshelldouble.Double) (*Backend, *openshelldouble.Program) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("ssh"))
	dir, err := os.MkdirTemp("/var/tmp", "openshell")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statedir.RemoveTree(dir) })
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	p := d.Program("0.0.83")
	for _, v := range p.Environ {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	b, err := Open(Config{
		Without: all(), State: state, Agentsh: testenv.Agentsh(t), Lease: 20 * time.Second, Look: true, Getenv: os.Getenv,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b, p
}

func TestASandboxByOpenShellsProgram(t *testing.T) {
	b, p := openOlder(t, openshelldouble.New(t))
	sandboxtest.Run(t, b, sandbox.Container{Image: sandbox.Image{Name: openshelldouble.Image}})
	if left := p.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left, err := filepath.Glob(b.cfg.State.OpenShell() + "/sandbox-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

func TestWhatOpenShellsProgramRefusesIsNamed(t *testing.T) {
	sets := func(name, value string) func(*openshelldouble.Program, *sandbox.Spec) {
		return func(p *openshelldouble.Program, _ *sandbox.Spec) { p.Set(name, value) }
	}
	fails := func(text string) func(*openshelldouble.Program, *sandbox.Spec) { return sets("fails", text) }
	for _, tt := range []struct {
		name    string
		prepare func(*openshelldouble.Program, *sandbox.Spec)
		kind    sandbox.EndKind
		says    string
	}{
		{"no program", func(p *openshelldouble.Program, _ *sandbox.Spec) { p.Remove() }, sandbox.EndRefused, "install the openshell of"},
		{"another program", sets("version", "0.1.2"), sandbox.EndRefused, "0.0.45 to 0.0.87"},
		{"a later program", sets("version", "0.0.88"), sandbox.EndRefused, "0.0.45 to 0.0.87"},
		{"no connection", sets("gateway", ""), sandbox.EndUnreachable, "Disconnected"},
		{"no login", fails("list: code: 'The request does not have valid authentication credentials', message: \"expired\""),
			sandbox.EndRefused, "openshell gateway login double"},
		{"a quota", fails("create: code: 'Some resource has been exhausted', message: \"at most 2\nsandboxes\""), sandbox.EndQuota, "agentctl gc"},
		{"a quota of an older one", fails("create: status: ResourceExhausted, message: \"at most 2\""), sandbox.EndQuota, "agentctl gc"},
		{"no room", fails("create: sandbox provisioning timed out after 300s. Last reported status:\nPending"), sandbox.EndNoRoom, "Pending"},
		{"no image", func(_ *openshelldouble.Program, s *sandbox.Spec) { s.Container.Image.ID = "ghcr.io/example/none:1" },
			sandbox.EndImage, "the gateway can pull"},
		{"a path as image", func(_ *openshelldouble.Program, s *sandbox.Spec) { s.Container.Image.ID = "./image" }, "", "HOST/NAME:TAG"},
		{"a credential", func(_ *openshelldouble.Program, s *sandbox.Spec) {
			s.Credentials = []wire.Credential{{Name: "KEY", Value: "v"}}
		},
			"", "use a gateway of 0.1"},
		{"a short image", func(_ *openshelldouble.Program, s *sandbox.Spec) { s.Container.Image.ID = "ollama" }, "", "HOST/NAME:TAG"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, p := openOlder(t, openshelldouble.New(t))
			s := described("refused-1")
			tt.prepare(p, &s)
			err := b.Check(t.Context(), s)
			if err == nil {
				_, err = b.Create(t.Context(), s)
			}
			var end *sandbox.End
			said := ""
			if err != nil {
				said = err.Error()
			}
			if errors.As(err, &end) {
				said += " " + end.Hint
			}
			if kindOf(err) != tt.kind || !strings.Contains(said, tt.says) {
				t.Errorf("%s, kind %q, want %q and %q", said, kindOf(err), tt.kind, tt.says)
			}
			if left := p.Names(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestSettingsThatOpenShellsProgramDoesNotTakeAreRefused(t *testing.T) {
	d := openshelldouble.New(t)
	b, _ := openOlder(t, d)
	cfg := b.cfg
	cfg.Gateway = Gateway{Address: d.Address(), CA: cfg.Gateway.CA, Cert: cfg.Gateway.Cert, Key: cfg.Gateway.Key, Workspace: "team"}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context(), described("given-1")); err == nil || !strings.Contains(err.Error(), "leave ca, cert, key, workspace out") {
		t.Errorf("%v", err)
	}
}

func TestTheEndOfASandboxByOpenShellsProgramIsNamed(t *testing.T) {
	name := nameOf("ended-1")
	for _, tt := range []struct {
		name string
		end  func(*openshelldouble.Program)
		kind sandbox.EndKind
		says string
	}{
		{"deleted", func(p *openshelldouble.Program) { p.Lose(name) }, sandbox.EndRemoved, "no more"},
		{"an error", func(p *openshelldouble.Program) { p.Fail(name) }, sandbox.EndDied, "Error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, p := openOlder(t, openshelldouble.New(t))
			box := made(t, b, "ended-1")
			tt.end(p)
			<-box.Gone()
			if err := box.Cause(); kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestAFurtherStreamRunsNoFilesOfTheAgent has files that shells read at their start, as an agent could write them.
func TestAFurtherStreamRunsNoFilesOfTheAgent(t *testing.T) {
	b, p := openOlder(t, openshelldouble.New(t))
	box := made(t, b, "files-1")
	home := p.Home(nameOf("files-1"))
	for _, name := range []string{".bash_profile", ".bash_login", ".profile", ".bashrc"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte("echo ran >>"+home+"/ran\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.CutStreams(nameOf("files-1"))
	_, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"true"}, Cwd: "/sandbox"}, sandbox.Streams{})
	if err != nil {
		t.Error(err)
	}
	proxies := slices.DeleteFunc(p.Calls(), func(c string) bool { return !strings.HasPrefix(c, "ssh-proxy ") })
	if _, err := os.Stat(filepath.Join(home, "ran")); err == nil || len(proxies) != 2 {
		t.Errorf("%d streams, files were run: %t", len(proxies), err == nil)
	}
}

// TestAGatewayThatIsAwayFailsNoRunByItself cuts the stream of a sandbox, whose gateway then is away for two further streams.
func TestAGatewayThatIsAwayFailsNoRunByItself(t *testing.T) {
	b, p := openOlder(t, openshelldouble.New(t))
	box := made(t, b, "away-1")
	p.Set("away", "2")
	p.CutStreams(nameOf("away-1"))
	var out strings.Builder
	_, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"echo", "in"}, Cwd: "/sandbox"}, sandbox.Streams{Stdout: &out})
	if err != nil || out.String() != "in\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	proxies := slices.DeleteFunc(p.Calls(), func(c string) bool { return !strings.HasPrefix(c, "ssh-proxy ") })
	if len(proxies) != 4 {
		t.Errorf("%d streams, want one, two that failed and one", len(proxies))
	}
}

func TestSandboxesOfDeadControllersAreFoundByOpenShellsProgram(t *testing.T) {
	b, p := openOlder(t, openshelldouble.New(t))
	old, err := b.older(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := func(s sandbox.Spec) remote.Carrier { return &olderPlace{b: b, program: *old, spec: s} }
	collectsTheDead(t, b, of, func(labels map[string]string) error {
		held, err := render(described("policy"), b.cfg.Without)
		if err != nil {
			return err
		}
		text, err := held.Text()
		if err != nil {
			return err
		}
		at := *old
		at.Dir = t.TempDir()
		file := filepath.Join(at.Dir, "policy.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		return at.Create(t.Context(), program.New{Name: foreign, Image: openshelldouble.Image, Policy: file, Labels: labels})
	}, p.Names)
}

// TestOpenShellsProgramGetsThePolicyAndNoSecret has a credential in the sandbox's specification.
func TestOpenShellsProgramGetsThePolicyAndNoSecret(t *testing.T) {
	const secret = "value-of-no-use"
	t.Setenv("OPENSHELL_SOME_TOKEN", openshelldouble.Token)
	b, p := openOlder(t, openshelldouble.New(t))
	s := described("policy-1")
	s.EnvInject = map[string]string{"KEY": secret}
	box, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Delete(t.Context())
	name := nameOf("policy-1")
	if policy := p.Policy(name); !strings.Contains(policy, "hard_requirement") || !strings.Contains(policy, "api.example.com") ||
		!strings.Contains(policy, "- /sandbox\n") {
		t.Errorf("%s", policy)
	}
	calls := p.Calls()
	for _, c := range calls {
		if strings.Contains(c, secret) || strings.Contains(c, openshelldouble.Token) {
			t.Errorf("%s", c)
		}
	}
	i := slices.IndexFunc(calls, func(c string) bool { return strings.HasPrefix(c, "--gateway double sandbox create --name "+name+" ") })
	if i < 0 || !strings.HasSuffix(calls[i], "--label agentsh-run=policy-1 -- true") {
		t.Errorf("%q", calls)
	}
}
