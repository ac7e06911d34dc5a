package harness

import (
	"os"
	"path/filepath"
	"sort"
	"strings"

	"agentsh/internal/strictyaml"
)

// Provider is one credential source, as its file describes it.
type Provider struct {
	File        string
	At          Origin      // of name
	Version     Value[int]  `harness:"version"`
	Name        Text        `harness:"name"`
	Type        Text        `harness:"type"`
	Description Text        `harness:"description"`
	Credentials Map         `harness:"credentials"`
	Config      Map         `harness:"config"`
	Endpoints   Texts       `harness:"endpoints"`
	Header      Text        `harness:"header"`
	Query       Text        `harness:"query"`
	Path        Value[bool] `harness:"path"`
	Command     Texts       `harness:"command"`
	Lifetime    Value[int]  `harness:"lifetime_seconds"`
	Timeout     Value[int]  `harness:"timeout_seconds"`
}

// FromCommand is the value of a credential that [Provider.Command] prints.
const FromCommand = "command"

// Printed are the names of the credentials that the program of the provider prints, sorted.
func (p *Provider) Printed() []string {
	var names []string
	for _, k := range sortedKeys(p.Credentials) {
		if p.Credentials[k].V == FromCommand {
			names = append(names, k)
		}
	}
	return names
}

// LoadProvider reads one provider file strictly. Problems name the file as
// shown. If one of them is an error, the provider is nil.
func LoadProvider(name, shown string) (*Provider, Problems) {
	var ps Problems
	start := Origin{File: shown, Line: 1, Column: 1}
	data, err := ReadFile(name)
	if err != nil {
		ps.errorf(start, RuleFile, "%v", err)
		return nil, ps
	}
	n, ps := parse(shown, data)
	b := &builder{file: shown, ps: &ps, whole: "a provider"}
	if n == nil {
		return nil, ps
	}
	t := b.mapping(n, providerFields, "")
	if t == nil {
		return nil, ps
	}
	t = normalized(t)
	for i := range providerFields {
		if f := &providerFields[i]; f.required && t.dict[f.name] == nil && !hasKey(n, f.name) {
			ps.errorf(start, RuleRequired, "the provider has no %s", f.name)
		}
	}
	p := &Provider{File: shown}
	decode(t, p)
	p.At = p.Name.At
	p.check(&ps)
	if ps.HasErrors() {
		return nil, ps.Sorted()
	}
	return p, ps.Sorted()
}

// check rejects secrets in the file, and credentials without a position in
// requests.
func (p *Provider) check(ps *Problems) {
	for _, k := range sortedKeys(p.Credentials) {
		c := p.Credentials[k]
		segs, _, err := segments(c.V)
		switch {
		case c.V == "":
			delete(p.Credentials, k) // the provider has none; profiles give its hosts
		case c.V == FromCommand && len(p.Command) > 0:
		case c.V == FromCommand:
			ps.errorf(c.At, RuleProvider, "credentials.%s is of a command, and the provider has none", k)
			ps.hint("write command: [PROGRAM, ARGUMENT...]")
		case err != nil:
			ps.errorf(c.At, RuleExpansion, "credentials.%s: %v", k, err)
		case len(segs) != 1 || segs[0].name == "" || segs[0].hasDef:
			ps.errorf(c.At, RuleProvider, "credentials.%s is not ${NAME}: a secret is never written into a file", k)
		}
	}
	p.checkCommand(ps)
	var places []destination
	for _, w := range []destination{{"header", p.Header.At, p.Header.IsSet()}, {"query", p.Query.At, p.Query.IsSet()}, {"path", p.Path.At,
		p.Path.V}} {
		if w.written {
			places = append(places, w)
		}
	}
	switch {
	case len(places) > 1:
		ps.errorf(places[1].at, RuleProvider, "%s and %s are both written: a credential goes to one place", places[0].key, places[1].key)
	case len(places) == 1 && len(p.Endpoints) == 0:
		ps.errorf(places[0].at, RuleProvider, "%s needs endpoints, the hosts where the credential may be used", places[0].key)
	case len(places) == 0 && len(p.Endpoints) > 0 && len(p.Credentials) > 0:
		ps.errorf(p.Endpoints[0].At, RuleProvider, "the provider names no place for its credentials in a request")
		ps.hint("write one of header: Authorization, query: NAME and path: true")
	}
}

// checkCommand rejects a program that cannot be started or that nobody needs.
func (p *Provider) checkCommand(ps *Problems) {
	for _, key := range []destination{
		{"lifetime_seconds", p.Lifetime.At, p.Lifetime.IsSet()}, {"timeout_seconds", p.Timeout.At, p.Timeout.IsSet()},
	} {
		if key.written && len(p.Command) == 0 {
			ps.errorf(key.at, RuleProvider, "%s belongs to command, and the provider has none", key.key)
		}
	}
	if len(p.Command) == 0 {
		return
	}
	program := p.Command[0]
	switch {
	case len(p.Printed()) == 0:
		ps.errorf(program.At, RuleProvider, "no credential of the provider is of its command")
		ps.hint("write credentials: {NAME: command}")
	case program.V == "":
		ps.errorf(program.At, RuleProvider, "the program of command is empty")
	case strings.Contains(program.V, "/") && !filepath.IsAbs(program.V):
		ps.errorf(program.At, RuleProvider, "command: %s is neither an absolute path nor a name on the PATH", clip(program.V))
	}
}

// destination is the position of a credential in a request.
type destination struct {
	key     string
	at      Origin
	written bool
}

// loadProviders finds the definition of each provider of the harness. An entry
// is the path of a file, or a name defined in a file of the directory
// providers.
func (h *Harness) loadProviders(ps *Problems) {
	if len(h.Providers) == 0 {
		return
	}
	h.Definitions = map[string]Provider{}
	var names Texts
	for _, entry := range h.Providers {
		switch {
		case isURL(entry.V): // never fetched, see unsupported
		case isPathLike(entry.V):
			h.loadProviderFile(ps, entry)
		case !nameRE().MatchString(entry.V):
			ps.errorf(entry.At, RuleValue, "providers: %s is neither a name nor a path", quoted(entry.V))
		default:
			names = append(names, entry)
		}
	}
	if len(names) > 0 {
		h.findProviders(ps, names)
	}
}

func (h *Harness) loadProviderFile(ps *Problems, entry Text) {
	before := len(*ps)
	h.checkPath(ps, "providers", pathFile, &tree{text: entry.V, at: entry.At})
	if len(*ps) > before {
		return
	}
	p, problems := LoadProvider(h.Path(entry), shownName(h.Path(entry)))
	*ps = append(*ps, problems...)
	if p == nil {
		return
	}
	if rel, err := filepath.Rel(h.Root, h.Path(entry)); len(p.Command) > 0 && (err != nil || !filepath.IsLocal(rel)) {
		ps.errorf(entry.At, RuleProvider, "the provider %s has a command, which is not started for a fetched file", p.Name.V)
		ps.hint("keep a copy of the file beneath the root")
		return
	}
	h.define(ps, *p, entry)
}

// define adds a definition. Two files must not define the same name.
func (h *Harness) define(ps *Problems, p Provider, entry Text) {
	if old, ok := h.Definitions[p.Name.V]; ok && old.File != p.File {
		ps.errorf(entry.At, RuleProvider, "the provider %s is defined in %s and in %s", p.Name.V, old.File, p.File)
		return
	}
	h.Definitions[p.Name.V] = p
}

// findProviders finds names in the files of the directory providers.
func (h *Harness) findProviders(ps *Problems, names Texts) {
	dir := filepath.Join(h.Root, "providers")
	all, problems := LoadProviders(dir, shownName(dir))
	known := make([]string, 0, len(all))
	for _, p := range all {
		known = append(known, p.Name.V)
	}
	for _, entry := range names {
		found := false
		for _, p := range all {
			if p.Name.V == entry.V {
				found = true
				h.define(ps, p, entry)
			}
		}
		if found {
			continue
		}
		ps.errorf(entry.At, RuleProvider, "the provider %s is not defined in %s", quoted(entry.V), shownName(dir))
		if s := strictyaml.Nearest(entry.V, known); s != "" {
			ps.hint("did you mean %q?", s)
		}
		*ps = append(*ps, problems...)
	}
}

// LoadProviders reads the provider files of a directory, sorted by name. A
// missing directory has none. Files with errors are left out and reported.
// Problems name the directory as shown.
func LoadProviders(dir, shown string) ([]Provider, Problems) {
	var ps Problems
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !os.IsNotExist(err) {
			ps.errorf(Origin{File: shown, Line: 1, Column: 1}, RuleFile, "%v", withoutPath(err))
		}
		return nil, ps
	}
	var out []Provider
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.IsDir() || ext != ".yaml" && ext != ".yml" {
			continue
		}
		p, problems := LoadProvider(filepath.Join(dir, e.Name()), filepath.Join(shown, e.Name()))
		ps = append(ps, problems...)
		if p != nil {
			out = append(out, *p)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Name.V < out[j].Name.V })
	return out, ps.Sorted()
}
