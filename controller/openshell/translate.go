package openshell

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// rule is a rule of a policy of this project.
type rule struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Commands    []string `json:"commands,omitempty"`
	Paths       []string `json:"paths,omitempty"`
	Operations  []string `json:"operations,omitempty"`
	Domains     []string `json:"domains,omitempty"`
	CIDRs       []string `json:"cidrs,omitempty"`
	Ports       []int    `json:"ports,omitempty"`
	Methods     []string `json:"methods,omitempty"`
	Binaries    []string `json:"binaries,omitempty"`
	Signals     []string `json:"signals,omitempty"`
	Target      *target  `json:"target,omitempty"`
	Decision    string   `json:"decision"`
	Message     string   `json:"message,omitempty"`
}

type target struct {
	Type string `json:"type"`
}

// document is a policy of this project. JSON is a subset of YAML.
type document struct {
	Version     int    `json:"version"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Commands    []rule `json:"command_rules,omitempty"`
	Files       []rule `json:"file_rules,omitempty"`
	Network     []rule `json:"network_rules,omitempty"`
	Signals     []rule `json:"signal_rules,omitempty"`
}

func (d document) text() []byte {
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic(err) // the values are strings and numbers
	}
	return append(data, '\n')
}

// machineSecrets are files of this machine. A policy of OpenShell is written for
// an image, whose /etc and /var/log hold nothing of a machine.
var machineSecrets = []string{
	"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d/**", "/etc/ssh/**",
	"/etc/ssl/private/**", "/var/log/**",
}

// Translate writes a policy as one of this project. A policy of OpenShell says
// nothing about programs and signals: every program of a readable path runs, and
// signals stay within the session.
func (p *Policy) Translate(file string) []byte {
	d := document{
		Version: 1, Name: ruleName(strings.TrimSuffix(path.Base(file), path.Ext(file))), Description: "made of " + file,
		Commands: []rule{{Name: "programs", Commands: []string{"*"}, Decision: "allow"}},
		Files: []rule{{
			Name: "machine-secrets", Paths: machineSecrets, Operations: []string{"*"}, Decision: "deny",
			Message: "this belongs to the machine, not to the task",
		}},
		Signals: []rule{
			{Name: "own-process", Signals: []string{"@all"}, Target: &target{"self"}, Decision: "allow"},
			{Name: "session", Signals: []string{"@all"}, Target: &target{"session"}, Decision: "allow"},
		},
	}
	write := append([]string(nil), p.ReadWrite...)
	if p.Workdir {
		write = append(write, "${WORKSPACE}", "/sandbox")
	}
	if len(write) > 0 {
		d.Files = append(d.Files, rule{Name: "read-write", Paths: trees(write), Operations: []string{"*"}, Decision: "allow"})
	}
	if len(p.ReadOnly) > 0 {
		d.Files = append(d.Files, rule{
			Name: "read-only", Paths: trees(p.ReadOnly), Operations: []string{"read", "list", "stat", "execute"}, Decision: "allow",
		})
	}
	d.Files = append(d.Files, rule{Name: "root", Paths: []string{"/"}, Operations: []string{"list", "stat"}, Decision: "allow"})
	for _, a := range p.Network {
		d.Network = append(d.Network, a.rules(file)...)
	}
	return d.text()
}

// TranslateProfiles writes the network rules of profiles as a policy of this
// project. Its name is that of the file in denials.
func TranslateProfiles(profiles []Profile) []byte {
	d := document{Version: 1, Name: "openshell-profiles"}
	for _, p := range profiles {
		d.Network = append(d.Network, p.Access.rules(p.File)...)
	}
	return d.text()
}

// rules are the network rules of an access list.
func (a Access) rules(file string) []rule {
	var out []rule
	for i, e := range a.Endpoints {
		r := rule{
			Name: ruleName(a.Name) + "-" + strconv.Itoa(i+1), Description: fmt.Sprintf("%s:%d", file, e.Line), CIDRs: e.Networks,
			Ports: e.Ports, Binaries: a.Binaries, Decision: "allow",
		}
		if host, ok := strings.CutPrefix(e.Host, "**."); ok {
			e.Host = "*." + host
		}
		if e.Host != "" {
			r.Domains = []string{e.Host}
		}
		if len(e.Requests) == 0 {
			out = append(out, r)
		}
		for j, q := range e.Requests {
			r := r
			if len(e.Requests) > 1 {
				r.Name += "-" + strconv.Itoa(j+1)
			}
			r.Methods = q.Methods
			if q.Path != "" {
				r.Paths = []string{q.Path}
			}
			out = append(out, r)
		}
	}
	return out
}

// trees are directories with what is below them.
func trees(dirs []string) []string {
	var out []string
	for _, d := range dirs {
		out = append(out, d, strings.TrimSuffix(d, "/")+"/**")
	}
	return out
}

// ruleName makes a name of a text: letters, digits and dashes.
func ruleName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s)
}
