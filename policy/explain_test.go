package policy_test

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

func TestDenialsSayWhyAndWhatIsAllowed(t *testing.T) {
	p := load(t, `
command_rules:
  - {name: push, commands: [git], args: [push], decision: deny, message: "{{.Command}} push is for people ({{.Args}}, rule {{.Rule}})"}
  - {name: read, commands: [git], args: ["status|diff", "**"], decision: allow}
  - {name: fetch, commands: [curl], decision: redirect, redirect_to: {command: agent-fetch}}
  - {name: ask, commands: [npm], decision: approve}
  - {name: tools, commands: [a, b, c, d, e, f, g, h, i, j], decision: allow}
file_rules:
  - {name: look, paths: ["/srv/**"], operations: [read, list, stat], decision: allow}
  - {name: work, paths: ["/ws/**"], operations: ["*"], decision: allow}
network_rules:
  - {name: api, domains: [api.example.com], cidrs: [192.0.2.0/24], decision: allow}
signal_rules:
  - {name: own, signals: [TERM], target: {type: children}, decision: allow}
unix_socket_rules:
  - {name: bus, paths: ["/run/bus", "@bus"], decision: allow}
`)
	for _, test := range []struct {
		r             policy.Request
		message, hint string
	}{
		{fixture.Run("git", "push", "secret"), "git push is for people (2 arguments, rule push)", ""},
		{fixture.Run("git", "gc"), "no rule allows running /usr/bin/git", "rule read allows git with the arguments status|diff **"},
		{fixture.Run("curl"), "running /usr/bin/curl is redirected by rule fetch", "run agent-fetch instead"},
		{fixture.Run("npm"), "rule ask asks a person about running /usr/bin/npm", "have a person asked: add approvals to the policy"},
		{fixture.Run("nmap"), "no rule allows running /usr/bin/nmap", "allowed programs: git, a, b, c, d, e, f, g and others"},
		{&policy.FileRequest{Path: "/srv/x", Op: policy.OpWrite}, "no rule allows write of /srv/x", "allowed there: read, list, stat"},
		{&policy.FileRequest{Path: "/etc/x", Op: policy.OpWrite}, "no rule allows write of /etc/x", "write is allowed at /ws/**"},
		{&policy.NetworkRequest{Domain: "x.example", Port: 443}, "no rule allows reaching x.example port 443", "allowed destinations: api.example.com, 192.0.2.0/24"},
		{&policy.NetworkRequest{Addr: netip.MustParseAddr("169.254.169.254"), Port: 80}, "cloud metadata addresses are refused unless a rule names them: 169.254.169.254", "allowed destinations: api.example.com, 192.0.2.0/24"},
		{&policy.SignalRequest{Signal: 15, Target: "external"}, "no rule allows SIGTERM to external", "SIGTERM is allowed to: children"},
		{&policy.UnixSocketRequest{Path: "/run/x", Op: "connect"}, "no rule allows connect of socket /run/x", "allowed sockets: /run/bus, @bus"},
		{&policy.CommandRequest{Program: policy.Program{Called: "x\n\x1b[2J", Path: "/ws/x\n\x1b[2J"}}, `no rule allows running /ws/x\n\x1b[2J`, ""},
	} {
		_, g := p.Evaluate(test.r)
		if g.Message != test.message || !strings.HasPrefix(g.Hint, test.hint) {
			t.Errorf("%q, %q", g.Message, g.Hint)
		}
	}
}

func TestMessagesKeepControlCharactersOut(t *testing.T) {
	p := load(t, "file_rules: [{name: a, paths: ['**'], operations: ['*'], decision: deny, message: 'no {{.Path}}'}]\n")
	_, g := p.Evaluate(&policy.FileRequest{Path: "/a\x1b[2J\n" + strings.Repeat("x", 5000), Op: policy.OpRead})
	if strings.ContainsAny(g.Message, "\x1b\n") || len(g.Message) > 400 {
		t.Errorf("%q", g.Message)
	}
}

func TestDecisionsAreSafeForConcurrentUse(t *testing.T) {
	p := load(t, commands+files+"network_rules: [{name: n, domains: ['*.example.com'], decision: allow}]\n")
	var want []policy.Decision
	for _, r := range fixture.Requests() {
		d, _ := p.Evaluate(r)
		want = append(want, d)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				for i, r := range fixture.Requests() {
					if d, _ := p.Evaluate(r); d != want[i] {
						t.Errorf("request %d: %v, before %v", i, d, want[i])
					}
				}
			}
		})
	}
	wg.Wait()
}
