package openshell

import (
	"bytes"
	"fmt"
	"strings"

	"agentsh/internal/strictyaml"
)

// The keys of a policy of OpenShell that this package writes.
type (
	fileYAML struct {
		Version    int                   `yaml:"version"`
		Filesystem filesystemYAML        `yaml:"filesystem_policy"`
		Landlock   landlockYAML          `yaml:"landlock"`
		Network    map[string]accessYAML `yaml:"network_policies,omitempty"`
	}
	filesystemYAML struct {
		Workdir   bool     `yaml:"include_workdir"`
		ReadOnly  []string `yaml:"read_only,omitempty"`
		ReadWrite []string `yaml:"read_write,omitempty"`
	}
	landlockYAML struct {
		Compatibility string `yaml:"compatibility"`
	}
	accessYAML struct {
		Endpoints []endpointYAML `yaml:"endpoints"`
		Binaries  []binaryYAML   `yaml:"binaries"`
	}
	binaryYAML struct {
		Path string `yaml:"path"`
	}
	endpointYAML struct {
		Host        string        `yaml:"host,omitempty"`
		Ports       []int         `yaml:"ports"`
		Protocol    string        `yaml:"protocol,omitempty"`
		Enforcement string        `yaml:"enforcement,omitempty"`
		AllowedIPs  []string      `yaml:"allowed_ips,omitempty"`
		Rules       []allowYAML   `yaml:"rules,omitempty"`
		Denied      []requestYAML `yaml:"deny_rules,omitempty"`
	}
	allowYAML struct {
		Allow requestYAML `yaml:"allow"`
	}
	requestYAML struct {
		Method string `yaml:"method"`
		Path   string `yaml:"path"`
	}
)

// Text returns the policy as a file of OpenShell. It begins with a table that says who
// holds each rule.
func (r *Rendered) Text() ([]byte, error) {
	f := fileYAML{
		Version:    1,
		Filesystem: filesystemYAML{Workdir: r.Policy.Workdir, ReadOnly: r.Policy.ReadOnly, ReadWrite: r.Policy.ReadWrite},
		// Otherwise a sandbox runs without Landlock where a kernel has none.
		Landlock: landlockYAML{Compatibility: "hard_requirement"},
		Network:  map[string]accessYAML{},
	}
	for _, a := range r.Policy.Network {
		out := accessYAML{}
		for _, b := range a.Binaries {
			out.Binaries = append(out.Binaries, binaryYAML{b})
		}
		for _, e := range a.Endpoints {
			out.Endpoints = append(out.Endpoints, e.yaml())
		}
		f.Network[a.Name] = out
	}
	data, err := strictyaml.Marshal(f)
	return append(r.table(), data...), err
}

func (e Endpoint) yaml() endpointYAML {
	out := endpointYAML{Host: e.Host, Ports: e.Ports, AllowedIPs: e.Networks}
	for _, q := range e.Requests {
		for _, x := range q.yaml() {
			out.Rules = append(out.Rules, allowYAML{x})
		}
	}
	for _, q := range e.Denied {
		out.Denied = append(out.Denied, q.yaml()...)
	}
	if len(out.Rules) > 0 {
		out.Protocol, out.Enforcement = "rest", "enforce" // without enforcement OpenShell only logs
	}
	return out
}

func (q Request) yaml() []requestYAML {
	if len(q.Methods) == 0 {
		return []requestYAML{{"*", q.Path}}
	}
	var out []requestYAML
	for _, m := range q.Methods {
		out = append(out, requestYAML{m, q.Path})
	}
	return out
}

// table is the rows as comments.
func (r *Rendered) table() []byte {
	sortRows(r.Rows)
	var out bytes.Buffer
	width := [2]int{}
	for _, x := range r.Rows {
		width[0], width[1] = max(width[0], len(x.What)), max(width[1], len(x.Pos.String()))
	}
	for _, x := range r.Rows {
		fmt.Fprintf(&out, "# %-*s  %-*s  %s\n", width[0], x.What, width[1], x.Pos, x.Held)
	}
	if len(r.Without) > 0 {
		fmt.Fprintf(&out, "# without: %s\n", strings.Join(r.Without, ","))
	}
	return out.Bytes()
}
