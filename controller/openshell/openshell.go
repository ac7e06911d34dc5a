// Package openshell reads policies and provider profiles of OpenShell, and
// writes them as policies of this project. It also writes policies of this
// project as policies of OpenShell.
//
// What would widen a rule is never ignored: a key without a reader is an error.
// Settings without a meaning here are notes. [Policy.Translate] makes the policy of
// this project, [Render] that of OpenShell.
//
// The schema is that of docs/reference/policy-schema.mdx in github.com/NVIDIA/OpenShell.
package openshell

import (
	"net/netip"
	"slices"
	"strings"

	"agentsh/internal/lazy"
	"agentsh/internal/strictyaml"
)

// Problem is a problem or a note with its position.
type Problem = strictyaml.Problem

// Policy is a policy of OpenShell.
type Policy struct {
	Workdir   bool // the workspace may be changed
	ReadOnly  []string
	ReadWrite []string
	Network   []Access
	Notes     []Problem // settings without a meaning here
}

// Profile describes the hosts of one type of provider.
type Profile struct {
	File   string
	ID     string
	Line   int // of id
	Access Access
	Notes  []Problem
}

// Access is a list of endpoints that some programs may reach.
type Access struct {
	Name      string
	Endpoints []Endpoint
	Binaries  []string // names or paths; empty: every program
}

// Endpoint is one host that may be reached.
type Endpoint struct {
	Line     int
	Host     string
	Ports    []int
	Networks []string
	Requests []Request // of HTTP; empty: everything
	Denied   []Request // of those; only [Render] sets it
}

// Request is a set of HTTP requests.
type Request struct {
	Methods []string // empty: all
	Path    string   // empty: all
}

var dialect = strictyaml.Dialect{MaxBytes: 1 << 20, MaxMarks: 100_000, MaxDepth: 16, CoreTags: true, Anchors: true}

// policyKeys are the keys that tell a policy of OpenShell from one of this
// project.
var policyKeys = []string{"filesystem_policy", "landlock", "process", "network_policies"}

// IsPolicy reports whether a file is a policy of OpenShell.
func IsPolicy(data []byte) bool {
	n := strictyaml.Parse("", data, &dialect, func(Problem) {})
	return slices.ContainsFunc(policyKeys, func(key string) bool { return strictyaml.Value(n, key) != nil })
}

// reader reads one file.
type reader struct {
	strictyaml.Reader
	notes []Problem
}

type fields = map[string]func(*strictyaml.Node)

func newReader(file string, problems *[]Problem) *reader {
	return &reader{Reader: strictyaml.NewReader(file, &dialect, func(p Problem) { *problems = append(*problems, p) })}
}

// note records a setting without a meaning here.
func (r *reader) note(text string) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		r.notes = append(r.notes, Problem{File: r.File, Line: n.Line, Column: n.Column, Message: text})
	}
}

// ignore reads a text for people.
func (r *reader) ignore(n *strictyaml.Node) { r.Text(n) }

// ReadPolicy reads a policy. With problems the policy is nil.
func ReadPolicy(file string, data []byte) (*Policy, []Problem) {
	var problems []Problem
	n := strictyaml.Parse(file, data, &dialect, func(p Problem) { problems = append(problems, p) })
	if n == nil {
		return nil, problems
	}
	r := newReader(file, &problems)
	p := &Policy{Workdir: true}
	r.Fields(n, "a policy of OpenShell", fields{
		"version": func(n *strictyaml.Node) { r.Int(n, 1, 1) },
		"filesystem_policy": func(n *strictyaml.Node) {
			r.Fields(n, "filesystem_policy", fields{
				"include_workdir": func(n *strictyaml.Node) { p.Workdir, _ = r.Bool(n) },
				"read_only":       func(n *strictyaml.Node) { p.ReadOnly = r.paths(n) },
				"read_write":      func(n *strictyaml.Node) { p.ReadWrite = r.paths(n) },
			})
		},
		"landlock":         r.note("landlock has no meaning here: what a policy needs is enforced or the run is refused"),
		"process":          r.note("process has no meaning here: commands run as the user of the supervisor"),
		"network_policies": func(n *strictyaml.Node) { p.Network = r.network(n) },
	})
	if len(problems) > 0 {
		return nil, problems
	}
	p.Notes = r.notes
	return p, nil
}

// ReadProfile reads a provider profile. With problems the profile is nil.
func ReadProfile(file string, data []byte) (*Profile, []Problem) {
	var problems []Problem
	n := strictyaml.Parse(file, data, &dialect, func(p Problem) { problems = append(problems, p) })
	if n == nil {
		return nil, problems
	}
	r := newReader(file, &problems)
	p := &Profile{File: file}
	r.Fields(n, "a profile", fields{
		"id": func(n *strictyaml.Node) {
			p.ID, _ = r.Text(n)
			p.Line = n.Line
		},
		"display_name": r.ignore, "description": r.ignore, "category": r.ignore,
		"endpoints": func(n *strictyaml.Node) { p.Access.Endpoints = r.endpoints(n) },
		"binaries":  func(n *strictyaml.Node) { p.Access.Binaries = r.binaries(n) },
	})
	if p.ID == "" && len(problems) == 0 {
		r.Fail(n, "write id, the type of the providers that it describes", "the profile has no id")
	}
	if len(problems) > 0 {
		return nil, problems
	}
	p.Access.Name, p.Notes = p.ID, r.notes
	return p, nil
}

// paths reads absolute paths.
func (r *reader) paths(n *strictyaml.Node) []string {
	var out []string
	r.Items(n, func(n *strictyaml.Node) {
		s, ok := r.Text(n)
		switch {
		case !ok:
		case !strings.HasPrefix(s, "/") || strings.ContainsAny(s, "*?[]{}$\\") || strings.Contains(s, ".."):
			r.Fail(n, "write it as /usr", "%q is not an absolute path", strictyaml.Shorten(s))
		default:
			out = append(out, s)
		}
	})
	return out
}

// network reads network_policies.
func (r *reader) network(n *strictyaml.Node) []Access {
	var out []Access
	r.Keys(n, "network_policies", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
		return func(n *strictyaml.Node) {
			a := Access{Name: key.Value}
			r.Fields(n, "a network policy", fields{
				"name":      r.ignore,
				"endpoints": func(n *strictyaml.Node) { a.Endpoints = r.endpoints(n) },
				"binaries":  func(n *strictyaml.Node) { a.Binaries = r.binaries(n) },
			})
			out = append(out, a)
		}
	})
	return out
}

// binaries reads programs: texts, or mappings with path.
func (r *reader) binaries(n *strictyaml.Node) []string {
	var out []string
	add := func(n *strictyaml.Node) {
		s, ok := r.Text(n)
		if !ok {
			return
		}
		if rest, anywhere := strings.CutPrefix(s, "**/"); anywhere && !strings.Contains(rest, "/") {
			s = rest
		}
		out = append(out, s)
	}
	r.Items(n, func(n *strictyaml.Node) {
		if n.Kind != strictyaml.Mapping {
			add(n)
			return
		}
		r.Fields(n, "a binary", fields{"path": add})
	})
	if n.Kind == strictyaml.List && len(out) == 0 {
		r.Fail(n, "leave binaries out to mean every program", "binaries is empty")
	}
	return out
}

// hostPattern matches a host name, or a star before one.
var hostPattern = lazy.Regexp(`^(\*\*?\.)?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func (r *reader) endpoints(n *strictyaml.Node) []Endpoint {
	var out []Endpoint
	r.Items(n, func(n *strictyaml.Node) { out = append(out, r.endpoint(n)) })
	return out
}

// draft is an endpoint with the settings that make its requests.
type draft struct {
	protocol, access, path string
	rules                  []Request
}

func (r *reader) endpoint(n *strictyaml.Node) Endpoint {
	e := Endpoint{Line: n.Line}
	var d draft
	word := func(to *string, what string, words ...string) func(*strictyaml.Node) {
		return func(n *strictyaml.Node) {
			if i, ok := r.Word(n, what, words); ok {
				*to = words[i]
			}
		}
	}
	var enforcement string
	r.Fields(n, "an endpoint", fields{
		"host": func(n *strictyaml.Node) { e.Host = r.host(n) },
		"port": func(n *strictyaml.Node) { e.Ports = append(e.Ports, r.port(n)) },
		"ports": func(n *strictyaml.Node) {
			r.Items(n, func(n *strictyaml.Node) { e.Ports = append(e.Ports, r.port(n)) })
		},
		"protocol":            word(&d.protocol, "protocol", "rest", "tcp", "graphql"),
		"access":              word(&d.access, "access", "read-only", "read-write", "full", "allow"),
		"enforcement":         word(&enforcement, "enforcement", "enforce"),
		"path":                func(n *strictyaml.Node) { d.path = r.path(n) },
		"rules":               func(n *strictyaml.Node) { d.rules = r.requests(n) },
		"allowed_ips":         func(n *strictyaml.Node) { e.Networks = r.networks(n) },
		"allow_encoded_slash": r.note("allow_encoded_slash has no meaning here: a path is compared in each way in which servers read it"),
	})
	if e.Host == "" && len(e.Networks) == 0 && n.Kind == strictyaml.Mapping && strictyaml.Value(n, "host") == nil {
		r.Fail(n, "write host: NAME", "the endpoint has no host")
	}
	e.Requests = d.requests()
	if d.protocol == "graphql" && d.access == "read-only" {
		r.note("GraphQL is not read here: of " + e.Host + d.path + " only GET is allowed, since a POST can change something")(n)
	}
	return e
}

// requests are the HTTP requests that an endpoint allows; none: everything.
func (d draft) requests() []Request {
	if len(d.rules) > 0 {
		return d.rules
	}
	switch {
	case d.access == "read-only":
		return []Request{{Methods: []string{"GET", "HEAD", "OPTIONS"}, Path: d.path}}
	case d.access == "read-write":
		return []Request{{Methods: []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"}, Path: d.path}}
	case d.path != "":
		return []Request{{Path: d.path}}
	}
	return nil
}

func (r *reader) host(n *strictyaml.Node) string {
	s, ok := r.Text(n)
	if _, err := netip.ParseAddr(s); ok && err != nil && !hostPattern().MatchString(s) {
		r.Fail(n, "write a name, *.name or an address", "%q is not a host", strictyaml.Shorten(s))
	}
	return s
}

func (r *reader) port(n *strictyaml.Node) int {
	v, _ := r.Int(n, 1, 65535)
	return int(v)
}

func (r *reader) path(n *strictyaml.Node) string {
	s, ok := r.Text(n)
	if ok && !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "**") {
		r.Fail(n, "begin it with /", "%q is not the path of a URL", strictyaml.Shorten(s))
	}
	return s
}

// networks reads addresses and networks.
func (r *reader) networks(n *strictyaml.Node) []string {
	var out []string
	r.Items(n, func(n *strictyaml.Node) {
		s, ok := r.Text(n)
		_, err := netip.ParsePrefix(s)
		if _, plain := netip.ParseAddr(s); ok && err != nil && plain != nil {
			r.Fail(n, "write it as 10.0.0.0/8", "%q is not a network", strictyaml.Shorten(s))
		}
		out = append(out, s)
	})
	return out
}

// requests reads rules: a list of {allow: {method, path}}.
func (r *reader) requests(n *strictyaml.Node) []Request {
	var out []Request
	r.Items(n, func(n *strictyaml.Node) {
		r.Fields(n, "a rule", fields{"allow": func(n *strictyaml.Node) {
			var q Request
			r.Fields(n, "allow", fields{
				"method": func(n *strictyaml.Node) {
					if s, ok := r.Text(n); ok && s != "*" {
						q.Methods = []string{strings.ToUpper(s)}
						if q.Methods[0] == "GET" {
							q.Methods = append(q.Methods, "HEAD") // OpenShell lets it pass wherever GET does
						}
					}
				},
				"path": func(n *strictyaml.Node) { q.Path = r.path(n) },
			})
			out = append(out, q)
		}})
	})
	return out
}
