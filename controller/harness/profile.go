package harness

import (
	"os"
	"path/filepath"
	"strconv"

	"agentsh/controller/openshell"
)

// loadProfiles reads the listed profiles and, for providers whose type none of
// them describes, those in the directory profiles of the root.
func (h *Harness) loadProfiles(ps *Problems) {
	seen := map[string]bool{}
	for _, entry := range h.OpenShell.Profiles {
		before := len(*ps)
		if isURL(entry.V) {
			ps.errorf(entry.At, RulePath, "openshell.profiles: a profile by URL is only read through a base by URL")
			ps.hint("keep a copy of the file beneath the root and name that")
			continue
		}
		h.checkPath(ps, "openshell.profiles", pathFile, &tree{text: entry.V, at: entry.At})
		if len(*ps) > before {
			continue
		}
		name := shownName(h.Path(entry))
		p := readProfile(h.Path(entry), name, ps)
		if p == nil || seen[p.ID] {
			continue
		}
		seen[p.ID] = true
		h.Profiles = append(h.Profiles, *p)
	}
	if h.missingProfile(seen) {
		h.findProfiles(ps, seen)
	}
	h.completeProviders()
}

// missingProfile reports whether a provider without endpoints has a type that no
// listed profile describes.
func (h *Harness) missingProfile(seen map[string]bool) bool {
	for _, d := range h.Definitions {
		if len(d.Endpoints) == 0 && !seen[d.Type.V] {
			return true
		}
	}
	return false
}

// findProfiles reads the profiles of the root that providers need.
func (h *Harness) findProfiles(ps *Problems, seen map[string]bool) {
	wanted := map[string]bool{}
	for _, d := range h.Definitions {
		wanted[d.Type.V] = len(d.Endpoints) == 0
	}
	dir := filepath.Join(h.Root, "profiles")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.IsDir() || ext != ".yaml" && ext != ".yml" {
			continue
		}
		name := filepath.Join(dir, e.Name())
		var problems Problems
		p := readProfile(name, shownName(name), &problems)
		if p != nil && wanted[p.ID] && !seen[p.ID] {
			seen[p.ID] = true
			*ps = append(*ps, problems...)
			h.Profiles = append(h.Profiles, *p)
		}
	}
}

func readProfile(name, shown string, ps *Problems) *openshell.Profile {
	data, err := ReadFile(name)
	if err != nil {
		ps.errorf(Origin{File: shown, Line: 1, Column: 1}, RuleFile, "%v", err)
		return nil
	}
	p, problems := openshell.ReadProfile(shown, data)
	ps.openshell(problems, Error)
	if p != nil {
		ps.openshell(p.Notes, Note)
	}
	return p
}

// openshell adds problems of a file of OpenShell, each text once.
func (ps *Problems) openshell(list []openshell.Problem, s Severity) {
	said := map[string]bool{}
	for _, p := range list {
		if s == Note && said[p.Message] {
			continue
		}
		said[p.Message] = true
		rule := RuleValue
		if s == Note {
			rule = RuleNoEffect
		}
		*ps = append(*ps, Problem{
			At: Origin{File: p.File, Line: p.Line, Column: p.Column}, Severity: s, Rule: rule,
			Message: oneLine(p.Message), Hint: oneLine(p.Hint),
		})
	}
}

// completeProviders gives providers without endpoints those of the profile of
// their type. Their credentials go into the header Authorization.
func (h *Harness) completeProviders() {
	for name, d := range h.Definitions {
		if len(d.Endpoints) > 0 || len(d.Credentials) == 0 {
			continue
		}
		for _, p := range h.Profiles {
			if p.ID == d.Type.V {
				d.Endpoints = endpointsOf(p)
			}
		}
		if len(d.Endpoints) > 0 && !d.Header.IsSet() && !d.Query.IsSet() && !d.Path.V {
			d.Header = Text{"Authorization", d.Type.At}
		}
		h.Definitions[name] = d
	}
}

// endpointsOf are the hosts of a profile, each once.
func endpointsOf(p openshell.Profile) Texts {
	var out Texts
	seen := map[string]bool{}
	for _, e := range p.Access.Endpoints {
		ports := e.Ports
		if len(ports) == 0 {
			ports = []int{443}
		}
		for _, port := range ports {
			host := e.Host
			if port != 443 {
				host += ":" + strconv.Itoa(port)
			}
			if e.Host != "" && !seen[host] {
				seen[host] = true
				out = append(out, Text{host, Origin{File: p.File, Line: e.Line, Column: 1}})
			}
		}
	}
	return out
}
