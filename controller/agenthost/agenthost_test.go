package agenthost

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func outsider(t *testing.T, name string) runtime.Outsider {
	t.Helper()
	rt, err := runtime.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	out, can := rt.(runtime.Outsider)
	if !can {
		t.Fatalf("%s cannot work outside", name)
	}
	return out
}

// write makes an executable file.
func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestAProgramIsFoundWithWhatItsStartNeeds has a link to a script of a package, whose interpreter is on PATH.
func TestAProgramIsFoundWithWhatItsStartNeeds(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	node := write(t, dir+"/lib/node", "x")
	script := write(t, dir+"/opt/node_modules/a/cli.js", "#!/usr/bin/env -S node --x\n")
	link := dir + "/bin/agent"
	if err := os.MkdirAll(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(script, link); err != nil {
		t.Fatal(err)
	}
	o := Options{Runtime: outsider(t, "claude"), Argv: []string{"agent"}, Search: "relative:" + dir + "/bin:" + dir + "/lib"}
	f, err := find(o)
	if err != nil {
		t.Fatal(err)
	}
	if f.path != link || !slices.Contains(f.runs, script) || !slices.Contains(f.runs, node) || !slices.Contains(f.runs, "/usr/bin/env") {
		t.Errorf("%+v", f)
	}
	for _, tree := range []string{dir + "/bin", dir + "/opt/node_modules", dir + "/lib"} {
		if !slices.Contains(f.trees, tree) {
			t.Errorf("%s is not in %v", tree, f.trees)
		}
	}
	t.Setenv("HOME", dir+"/bin")
	if f, err = find(o); err != nil || slices.Contains(f.trees, dir+"/bin") || !slices.Contains(f.files, link) {
		t.Errorf("a home directory is shown: %+v %v", f, err)
	}
	for argv, want := range map[string]string{
		"nosuch": "not on this machine", "bin/agent": "absolute path", "": "no program", dir: "no executable",
	} {
		o.Argv = []string{argv}
		if _, err := find(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", argv, err)
		}
	}
}

// TestTheSessionReachesItsModelAlone evaluates the policy that is made for Claude Code.
func TestTheSessionReachesItsModelAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		o     Options
		hosts []string
	}{
		"its vendor": {Options{}, []string{"api.anthropic.com:443"}},
		"a variable": {Options{Env: map[string]string{"ANTHROPIC_BASE_URL": "http://127.0.0.1:81/x"}}, []string{"127.0.0.1:81"}},
		"a gateway of a cloud": {Options{Env: map[string]string{
			"ANTHROPIC_BEDROCK_BASE_URL": "https://gateway.test/x", "OTHER": "https://c.test",
		}}, []string{"gateway.test:443"}},
		"a credential, and a further host": {Options{
			Credentials: []Credential{{Credential: wire.Credential{Endpoints: []string{"*.example.com", "a.test:8443"}}, Variable: "K"}},
			Hosts:       []string{"[::1]:82", "b.test"},
		}, []string{"*.example.com:443", "[::1]:82", "a.test:8443", "b.test:443"}},
	} {
		o := tt.o
		o.Runtime, o.Argv, o.RunID, o.Scratch = outsider(t, "claude"), []string{"/bin/true"}, "r", filepath.Join(t.TempDir(), "scratch")
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		sources, hosts, err := s.policy(t.Context())
		if err != nil || !slices.Equal(hosts, tt.hosts) {
			t.Errorf("%s: %v %v", name, hosts, err)
			continue
		}
		p, err := syntax.Load(policy.Source{Name: sources[0].Name, Data: sources[0].Data}, syntax.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for what, tt := range map[string]struct {
			r    policy.Request
			want bool
		}{
			"itself":   {&policy.CommandRequest{Program: policy.Program{Called: "/bin/true", Path: "/usr/bin/true"}, Argv: []string{"x"}}, true},
			"a shell":  {&policy.CommandRequest{Program: policy.Program{Called: "sh", Path: "/usr/bin/dash"}, Argv: []string{"sh"}}, false},
			"a secret": {&policy.FileRequest{Path: "/etc/shadow", Op: policy.OpRead}, false},
			"a key":    {&policy.FileRequest{Path: "/etc/letsencrypt/live/a.example/privkey.pem", Op: policy.OpRead}, false},
			"a home":   {&policy.FileRequest{Path: "/home/user/.netrc", Op: policy.OpRead}, false},
			"a file":   {&policy.FileRequest{Path: "/etc/passwd", Op: policy.OpRead}, true},
			"another host": {&policy.NetworkRequest{
				Domain: "evil.example", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Protocol: "tcp"}, false},
			"the machine": {&policy.NetworkRequest{Addr: netip.MustParseAddr("127.0.0.1"), Port: 22, Protocol: "tcp"}, false},
		} {
			if d, why := p.Evaluate(tt.r); d.Permits() != tt.want {
				t.Errorf("%s: %s: %v %+v", name, what, d.Effect, why)
			}
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	for text, want := range map[string]string{"api.example.com": "no address", "ftp://x": "no address", "https://": "no address"} {
		o := Options{Runtime: outsider(t, "claude"), Argv: []string{"/bin/true"}, Env: map[string]string{"ANTHROPIC_BASE_URL": text}}
		s := &Side{o: o}
		if _, err := s.hosts(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// noSessions is a strict double of a backend on a machine whose sessions do not open.
type noSessions struct {
	sandbox.Backend
	err error
}

func (n noSessions) Check(context.Context, sandbox.Spec) error { return n.err }

// TestOnlyAMachineWithoutSessionsRunsAProgramWithout has other errors, and a harness that demands the session.
func TestOnlyAMachineWithoutSessionsRunsAProgramWithout(t *testing.T) {
	missing := errors.New("no namespaces; degraded: [namespaces] in x, or --degraded namespaces, opens one")
	open := func(err error, must bool) (*Side, error) {
		return Open(t.Context(), Options{
			Runtime: outsider(t, "command"), Argv: []string{"/bin/sh"}, RunID: "r", Session: noSessions{err: err}, Must: must,
			Scratch: filepath.Join(t.TempDir(), "scratch"), Env: map[string]string{"PASSED": "yes"}, Search: "/usr/bin:/bin",
		})
	}
	for _, err := range []error{errors.New("the policy is wrong"), context.DeadlineExceeded} {
		if _, got := open(err, false); !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if _, err := open(missing, true); !errors.Is(err, missing) {
		t.Error(err)
	}
	s, err := open(missing, false)
	if err != nil {
		t.Fatal(err)
	}
	if a := s.About(); a.Session || a.Why != "no namespaces" || len(a.Hosts) > 0 || !slices.Equal(a.Passed, []string{"PASSED"}) {
		t.Errorf("%+v", a)
	}
	in := runtime.Invocation{Argv: []string{"/bin/sh", "-c", `pwd; echo "$PASSED $HOME"; cat "$AGENTSH_TOOLS_FILE"; [ "$0" = x ] && sleep 1000; exit 3`},
		Deadline: time.Now().Add(time.Hour)}
	out, err := s.Prepare(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	ex, root := s.Executor()
	var said strings.Builder
	req := wire.ExecRequest{Argv: out.Command.Argv, Cwd: out.Command.Cwd, Env: out.Command.Env, Run: out.Command.Run}
	exit, err := ex.Run(t.Context(), req, wire.Streams{Stdout: &said})
	if err != nil || exit.Kind != wire.ExitExited || exit.Code != 3 || !strings.HasPrefix(said.String(), root+"/work\nyes "+root+"/home\n{") ||
		!strings.Contains(said.String(), s.server.token) {
		t.Errorf("%+v %v %s", exit, err, said.String())
	}
	req.Argv, req.DeadlineMS = append(req.Argv, "x"), 200
	if exit, err := ex.Run(t.Context(), req, wire.Streams{}); err != nil || exit.Kind != wire.ExitDeadline {
		t.Errorf("%+v %v", exit, err)
	}
	req.Argv, req.DeadlineMS = []string{"/nosuch"}, 0
	if exit, err := ex.Run(t.Context(), req, wire.Streams{}); err != nil || exit.Kind != wire.ExitSpawnFailed {
		t.Errorf("%+v %v", exit, err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root); err == nil {
		t.Error("its files are left")
	}
}
