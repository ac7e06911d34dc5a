package policy

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestAFileWithEveryGroupLoadsAndDecides(t *testing.T) {
	data, err := os.ReadFile("testdata/balanced.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(Source{Name: "balanced.yaml", Data: data}, Options{Vars: testVars})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		r    Request
		want string
	}{
		{&FileRequest{Path: "/ws/a.go", Op: OpWrite}, "allow by project-change"},
		{&FileRequest{Path: "/ws/a.go", Op: OpDelete}, "approve by project-delete"},
		{&FileRequest{Path: "/home/agent/.ssh/id_rsa", Op: OpStat}, "deny by keys"},
		{&FileRequest{Path: "/home/agent/.ssh", Op: OpRename}, "deny by keys"},
		{&FileRequest{Path: "/srv/app/secrets/a", Op: OpRead}, "deny by keys"},
		{&FileRequest{Path: "/var/out/a", Op: OpCreate}, "redirect by sent-elsewhere"},
		{&FileRequest{Path: "/etc/shadow", Op: OpRead}, "deny by rest"},
		{&NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, "allow by registries"},
		{&NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("10.0.0.1"), Port: 443}, "deny by private"},
		{&NetworkRequest{Domain: "registry.npmjs.org", Addr: netip.MustParseAddr("169.254.169.254"), Port: 443}, "deny by private"},
		{&NetworkRequest{Addr: netip.MustParseAddr("127.0.0.1"), Port: 9}, "allow by own-proxy"},
		{&NetworkRequest{Domain: "example.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, "approve by other-https"},
		{&NetworkRequest{Domain: "example.org", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, "deny by rest"},
		{&UnixSocketRequest{Path: "/run/docker.sock", Op: "connect"}, "deny by containers"},
		{&UnixSocketRequest{Path: "@agent-1", Op: "bind"}, "allow by own"},
		{run("rm", "-rf", "x"), "deny by big-deletes"},
		{run("rm", "x"), "allow by ordinary"},
		{run("npm", "install", "x"), "approve by installs"},
		{run("npm", "test"), "allow by ordinary"},
		{run("curl", "x"), "redirect by fetch"},
		{run("["), "allow by ordinary"},
		{run("true"), "allow by ordinary"},
		{run("xargs", "kill"), "deny by administration"},
		{run("mkfs.ext4"), "deny by administration"},
		{&SignalRequest{Signal: 9, Target: "external", PID: 1}, "deny by first"},
		{&SignalRequest{Signal: 9, Target: "children", PID: 5}, "allow by children"},
	} {
		expect(t, p, test.r, test.want)
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
		p, err := Load(Source{Name: "f.yaml", Data: data}, Options{Vars: testVars})
		if err != nil {
			var all Problems
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
		for _, r := range battery() {
			p.Evaluate(r)
		}
		Lint(p)
		p.Roots()
		p.Tree("/ws", OpAll)
	})
}

func FuzzWords(f *testing.F) {
	f.Add("push\n**\n--force|-f", "git\npush\n-vf\norigin")
	f.Add("-r\n-f", "rm\n-rf\n--\n-x")
	f.Add("**\n+*", "git\n-c\na=b\npush\n+x")
	f.Fuzz(func(t *testing.T, pattern, args string) {
		argv := strings.Split(args, "\n")
		if len(pattern) > 100 || len(argv) > 50 || strings.Count(pattern, "\n") >= maxWords {
			return
		}
		var ps Problems
		r := &reader{vars: testVars, problems: &ps}
		var words []wordPattern
		for _, text := range strings.Split(pattern, "\n") {
			w, err := r.wordPattern(located{text: text})
			if err != nil {
				return
			}
			words = append(words, w)
		}
		permit := matchWords(words, argv[0], argv[1:], true)
		refuse := matchWords(words, argv[0], argv[1:], false)
		if permit && !refuse {
			t.Fatalf("%q permits %q but does not refuse it", pattern, argv)
		}
	})
}

func FuzzPayloads(f *testing.F) {
	f.Add("env\n-iS\nkill -9 1\nx")
	f.Add("ld.so\n--argv0\na\nbusybox\nenv\nkill")
	f.Fuzz(func(t *testing.T, args string) {
		argv := strings.Split(args, "\n")
		list, _ := allPayloads(argv)
		for _, p := range list {
			if p.Program == "" && !p.InProcess || len(p.Argv) == 0 {
				t.Fatalf("%q: %+v", argv, p)
			}
		}
	})
}

func FuzzShellCommands(f *testing.F) {
	f.Add("a && b $(c) `d`; e <<X\nX\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ShellCommands(text)
		for _, c := range list {
			if err != nil || len(c.Argv) == 0 || len(c.Argv) != len(c.Known) {
				t.Fatalf("%q: %+v %v", text, c, err)
			}
		}
	})
}

func FuzzNetwork(f *testing.F) {
	f.Add("2852039166", "::ffff:a9fe:a9fe", "/a/../b")
	f.Add("Bücher.example.", "0x7f.1", "/%2e%2e/")
	f.Fuzz(func(t *testing.T, domain, addr, path string) {
		p := anyNetwork(t)
		address, _ := ParseAddress(addr)
		d, _ := p.Evaluate(&NetworkRequest{Domain: domain, Addr: address, Port: 80, Method: "GET", Path: path})
		if a, ok := ParseAddress(addr); ok && guard(a) >= 0 && d.Permits() {
			t.Fatalf("%q %q is permitted", domain, addr)
		}
		if name, err := NormalHost(domain); err == nil {
			if again, err := NormalHost(name); err != nil || again != name {
				t.Fatalf("%q normalises to %q, then %q: %v", domain, name, again, err)
			}
		}
	})
}

func anyNetwork(t *testing.T) *Policy {
	t.Helper()
	return load(t, "network_rules: [{name: all, domains: ['*'], decision: allow}]\n")
}
