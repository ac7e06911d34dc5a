package openshell

import (
	"os"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

const policyText = `---
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, /lib, /proc, /dev/urandom, /etc]
  read_write: [/sandbox, /tmp, /dev/null]
landlock: {compatibility: best_effort}
process: {run_as_user: sandbox, run_as_group: sandbox}
network_policies:
  model:
    name: the model
    endpoints:
      - {host: "*.model.example", port: 443, protocol: rest, enforcement: enforce, access: read-write}
    binaries: [{path: "**/claude"}, {path: /usr/bin/node}]
  api:
    endpoints:
      - {host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: read-only, allow_encoded_slash: true}
      - {host: api.example.com, port: 443, protocol: graphql, enforcement: enforce, access: read-only, path: /graphql}
      - host: inside.example.com
        ports: [8080, 8081]
        protocol: rest
        enforcement: enforce
        rules:
          - allow: {method: GET, path: /health}
          - allow: {method: post, path: "/v1/**"}
        allowed_ips: [10.0.0.0/8]
    binaries: [{path: "**/gh"}]
`

const profileText = `id: registry
display_name: Registry
description: packages
category: data
endpoints:
  - {host: registry.example.com, port: 443, protocol: rest, access: read-only, enforcement: enforce}
binaries: ["**/npm", "**/python3.*"]
`

// evaluated loads what Translate makes.
func evaluated(t *testing.T, data []byte) *policy.Policy {
	t.Helper()
	vars := map[string]string{"WORKSPACE": "/sandbox/workspace"}
	p, err := syntax.Load(policy.Source{Name: "x.yaml", Data: data}, syntax.Options{Vars: vars})
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return p
}

func TestAPolicyAllowsWhatItNames(t *testing.T) {
	if !IsPolicy([]byte(policyText)) || IsPolicy([]byte("version: 1\nname: ours\n")) || IsPolicy([]byte("[")) {
		t.Error("policies are not told apart")
	}
	read, problems := ReadPolicy("policies/p.yaml", []byte(policyText))
	if read == nil {
		t.Fatal(problems)
	}
	p := evaluated(t, read.Translate("policies/p.yaml"))
	for _, c := range []struct {
		host, method, path, binary string
		port                       int
		want                       policy.Effect
	}{
		{"eu.model.example", "POST", "/x", "/opt/claude", 443, policy.Allow},
		{"eu.model.example", "POST", "/x", "/usr/bin/node", 443, policy.Allow},
		{"eu.model.example", "DELETE", "/x", "/usr/bin/node", 443, policy.Deny}, // read-write is not full
		{"eu.model.example", "POST", "/x", "/opt/node", 443, policy.Deny},
		{"eu.model.example", "POST", "/x", "/usr/bin/claude", 80, policy.Deny},
		{"api.example.com", "GET", "/repos", "/usr/bin/gh", 443, policy.Allow},
		{"api.example.com", "POST", "/repos", "/usr/bin/gh", 443, policy.Deny},
		{"api.example.com", "POST", "/graphql", "/usr/bin/gh", 443, policy.Deny},
		{"api.example.com", "GET", "/repos", "/usr/bin/curl", 443, policy.Deny},
		{"example.com", "GET", "/", "/usr/bin/gh", 443, policy.Deny},
	} {
		r := policy.NetworkRequest{Domain: c.host, Port: c.port, Method: c.method, Path: c.path, Binary: c.binary, Protocol: "tcp"}
		if d, _ := p.Evaluate(&r); d.Effect != c.want {
			t.Errorf("%+v: %v", c, d.Effect)
		}
	}
	for _, c := range []struct {
		path string
		op   policy.FileOp
		want policy.Effect
	}{
		{"/usr/bin/env", policy.OpExecute, policy.Allow},
		{"/usr/bin/env", policy.OpWrite, policy.Deny},
		{"/sandbox/workspace/a", policy.OpWrite, policy.Allow},
		{"/tmp/a", policy.OpCreate, policy.Allow},
		{"/etc/hosts", policy.OpRead, policy.Allow},
		{"/etc/shadow", policy.OpRead, policy.Deny},
		{"/home/x", policy.OpRead, policy.Deny},
	} {
		if d, _ := p.Evaluate(&policy.FileRequest{Path: c.path, Op: c.op}); d.Effect != c.want {
			t.Errorf("%+v: %v", c, d.Effect)
		}
	}
	var notes []string
	for _, n := range read.Notes {
		notes = append(notes, n.String())
	}
	const want = `policies/p.yaml:7:11: landlock has no meaning here: what a policy needs is enforced or the run is refused
policies/p.yaml:8:10: process has no meaning here: commands run as the user of the supervisor
policies/p.yaml:17:122: allow_encoded_slash has no meaning here: a path is compared in each way in which servers read it
policies/p.yaml:18:9: GraphQL is not read here: of api.example.com/graphql only GET is allowed, since a POST can change something`
	if got := strings.Join(notes, "\n"); got != want {
		t.Errorf("notes\n%s, want\n%s", got, want)
	}
}

func TestAProfileIsRenderedAsRules(t *testing.T) {
	read, problems := ReadProfile("profiles/registry.yaml", []byte(profileText))
	if read == nil {
		t.Fatal(problems)
	}
	data := TranslateProfiles([]Profile{*read})
	evaluated(t, data)
	const golden = "testdata/profile.json"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != string(data) {
		t.Errorf("%v\n%s", err, data)
	}
}

func TestWhatWouldWidenAPolicyIsRefusedWithItsPosition(t *testing.T) {
	for text, want := range map[string]string{
		"filesystem_policy: {read_onl: [/usr]}\n":                                     `1:21: filesystem_policy has no key "read_onl" (did you mean "read_only"?)`,
		"filesystem_policy: {read_only: [usr]}\n":                                     `1:33: "usr" is not an absolute path (write it as /usr)`,
		"filesystem_policy: {read_only: ['/home/*']}\n":                               `is not an absolute path`,
		"network_policies: {a: {endpoints: [{host: '{{HOST}}'}]}}\n":                  `1:43: "{{HOST}}" is not a host (write a name, *.name or an address)`,
		"network_policies: {a: {endpoints: [{host: a.b, access: none}]}}\n":           `unknown access "none"`,
		"network_policies: {a: {endpoints: [{host: a.b, enforcement: audit}]}}\n":     `unknown enforcement "audit"`,
		"network_policies: {a: {endpoints: [{host: a.b, deny_rules: []}]}}\n":         `an endpoint has no key "deny_rules"`,
		"network_policies: {a: {endpoints: [{port: 1}]}}\n":                           `the endpoint has no host`,
		"network_policies: {a: {endpoints: [{host: a.b}], binaries: []}}\n":           `binaries is empty`,
		"network_policies: {a: {endpoints: [{host: a.b, allowed_ips: ['{{I}}']}]}}\n": `"{{I}}" is not a network`,
	} {
		p, problems := ReadPolicy("p.yaml", []byte(text))
		if p != nil || len(problems) != 1 || !strings.Contains(problems[0].String(), want) {
			t.Errorf("%s: %v, want %s", text, problems, want)
		}
	}
	p, problems := ReadProfile("p.yaml", []byte("endpoints: []\n"))
	if p != nil || len(problems) != 1 || !strings.Contains(problems[0].String(), "no id") {
		t.Errorf("%v", problems)
	}
}
