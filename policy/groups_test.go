package policy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

const files = `
file_rules:
  - {name: hooks, paths: ["/ws/.git/hooks/**"], operations: [write, create, delete, rename], decision: deny}
  - {name: env, paths: ["**/.env"], operations: [open], decision: deny, message: "{{.Operation}} of {{.Path}} is not for you"}
  - {name: trash, paths: ["/ws/**"], operations: [delete], decision: soft_delete}
  - {name: ws, paths: ["${PROJECT_ROOT}/**"], operations: ["*"], decision: allow}
  - {name: usr, paths: ["/usr/**", "/etc/ssl/*.pem", "/etc/hosts"], operations: [read, readlink, list], decision: audit}
`

func TestFiles(t *testing.T) {
	p := load(t, files)
	tests := []struct {
		path string
		op   policy.FileOp
		want string
	}{
		{"/ws", policy.OpList, "allow by ws"},
		{"/ws/a/b", policy.OpWrite, "allow by ws"},
		{"/wsx", policy.OpRead, "deny by default"},
		{"/ws/.git/hooks/pre-commit", policy.OpWrite, "deny by hooks"},
		{"/ws/.git/hooks", policy.OpRename, "deny by hooks"},
		{"/ws/.git/hooks/pre-commit", policy.OpRead, "allow by ws"},
		{"/ws/.env", policy.OpRead, "deny by env"},
		{"/ws/.env", policy.OpStat, "allow by ws"},
		{"/ws/a", policy.OpDelete, "soft_delete by trash"},
		{"/usr/lib/x", policy.OpRead, "audit by usr"},
		{"/usr/lib/x", policy.OpStat, "audit by usr"},
		{"/usr/lib/x", policy.OpWrite, "deny by default"},
		{"/etc/hosts", policy.OpRead, "audit by usr"},
		{"/", policy.OpList, "deny by default"},
		{"/ws/../etc/passwd", policy.OpRead, "deny by default"},
		{"/ws//a", policy.OpRead, "deny by default"},
		{"/ws/a/", policy.OpRead, "deny by default"},
		{"ws/a", policy.OpRead, "deny by default"},
		{"", policy.OpRead, "deny by default"},
		{"/ws/a\x00b", policy.OpRead, "deny by default"},
		{"/ws/a", policy.OpRead | policy.OpWrite, "deny by default"},
		{"/ws/a", 0, "deny by default"},
		{"/ws/a", 1 << 30, "deny by default"},
	}
	for _, test := range tests {
		fixture.Expect(t, p, &policy.FileRequest{Path: test.path, Op: test.op}, test.want)
	}
	_, g := p.Evaluate(&policy.FileRequest{Path: "/ws/.env", Op: policy.OpRead})
	if g.Message != "read of /ws/.env is not for you" || !strings.Contains(g.Hint, "allowed there: write, create") {
		t.Errorf("%+v", g)
	}
	_, g = p.Evaluate(&policy.FileRequest{Path: "/etc/x\x1b[2J", Op: policy.OpRead})
	if strings.Contains(g.Message, "\x1b") || !strings.Contains(g.Hint, "/ws/**") {
		t.Errorf("%+v", g)
	}
}

func TestRootsAndTree(t *testing.T) {
	p := load(t, files)
	if got := p.Roots(); !slices.Equal(got, []string{"/etc/hosts", "/etc/ssl", "/usr", "/ws"}) {
		t.Errorf("roots %q", got)
	}
	tests := []struct {
		root    string
		ops     policy.FileOp
		effect  policy.Effect
		except  []string
		uniform bool
	}{
		{"/ws", policy.OpStat | policy.OpList, policy.Allow, nil, true},
		{"/ws", policy.OpWrite, policy.Allow, []string{"/ws/.git/hooks"}, false},
		{"/ws", policy.OpRead, policy.Allow, []string{"/ws"}, false},
		{"/ws", policy.OpDelete, policy.SoftDelete, []string{"/ws/.git/hooks"}, false},
		{"/ws/.git/hooks", policy.OpWrite | policy.OpCreate, policy.Deny, nil, true},
		{"/ws/src", policy.OpWrite, policy.Allow, nil, true},
		{"/ws/src", policy.OpWrite | policy.OpDelete, policy.SoftDelete, []string{"/ws/src"}, false},
		{"/usr", policy.OpList, policy.Audit, nil, true},
		{"/usr/lib", policy.OpWrite, policy.Deny, nil, true},
		{"/etc", policy.OpStat, policy.Deny, []string{"/etc/hosts", "/etc/ssl"}, false},
		{"/srv", policy.OpStat, policy.Deny, nil, true},
		{"/srv", policy.OpRead, policy.Deny, nil, true},
		{"/", policy.OpStat, policy.Deny, []string{"/etc/hosts", "/etc/ssl", "/usr", "/ws"}, false},
		{"/ws", 0, policy.Deny, []string{"/ws"}, false},
	}
	for _, test := range tests {
		v := p.Tree(test.root, test.ops)
		if v.Uniform != test.uniform || v.Effect != test.effect || !slices.Equal(v.Except, test.except) {
			t.Errorf("%s %s: %+v", test.root, test.ops, v)
		}
	}
}

func TestNetwork(t *testing.T) {
	p := load(t, `
network_rules:
  - {name: block, domains: [evil.example.com, "*.bad.example", bücher.example], decision: deny}
  - {name: post, domains: [api.example.com], methods: [DELETE], decision: deny}
  - {name: api, domains: [api.example.com], ports: [443], protocols: [tcp], methods: [GET], paths: ["/v1/**"], decision: allow}
  - {name: tools, domains: ["*.example.com"], ports: [80, "8000-8010"], binaries: [git, "/opt/bin/*"], decision: allow}
  - {name: local, cidrs: [127.0.0.1/32], ports: [5432], decision: allow}
  - {name: named, domains: [localhost], ports: [6000], decision: allow}
  - {name: private, cidrs: [10.0.0.0/8], decision: deny}
  - {name: rest, domains: ["*"], ports: [443], decision: approve}
  - {name: wide, cidrs: [0.0.0.0/0, "::/0"], ports: [7], decision: allow}
`)
	n := func(domain, addr string, port int, more ...string) *policy.NetworkRequest {
		address, ok := policy.ParseAddress(addr)
		if !ok && addr != "" {
			t.Fatalf("address %q", addr)
		}
		q := &policy.NetworkRequest{Domain: domain, Addr: address, Port: port, Protocol: "tcp", Method: policy.Intercepted}
		for _, m := range more {
			key, value, _ := strings.Cut(m, "=")
			switch key {
			case "bin":
				q.Binary = value
			case "method":
				q.Method = value
			case "path":
				q.Path = value
			case "proto":
				q.Protocol = value
			}
		}
		return q
	}
	tests := []struct {
		name string
		r    *policy.NetworkRequest
		want string
	}{
		{"a denied name", n("evil.example.com", "", 443), "deny by block"},
		{"in capitals with a dot at the end", n("EVIL.example.COM.", "192.0.2.1", 443), "deny by block"},
		{"below a denied zone", n("a.b.bad.example", "", 443), "deny by block"},
		{"by its ASCII form", n("xn--bcher-kva.example", "", 443), "deny by block"},
		{"by its Unicode form", n("Bücher.example", "", 443), "deny by block"},
		{"with full-width letters and dots", n("ｅｖｉｌ。example.com", "", 443), "deny by block"},
		{"a method that is denied", n("api.example.com", "192.0.2.1", 443, "method=DELETE", "path=/v1/x"), "deny by post"},
		{"a method that is allowed", n("api.example.com", "192.0.2.1", 443, "method=GET", "path=/v1/x"), "allow by api"},
		{"a path that is not", n("api.example.com", "192.0.2.1", 443, "method=GET", "path=/v2/x"), "approve by rest"},
		{"a path that climbs", n("api.example.com", "192.0.2.1", 443, "method=GET", "path=/v1/../v2"), "approve by rest"},
		{"an encoded path that climbs", n("api.example.com", "192.0.2.1", 443, "method=GET", "path=/v1/%2e%2E/v2"), "approve by rest"},
		{"a path that is not encoded well", n("api.example.com", "192.0.2.1", 443, "method=GET", "path=/v1/%zz"), "deny by default"},
		{"a connection that is inspected later", n("api.example.com", "192.0.2.1", 443), "allow by api"},
		{"a connection that is not inspected", n("api.example.com", "192.0.2.1", 443, "method="), "deny by post"},
		{"a program that may", n("git.example.com", "192.0.2.1", 8005, "bin=/usr/bin/git"), "allow by tools"},
		{"a program that may not", n("git.example.com", "192.0.2.1", 8005, "bin=/usr/bin/curl"), "deny by default"},
		{"a program that is not known", n("git.example.com", "192.0.2.1", 8005), "deny by default"},
		{"a port out of range", n("git.example.com", "192.0.2.1", 8011, "bin=/usr/bin/git"), "deny by default"},
		{"loopback that is named", n("", "127.0.0.1", 5432), "allow by local"},
		{"loopback as an IPv6 address", n("", "::ffff:127.0.0.1", 5432), "allow by local"},
		{"other loopback", n("", "127.0.0.2", 443), "deny by default"},
		{"a name that resolves to loopback", n("rebind.example.net", "127.0.0.1", 443), "deny by default"},
		{"localhost by name", n("localhost", "127.0.0.1", 6000), "allow by named"},
		{"a wide network does not name loopback", n("", "127.0.0.1", 7), "deny by default"},
		{"but other addresses", n("", "192.0.2.1", 7), "allow by wide"},
		{"metadata", n("", "169.254.169.254", 443), "deny by default"},
		{"metadata as a number", n("2852039166", "", 443), "deny by default"},
		{"metadata in octal", n("0251.0376.0251.0376", "", 443), "deny by default"},
		{"metadata in hexadecimal", n("0xa9fea9fe", "", 443), "deny by default"},
		{"metadata with three parts", n("169.254.43518", "", 443), "deny by default"},
		{"metadata through NAT64", n("", "64:ff9b::a9fe:a9fe", 443), "deny by default"},
		{"metadata through 6to4", n("", "2002:a9fe:a9fe::1", 443), "deny by default"},
		{"metadata in brackets with a zone", n("", "[fe80::1%eth0]", 443), "deny by default"},
		{"this host", n("", "0.0.0.0", 7), "deny by default"},
		{"a private network", n("", "10.1.2.3", 443), "deny by private"},
		{"a private network through NAT64", n("", "64:ff9b::10.1.2.3", 443), "deny by private"},
		{"a private network, decimal", n("167838211", "", 443), "deny by private"},
		{"a name that resolves into it", n("x.example.net", "10.1.2.3", 443), "deny by private"},
		{"a name and an address that disagree", n("192.0.2.1", "192.0.2.2", 443), "deny by default"},
		{"anything else waits for a person", n("x.example.net", "192.0.2.9", 443), "approve by rest"},
		{"no destination", n("", "", 443), "deny by default"},
		{"a malformed address", n("1.2.3.4.5", "", 443), "deny by default"},
		{"a malformed name", n("a..b", "", 443), "deny by default"},
		{"a port that is none", n("a.b", "", 70000), "deny by default"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { fixture.Expect(t, p, test.r, test.want) })
	}
}

func TestUnixSockets(t *testing.T) {
	p := load(t, `
unix_socket_rules:
  - {name: docker, paths: ["/run/docker.sock"], decision: deny}
  - {name: bus, paths: ["/run/**", "@dbus*"], operations: [connect], decision: allow}
`)
	for _, test := range []struct{ path, op, want string }{
		{"/run/docker.sock", "connect", "deny by docker"},
		{"/run/docker.sock", "shutdown", "deny by docker"},
		{"/run/user/bus", "connect", "allow by bus"},
		{"/run/user/bus", "bind", "deny by default"},
		{"/run/user/bus", "other", "deny by default"},
		{"@dbus-1", "connect", "allow by bus"},
		{"@other", "connect", "deny by default"},
		{"run/x", "connect", "deny by default"},
		{"/run/../x", "connect", "deny by default"},
	} {
		fixture.Expect(t, p, &policy.UnixSocketRequest{Path: test.path, Op: test.op}, test.want)
	}
}

func TestSignals(t *testing.T) {
	p := load(t, `
signal_rules:
  - {name: init, signals: ["@all"], target: {type: system}, decision: deny}
  - {name: own, signals: ["@fatal", "@job", SIGHUP, 0], target: {type: descendants}, decision: allow}
  - {name: self, signals: [SIGRTMIN+1, 64, term], target: {type: self}, decision: allow}
  - {name: quiet, signals: [USR1], target: {type: session}, decision: absorb}
  - {name: soft, signals: [KILL], target: {type: siblings}, decision: redirect, redirect_to: SIGTERM}
  - {name: proc, signals: [KILL], target: {type: process, pattern: "node*"}, decision: allow}
  - {name: range, signals: [KILL], target: {type: pid_range, min: 100, max: 200}, decision: allow}
  - {name: user, signals: [WINCH], target: {type: user}, decision: allow}
`)
	for _, test := range []struct {
		r    policy.SignalRequest
		want string
	}{
		{policy.SignalRequest{Signal: 9, Target: "children"}, "allow by own"},
		{policy.SignalRequest{Signal: 34, Target: "descendants"}, "allow by own"},
		{policy.SignalRequest{Signal: 0, Target: "children"}, "allow by own"},
		{policy.SignalRequest{Signal: 12, Target: "children"}, "deny by default"},
		{policy.SignalRequest{Signal: 9, Target: "external"}, "deny by default"},
		{policy.SignalRequest{Signal: 9, Target: "system"}, "deny by init"},
		{policy.SignalRequest{Signal: 35, Target: "self"}, "allow by self"},
		{policy.SignalRequest{Signal: 64, Target: "self"}, "allow by self"},
		{policy.SignalRequest{Signal: 36, Target: "self"}, "deny by default"},
		{policy.SignalRequest{Signal: 10, Target: "parent"}, "absorb by quiet"},
		{policy.SignalRequest{Signal: 9, Target: "siblings"}, "redirect by soft"},
		{policy.SignalRequest{Signal: 9, Target: "external", Name: "nodejs"}, "allow by proc"},
		{policy.SignalRequest{Signal: 9, Target: "external", PID: 150}, "allow by range"},
		{policy.SignalRequest{Signal: 9, Target: "external", PID: 201}, "deny by default"},
		{policy.SignalRequest{Signal: 28, Target: "external", SameUser: true}, "allow by user"},
		{policy.SignalRequest{Signal: 28, Target: "external"}, "deny by default"},
		{policy.SignalRequest{Signal: 65, Target: "self"}, "deny by default"},
		{policy.SignalRequest{Signal: -1, Target: "self"}, "deny by default"},
		{policy.SignalRequest{Signal: 9, Target: "elsewhere"}, "deny by default"},
	} {
		fixture.Expect(t, p, &test.r, test.want)
	}
	if to := p.Rules(policy.GroupSignal)[4].Redirect.Signal; to != 15 {
		t.Errorf("redirected to %d", to)
	}
	for bit := range 64 {
		groups := 0
		for _, g := range []string{"@fatal", "@job", "@reload", "@ignore"} {
			if set, _ := policy.ParseSignals(g); set&(1<<bit) != 0 {
				groups++
			}
		}
		if groups != 1 {
			t.Errorf("signal bit %d is in %d groups", bit, groups)
		}
	}
}

func TestDefaultsAndGoverns(t *testing.T) {
	p := load(t, "defaults: {file_read: allow, file: approve, signal: audit}\n")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/x", Op: policy.OpRead}, "allow by default")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/x", Op: policy.OpStat}, "allow by default")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/x", Op: policy.OpWrite}, "approve by default")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/x", Op: policy.OpExecute}, "approve by default")
	fixture.Expect(t, p, &policy.SignalRequest{Signal: 9, Target: "self"}, "audit by default")
	for g, want := range map[policy.Group]bool{
		policy.GroupFile: true, policy.GroupSignal: true, policy.GroupCommand: false, policy.GroupNetwork: false,
		policy.GroupUnixSocket: false, 99: false} {
		if got := p.Governs(g); got != want {
			t.Errorf("%s: %v", g, got)
		}
	}
	if !load(t, "network_rules: []\n").Governs(policy.GroupNetwork) {
		t.Error("an empty group is not governed")
	}
	unheld := p.Unsupported(func(key string) error {
		if key == "signal_rules" {
			return errors.New("no signals")
		}
		return nil
	})
	if len(unheld) != 1 || !strings.Contains(unheld.Error(), "signal_rules cannot be enforced here: no signals") {
		t.Errorf("%v", unheld)
	}
}
