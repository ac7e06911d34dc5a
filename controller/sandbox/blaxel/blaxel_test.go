package blaxel

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/blaxeldouble"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// open makes a backend of a double.
func open(t *testing.T, d *blaxeldouble.Double) *Backend {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir, err := os.MkdirTemp("/var/tmp", "blaxel") // /opt and /root are the double's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statedir.RemoveTree(dir) })
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{State: state, Agentsh: testenv.Agentsh(t), Lease: 20 * time.Second, Look: true, Getenv: d.Getenv})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var container = sandbox.Container{Image: sandbox.Image{Name: blaxeldouble.Image, ID: blaxeldouble.Image}}

// described is a sandbox of a test.
func described(id string) sandbox.Spec {
	const policy = "version: 1\nname: all\ncommand_rules: [{name: all, commands: ['*'], decision: allow}]\n" +
		"network_rules: [{name: local, domains: [localhost], ports: ['1-65535'], decision: allow}, " +
		"{name: public, cidrs: [" + blaxeldouble.Address + "/32], ports: ['1-65535'], decision: allow}]\nfile_rules:\n" +
		"  - {name: own, paths: ['/sandbox', '/sandbox/**', '/dev/null'], operations: ['*'], decision: allow}\n" +
		"  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/ld.so.cache'],\n" +
		"     operations: [read, list, stat, execute], decision: allow}\n"
	return sandbox.Spec{
		RunID: id, Policy: []wire.PolicySource{{Name: "all.yaml", Data: []byte(policy)}}, Home: "/sandbox/home", Container: container,
		Vars: map[string]string{"WORKSPACE": "/sandbox", "PROJECT_ROOT": "/sandbox", "HOME": "/sandbox/home", "TMPDIR": "/tmp"},
	}
}

func TestASandboxAtADouble(t *testing.T) {
	d := blaxeldouble.New(t)
	d.Slowly(2)
	b := open(t, d)
	sandboxtest.Run(t, b, sandbox.Container{Image: sandbox.Image{Name: blaxeldouble.Image}})
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

// noKernel refuses the kernel with Landlock.
const noKernel = `{"code": "INVALID_RUNTIME", "message": "extraArgs 'landlock' are not available in region eu-dub-1: quota exceeded"}`

// TestAKernelThatIsRefusedIsGivenUpByName has a region without the kernel with Landlock.
func TestAKernelThatIsRefusedIsGivenUpByName(t *testing.T) {
	d := blaxeldouble.New(t)
	b := open(t, d)
	d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusBadRequest, noKernel)
	s := described("kernel-1")
	s.Degraded = []wire.Setting{{Name: "landlock", At: "harness.yaml:1:1"}}
	p := &place{b: b, spec: s}
	stream, err := p.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Kill()
	r, err := b.api.get(t.Context(), p.name())
	if err != nil || len(r.Spec.Runtime.ExtraArgs) > 0 {
		t.Errorf("%v, %v", r.Spec.Runtime, err)
	}
	if err := p.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWhatBlaxelRefusesIsNamed has each refusal of the control plane.
func TestWhatBlaxelRefusesIsNamed(t *testing.T) {
	with := func(key, value string) func(*blaxeldouble.Double, *Config) {
		return func(d *blaxeldouble.Double, c *Config) {
			c.Getenv = func(name string) string {
				if name == key {
					return value
				}
				return d.Getenv(name)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(*blaxeldouble.Double, *Config)
		image   string
		kind    sandbox.EndKind
		says    string
	}{
		{"another key", with("BL_API_KEY", "other"), "", sandbox.EndRefused, "BL_API_KEY"},
		{"another workspace", with("BL_WORKSPACE", "other"), "", sandbox.EndRefused, "workspace other"},
		{"no region of that name", with("BL_REGION", "moon"), "", sandbox.EndRefused, "/REGION"},
		{"no image of that name", nil, "none", sandbox.EndImage, "bl get images"},
		{"a full quota", func(d *blaxeldouble.Double, _ *Config) { d.Quota(0) }, "", sandbox.EndQuota, "agentctl gc"},
		{"no money", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusPaymentRequired, "")
		}, "", sandbox.EndQuota, "agentctl gc"},
		{"a failure of Blaxel that makes nothing", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusServiceUnavailable, "<html>")
		}, "", sandbox.EndUnreachable, "answers 503"},
		{"a failure whose text has the word of a quota", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodGet, "/sandboxes", 1, http.StatusGatewayTimeout, `{"message": "context deadline exceeded"}`)
		}, "", sandbox.EndUnreachable, "again later"},
		{"a region that is not found", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusNotFound, `{"code": "REGION_NOT_FOUND"}`)
		}, "", sandbox.EndRefused, "/REGION"},
		{"a kernel that the region does not have", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusBadRequest, noKernel)
		}, "", sandbox.EndRefused, "as in --connect workspace:" + blaxeldouble.Workspace + "/us-was-1; or write degraded: [landlock] in the harness"},
		{"more memory than the tier has", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusBadRequest, `{"code": "QUOTA_EXCEEDED", "message": "maximum memory 4096"}`)
		}, "", sandbox.EndQuota, "container: {memory_mb: 2048}"},
		{"a name that is taken", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusConflict, `{"code": "SANDBOX_ALREADY_EXISTS"}`)
		}, "", sandbox.EndRefused, "agentctl gc"},
		{"an image that does not start agentsh", func(d *blaxeldouble.Double, _ *Config) {
			d.Refuse(http.MethodPost, "/process", 9, http.StatusBadRequest, `{"error": "no sh"}`)
		}, "", "", "sha256sum"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := blaxeldouble.New(t)
			b := open(t, d)
			cfg := b.cfg
			if tt.prepare != nil {
				tt.prepare(d, &cfg)
			}
			b, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			b.late = 0
			s := described("refused-1")
			if tt.image != "" {
				s.Container.Image.ID = tt.image
			}
			err = b.Check(t.Context(), s)
			if err == nil {
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
			if strings.Contains(said, blaxeldouble.Key) {
				t.Errorf("the key is shown: %s", said)
			}
			if left := d.Names(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// Without an engine nothing keeps commands from the sandbox API.
func TestAnEngineIsNeededAtBlaxel(t *testing.T) {
	b := open(t, blaxeldouble.New(t))
	for _, tt := range []struct {
		degraded, require string
		ok                bool
	}{{"nested_commands", "", false}, {"any", "", false}, {"any", "exec_verify", true}, {"cgroup", "", true}, {"namespaces", "", true}} {
		s := described("degraded-1")
		s.Degraded = []wire.Setting{{Name: "cgroup", At: "h.yaml:1:1"}, {Name: tt.degraded, At: "h.yaml:7:12"}}
		if tt.require != "" {
			s.Require = []wire.Setting{{Name: tt.require}}
		}
		err := b.Check(t.Context(), s)
		if (err == nil) != tt.ok || !tt.ok && !strings.HasPrefix(err.Error(), "h.yaml:7:12: degraded: "+tt.degraded) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// A conflict can mean that a sandbox is being deleted, or that it cannot be.
func TestASandboxThatStaysIsReported(t *testing.T) {
	d := blaxeldouble.New(t)
	b := open(t, d)
	box, err := b.Create(t.Context(), described("stays-1"))
	if err != nil {
		t.Fatal(err)
	}
	d.Refuse(http.MethodDelete, "/sandboxes/"+d.Names()[0], 1, http.StatusConflict, `{"code": "SANDBOX_BUSY"}`)
	if err := box.Delete(t.Context()); err == nil || !strings.Contains(err.Error(), "SANDBOX_BUSY") || len(d.Names()) != 1 {
		t.Errorf("%v, there are %q", err, d.Names())
	}
	if err := b.api.remove(t.Context(), d.Names()[0]); err != nil || len(d.Names()) > 0 {
		t.Errorf("%v, there are %q", err, d.Names())
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

// says runs a command.
func says(t *testing.T, box sandbox.Sandbox, argv ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	_, err := box.Run(t.Context(), wire.ExecRequest{Argv: argv, Cwd: "/sandbox"}, sandbox.Streams{Stdout: &out})
	return out.String(), err
}

// cutting is the output of a command. It cuts the streams when a line arrives.
type cutting struct {
	strings.Builder
	d *blaxeldouble.Double
}

func (c *cutting) Write(p []byte) (int, error) {
	c.d.Cut()
	return c.Builder.Write(p)
}

// TestAStreamThatIsCutComesBack cuts the streams as standby and gateways do, while a command prints.
func TestAStreamThatIsCutComesBack(t *testing.T) {
	d := blaxeldouble.New(t)
	box := made(t, open(t, d), "cut-1")
	out := &cutting{d: d}
	_, err := box.Run(
		t.Context(),
		wire.ExecRequest{Argv: []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done"}, Cwd: "/sandbox"},
		sandbox.Streams{Stdout: out},
	)
	if err != nil || out.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestTheEndOfAVirtualMachineIsNamed ends it from outside.
func TestTheEndOfAVirtualMachineIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*blaxeldouble.Double)
		kind sandbox.EndKind
		says string
	}{
		{"deleted", func(d *blaxeldouble.Double) { d.Delete("agentsh-ended-1") }, sandbox.EndRemoved, "no more"},
		{"failed", func(d *blaxeldouble.Double) { d.Fail("agentsh-ended-1", "out of memory") }, sandbox.EndDied, "out of memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := blaxeldouble.New(t)
			box := made(t, open(t, d), "ended-1")
			tt.end(d)
			d.Cut()
			<-box.Gone()
			if err := box.Cause(); kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSandboxesOfDeadControllersAreFound leaves sandboxes as a killed controller does.
func TestSandboxesOfDeadControllersAreFound(t *testing.T) {
	d := blaxeldouble.New(t)
	b := open(t, d)
	for _, id := range []string{"dead-1", "dead-2", "dead-3"} {
		p := &place{b: b, spec: described(id)}
		if _, err := p.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	living := made(t, b, "living-1")
	left, err := b.Leftovers(t.Context())
	if err != nil || len(left) != 3 {
		t.Fatalf("%+v, %v", left, err)
	}
	if left, err = b.Collect(t.Context()); err != nil || len(left) != 3 {
		t.Fatalf("%+v, %v", left, err)
	}
	if names := d.Names(); !slices.Equal(names, []string{"agentsh-living-1"}) {
		t.Errorf("there are %q", names)
	}
	if out, err := says(t, living, "echo", "here"); err != nil || out != "here\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestAGatewayThatGivesUpIsNoFailure has the answer of the control plane lost: it makes the sandbox all the same.
func TestAGatewayThatGivesUpIsNoFailure(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int // see [blaxeldouble.Double.Lose]
	}{
		{"the gateway answers", http.StatusGatewayTimeout},
		{"the connection ends", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := blaxeldouble.New(t)
			b := open(t, d)
			d.Lose(tt.status)
			d.Refuse(http.MethodGet, "/sandboxes/", 2, http.StatusBadGateway, "<html>")
			d.Refuse(http.MethodDelete, "/sandboxes/", 1, http.StatusServiceUnavailable, "<html>")
			d.Slowly(1)
			box := made(t, b, "gateway-1")
			if out, err := says(t, box, "echo", "here"); err != nil || out != "here\n" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
}

// TestSettingsOfBlaxelAreChecked needs no network.
func TestSettingsOfBlaxelAreChecked(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte("key\n"), 0o644); err != nil { //nolint:gosec // the mode is what is tested
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		env  map[string]string
		says string
	}{
		{"no workspace", Config{}, map[string]string{"BL_API_KEY": "k"}, "BL_WORKSPACE"},
		{"no key", Config{}, map[string]string{"BL_WORKSPACE": "w"}, "BL_API_KEY"},
		{"another address", Config{Address: "tcp://x"}, map[string]string{"BL_API_KEY": "k"}, "workspace:NAME"},
		{"a key that others read", Config{KeyFile: open}, map[string]string{"BL_WORKSPACE": "w"}, "chmod 600"},
		{"a key with a line break", Config{}, map[string]string{"BL_WORKSPACE": "w", "BL_API_KEY": "a\nb"}, "blanks"},
		{"an address in the clear", Config{}, map[string]string{
			"BL_WORKSPACE": "w", "BL_API_KEY": "k", "BL_API_URL": "http://example.com",
		}, "https://"},
	} {
		tt.cfg.Getenv = func(name string) string { return tt.env[name] }
		if _, err := Open(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestABlaxelThatDoesNotAnswerIsNamed(t *testing.T) {
	b, err := Open(Config{Getenv: func(name string) string {
		return map[string]string{"BL_WORKSPACE": "w", "BL_API_KEY": "a-long-key", "BL_API_URL": "http://127.0.0.1:1/v0"}[name]
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = b.api.check(t.Context())
	if end := (*sandbox.End)(nil); !errors.As(err, &end) || !strings.Contains(end.Text, "connection refused") ||
		!strings.Contains(end.Hint, "'curl -I http://127.0.0.1:1/v0'") {
		t.Errorf("%v", err)
	}
}

// TestTheSandboxAPIIsOutOfReach has a server at its port, and a policy that allows all ports of the machine. Commands try each
// way to write an address of the machine.
func TestTheSandboxAPIIsOutOfReach(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	d := blaxeldouble.New(t)
	outOfReach(t, d, made(t, open(t, d), "api-1"), "localhost")
}

// TestTheSandboxAPIIsOutOfReachWithoutNamespaces has a machine in which sessions get none.
func TestTheSandboxAPIIsOutOfReachWithoutNamespaces(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"), testenv.Program("setpriv"))
	d := blaxeldouble.New(t)
	d.WithoutPtrace()
	b := open(t, d)
	for _, degraded := range []bool{false, true} {
		s := described("api-1")
		if degraded {
			s.Degraded = []wire.Setting{{Name: "namespaces", At: "h.yaml:1:1"}}
		}
		box, err := b.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = box.Ready(t.Context()); degraded && err == nil {
			outOfReach(t, d, box, "127.0.0.1") // the policy shows no /etc/hosts
		} else if degraded || err == nil || !strings.Contains(err.Error(), "namespaces") {
			t.Errorf("degraded %v: %v", degraded, err)
		}
		if err := box.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// outOfReach tries port 8080 of a machine, and another one, which a name of the machine must reach.
func outOfReach(t *testing.T, d *blaxeldouble.Double, box sandbox.Sandbox, name string) {
	t.Helper()
	const script = `import socket, sys
try:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
    print(s.recv(100)[:12])
except OSError as e:
    print(e)
`
	for _, port := range []string{"8080", "8081"} {
		if err := d.Serve("agentsh-api-1", port); err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{
			"localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "2130706433", blaxeldouble.Address,
			"::ffff:" + blaxeldouble.Address,
		} {
			out, err := says(t, box, "python3", "-c", script, host, port)
			reached := strings.Contains(out, "200")
			must := port == "8081" && slices.Contains([]string{name, "127.0.0.1", "::ffff:127.0.0.1", blaxeldouble.Address}, host)
			if err != nil || reached && port == "8080" || must && !reached {
				t.Errorf("%s, port %s: %q, %v", host, port, out, err)
			}
		}
	}
}

// suspending is the output of a command. The machine stands by when the first line arrives.
type suspending struct {
	strings.Builder
	d    *blaxeldouble.Double
	once sync.Once
	err  error
}

func (s *suspending) Write(p []byte) (int, error) {
	s.once.Do(func() { s.err = s.d.Suspend("agentsh-standby-1") })
	return s.Builder.Write(p)
}

// TestARunPassesThroughStandby has the machine stand by while a command runs. The next connection wakes it.
func TestARunPassesThroughStandby(t *testing.T) {
	d := blaxeldouble.New(t)
	d.StandsBy(time.Hour)
	box := made(t, open(t, d), "standby-1")
	out := &suspending{d: d}
	const script = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done"
	_, err := box.Run(t.Context(), wire.ExecRequest{Argv: []string{"sh", "-c", script}, Cwd: "/sandbox"}, sandbox.Streams{Stdout: out})
	state, standbys := d.State("agentsh-standby-1")
	if err != nil || out.err != nil || out.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" || state != "RUNNING" || standbys != 1 {
		t.Errorf("%q, %v, %v, %s, %d times", out, err, out.err, state, standbys)
	}
}

// TestAMachineIsKeptAwakeForARun has machines stand by at once. The one of a run does so when agentsh has ended.
func TestAMachineIsKeptAwakeForARun(t *testing.T) {
	d := blaxeldouble.New(t)
	d.StandsBy(time.Millisecond)
	b := open(t, d)
	b.cfg.Lease = remote.ShortestLease
	p := &place{b: b, spec: described("awake-1")}
	s, err := p.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := func() int { _, n := d.State("agentsh-awake-1"); return n }()
	s.Kill()
	if again, err := p.Open(t.Context()); err != nil {
		t.Error(err)
	} else {
		again.Kill()
	}
	if _, n := d.State("agentsh-awake-1"); n != before {
		t.Errorf("it stood by %d times while agentsh ran", n-before)
	}
	for {
		if state, _ := d.State("agentsh-awake-1"); state == "STANDBY" {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("it never stands by")
		}
	}
	// agentsh ended before: the next look says so.
	if _, err := p.Open(t.Context()); kindOf(err) != sandbox.EndDied {
		t.Errorf("%v", err)
	}
	if err := p.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTheStartupScriptIsInForceAtBlaxel has an image without agentsh's packages: the file that BASH_ENV names is not in it, and
// Blaxel's sandbox API gives processes no environment.
func TestTheStartupScriptIsInForceAtBlaxel(t *testing.T) {
	d := blaxeldouble.New(t)
	b := open(t, d)
	s := described("startup-1")
	s.Policy[0].Data = append([]byte("env_inject: {BASH_ENV: "+layout.StartupScript+", INJECTED: 'yes'}\n"),
		strings.Replace(string(s.Policy[0].Data), "command_rules: [", "command_rules: [{name: no-kill, commands: [kill], decision: deny}, ", 1)...)
	box, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ script, says string }{
		{`bash -c 'type -t kill'`, "function\n"},
		{`bash -c 'kill -0 $$' 2>/dev/null || echo refused`, "refused\n"},
		{`/bin/kill -0 1 2>/dev/null || echo refused`, "refused\n"},
		{`bash -c 'enable -a' | grep -w kill || echo none`, "none\n"},
		{`env -i bash -c 'type -t kill; echo $INJECTED'`, "function\nyes\n"},
	} {
		if out, err := says(t, box, "sh", "-c", tt.script); err != nil || out != tt.says {
			t.Errorf("%s: %q, %v", tt.script, out, err)
		}
	}
}
