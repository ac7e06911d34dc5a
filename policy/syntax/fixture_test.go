package syntax

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

func TestAFileWithEveryGroupLoadsAndDecides(t *testing.T) {
	data, err := os.ReadFile("testdata/balanced.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(policy.Source{Name: "balanced.yaml", Data: data}, Options{Vars: fixture.Vars})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		r    policy.Request
		want string
	}{
		{&policy.FileRequest{Path: "/ws/a.go", Op: policy.OpWrite}, "allow by project-change"},
		{&policy.FileRequest{Path: "/ws/a.go", Op: policy.OpDelete}, "approve by project-delete"},
		{&policy.FileRequest{Path: "/home/agent/.ssh/id_rsa", Op: policy.OpStat}, "deny by keys"},
		{&policy.FileRequest{Path: "/home/agent/.ssh", Op: policy.OpRename}, "deny by keys"},
		{&policy.FileRequest{Path: "/srv/app/secrets/a", Op: policy.OpRead}, "deny by keys"},
		{&policy.FileRequest{Path: "/var/out/a", Op: policy.OpCreate}, "redirect by sent-elsewhere"},
		{&policy.FileRequest{Path: "/etc/shadow", Op: policy.OpRead}, "deny by rest"},
		{&policy.NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, "allow by registries"},
		{&policy.NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("10.0.0.1"), Port: 443}, "deny by private"},
		{&policy.NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("169.254.169.254"), Port: 443}, "deny by private"},
		{&policy.NetworkRequest{Addr: netip.MustParseAddr("127.0.0.1"), Port: 9}, "allow by own-proxy"},
		{&policy.NetworkRequest{Domain: "example.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, "approve by other-https"},
		{&policy.NetworkRequest{Domain: "example.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, "deny by rest"},
		{&policy.UnixSocketRequest{Path: "/run/docker.sock", Op: "connect"}, "deny by containers"},
		{&policy.UnixSocketRequest{Path: "@agent-1", Op: "bind"}, "allow by own"},
		{fixture.Run("rm", "-rf", "x"), "deny by big-deletes"},
		{fixture.Run("rm", "x"), "allow by ordinary"},
		{fixture.Run("npm", "install", "x"), "approve by installs"},
		{fixture.Run("npm", "test"), "allow by ordinary"},
		{fixture.Run("curl", "x"), "redirect by fetch"},
		{fixture.Run("["), "allow by ordinary"},
		{fixture.Run("true"), "allow by ordinary"},
		{fixture.Run("xargs", "kill"), "deny by administration"},
		{fixture.Run("mkfs.ext4"), "deny by administration"},
		{&policy.SignalRequest{Signal: 9, Target: "external", PID: 1}, "deny by first"},
		{&policy.SignalRequest{Signal: 9, Target: "children", PID: 5}, "allow by children"},
	} {
		fixture.Expect(t, p, test.r, test.want)
	}
	if n := p.EnvNested(); len(n) != 2 {
		t.Errorf("%q", n)
	}
	if w := Lint(p); len(w) == 0 {
		t.Error("nothing to say about a file with known traps")
	}
}

func FuzzLoad(f *testing.F) {
	data, err := os.ReadFile("testdata/balanced.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, seed := range []string{"version: 1\nname: a\n", "\xef\xbb\xbfversion: 1\r\nname: a\r\n", "a: &a [*a]\n", "? - : -\n", "version: 1\nname: a\nfile_rules: [{name: a, paths: ['/{a,[b}/**'], operations: ['*'], decision: allow}]\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		p, err := Load(policy.Source{Name: "f.yaml", Data: data}, Options{Vars: fixture.Vars})
		if err != nil {
			var all policy.Problems
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("%T %v", err, err)
			}
			for _, problem := range all {
				if problem.Pos.File == "" || problem.Pos.Line < 1 || problem.Pos.Column < 1 || problem.Message == "" {
					t.Fatalf("%+v", problem)
				}
			}
			return
		}
		for _, r := range fixture.Requests() {
			p.Evaluate(r)
		}
		Lint(p)
		p.Roots()
		p.Tree("/ws", policy.OpAll)
	})
}

func FuzzWords(f *testing.F) {
	f.Add("push\n**\n--force|-f", "git\npush\n-vf\norigin")
	f.Add("-r\n-f", "rm\n-rf\n--\n-x")
	f.Add("**\n+*", "git\n-c\na=b\npush\n+x")
	f.Fuzz(func(t *testing.T, pattern, args string) {
		argv := strings.Split(args, "\n")
		if len(pattern) > 100 || len(argv) > 50 || strings.Count(pattern, "\n") >= policy.MaxArgs {
			return
		}
		var ps policy.Problems
		r := newReader("f.yaml", fixture.Vars, &ps)
		var words []policy.ArgPattern
		for _, text := range strings.Split(pattern, "\n") {
			w, err := r.wordPattern(located{text: text})
			if err != nil {
				return
			}
			words = append(words, w)
		}
		permit := policy.MatchArgs(words, argv[0], argv[1:], true)
		refuse := policy.MatchArgs(words, argv[0], argv[1:], false)
		if permit && !refuse {
			t.Fatalf("%q permits %q but does not refuse it", pattern, argv)
		}
	})
}
