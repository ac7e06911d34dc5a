package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// manyRules is a policy of n rules, a quarter in each of four groups, in the
// shapes real files use.
func manyRules(n int) policy.Source {
	var b strings.Builder
	b.WriteString("version: 1\nname: many\ncommand_rules:\n")
	for i := range n / 4 {
		fmt.Fprintf(
			&b,
			"  - name: command-%d\n    commands: [tool%d, \"/opt/tool%d/bin/*\"]\n    args_patterns: ['--force%d']\n    decision: deny\n",
			i,
			i,
			i,
			i,
		)
	}
	b.WriteString("  - name: allow-git\n    commands: [git, python3]\n    decision: allow\nfile_rules:\n")
	for i := range n / 4 {
		fmt.Fprintf(
			&b,
			"  - name: file-%d\n    paths: [\"/srv/%d/**\", \"**/secret%d/*.pem\"]\n    operations: [read, write]\n    decision: deny\n",
			i,
			i,
			i,
		)
	}
	b.WriteString("  - name: allow-workspace\n    paths: [\"/workspace/**\"]\n    operations: [\"*\"]\n    decision: allow\nnetwork_rules:\n")
	for i := range n / 4 {
		fmt.Fprintf(
			&b,
			"  - name: network-%d\n    domains: [host%d.example.com, \"*.zone%d.example.org\"]\n    ports: [443]\n    decision: allow\n",
			i,
			i,
			i,
		)
	}
	b.WriteString("unix_socket_rules:\n")
	for i := range n / 4 {
		fmt.Fprintf(&b, "  - name: socket-%d\n    paths: [\"/run/%d.sock\"]\n    decision: allow\n", i, i)
	}
	return policy.Source{Name: "many.yaml", Data: []byte(b.String())}
}

func BenchmarkLoad(b *testing.B) {
	src := manyRules(10_000)
	b.SetBytes(int64(len(src.Data)))
	b.ReportAllocs()
	before, n := processorTime(b), 0
	defer func() { b.ReportMetric(float64(processorTime(b)-before)/float64(n)/1e6, "cpu-ms/op") }()
	for b.Loop() {
		n++
		if _, err := syntax.Load(src, syntax.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// processorTime is what the process has used, in nanoseconds: on a machine that
// others use too it says more than the time that went by.
func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// decisions are requests that a policy of many rules permits, one a group and
// the slower ways besides.
func decisions() map[string]policy.Request {
	return map[string]policy.Request{
		"command": &policy.CommandRequest{
			Program: policy.Program{Called: "/usr/bin/git", Path: "/usr/bin/git"},
			Argv:    []string{"git", "push", "origin"},
			Cwd:     "/workspace",
		},
		"command by link": &policy.CommandRequest{
			Program: policy.Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"},
			Argv:    []string{"python3"},
			Cwd:     "/workspace",
		},
		"file":        &policy.FileRequest{Path: "/workspace/src/a/b/c/d/main.go", Op: policy.OpRead},
		"network":     &policy.NetworkRequest{Domain: "host7.example.com", Addr: netip.MustParseAddr("192.0.2.7"), Port: 443, Protocol: "tcp"},
		"unix socket": &policy.UnixSocketRequest{Path: "/run/7.sock", Op: "connect"},
	}
}

func BenchmarkEvaluate(b *testing.B) {
	p, err := syntax.Load(manyRules(1000), syntax.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, request := range decisions() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, g := p.Evaluate(request); !d.Permits() {
					b.Fatal(g)
				}
			}
		})
	}
}

// BenchmarkDeny measures denials, which carry a message and a hint.
func BenchmarkDeny(b *testing.B) {
	p, err := syntax.Load(manyRules(1000), syntax.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, request := range map[string]policy.Request{
		"command": &policy.CommandRequest{
			Program: policy.Program{Called: "nmap", Path: "/usr/bin/nmap"}, Argv: []string{"nmap"}, Cwd: "/workspace",
		},
		"file":        &policy.FileRequest{Path: "/etc/shadow", Op: policy.OpRead},
		"network":     &policy.NetworkRequest{Domain: "example.net", Addr: netip.MustParseAddr("192.0.2.7"), Port: 443, Protocol: "tcp"},
		"unix socket": &policy.UnixSocketRequest{Path: "/run/x.sock", Op: "connect"},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _ := p.Evaluate(request); d.Permits() {
					b.Fatal("permitted")
				}
			}
		})
	}
}

func TestADecisionThatPermitsAllocatesNothing(t *testing.T) {
	p, err := syntax.Load(manyRules(1000), syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range decisions() {
		if d, g := p.Evaluate(request); !d.Permits() {
			t.Errorf("%s: %+v", name, g)
		}
		if n := testing.AllocsPerRun(100, func() { p.Evaluate(request) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
