package harness

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Lookup is the host's environment, like os.LookupEnv.
type Lookup func(name string) (string, bool)

// segment is a part of a text: literal, or a reference to a variable.
type segment struct {
	literal  string
	name     string // of a reference
	def      string // value of ${NAME:-def} if NAME is unset or empty
	hasDef   bool
	from, to int // byte offsets in the text
}

// segments splits a text at its references: $NAME, ${NAME}, ${NAME:-default}
// and $$ for a dollar. A dollar before anything else is literal, unless a shell
// would expand it: then it is an error at its offset.
func segments(s string) (out []segment, bad int, err error) {
	var lit strings.Builder
	start := 0
	flush := func(end int) {
		if lit.Len() > 0 {
			out = append(out, segment{literal: lit.String(), from: start, to: end})
			lit.Reset()
		}
	}
	for i := 0; i < len(s); {
		if s[i] != '$' || i+1 == len(s) {
			lit.WriteByte(s[i])
			i++
			continue
		}
		switch c := s[i+1]; {
		case c == '$':
			lit.WriteByte('$')
			i += 2
		case c == '{':
			ref, end, err := braced(s, i)
			if err != nil {
				return nil, i, err
			}
			flush(i)
			out = append(out, ref)
			i, start = end, end
		case isNameByte(c, true):
			end := i + 1
			for end < len(s) && isNameByte(s[end], false) {
				end++
			}
			flush(i)
			out = append(out, segment{name: s[i+1 : end], from: i, to: end})
			i, start = end, end
		case strings.IndexByte("0123456789*#@!?-", c) >= 0:
			return nil, i, fmt.Errorf("$%c is no variable of the host; write $$ for a dollar", c)
		default:
			lit.WriteByte('$')
			i++
		}
	}
	flush(len(s))
	return out, 0, nil
}

// braced reads ${NAME} or ${NAME:-default} at offset i.
func braced(s string, i int) (segment, int, error) {
	end := strings.IndexByte(s[i:], '}')
	if end < 0 {
		return segment{}, 0, fmt.Errorf("${ is not closed; write $$ for a dollar")
	}
	body := s[i+2 : i+end]
	name, def, hasDef := strings.Cut(body, ":-")
	if !identRE().MatchString(name) {
		return segment{}, 0, fmt.Errorf("%s is neither ${NAME} nor ${NAME:-default}", quoted("${"+body+"}"))
	}
	if strings.Contains(def, "$") {
		return segment{}, 0, fmt.Errorf("the default of ${%s:-...} is a plain text, without references", name)
	}
	return segment{name: name, def: def, hasDef: hasDef, from: i, to: i + end + 1}, i + end + 1, nil
}

func isNameByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}

// value is the text of a reference; not ok if the variable is unset.
func (s segment) value(lookup Lookup) (string, bool) {
	v, ok := lookup(s.name)
	if s.hasDef && (!ok || v == "") {
		return s.def, true
	}
	return v, ok
}

// expander replaces references and collects the unset names.
type expander struct {
	lookup Lookup
	unset  map[string][]Origin
	files  Map // variables of .env files
	ps     Problems
	inside map[string]bool // variables of .env files, which scripts may read
}

func newExpander(lookup Lookup) *expander {
	return &expander{lookup: lookup, unset: map[string][]Origin{}, files: Map{}}
}

// text expands one text. Problems get the position of the text.
func (e *expander) text(t Text) Text {
	segs, _, err := segments(t.V)
	if err != nil {
		e.ps.errorf(t.At, RuleExpansion, "%v", err)
		return t
	}
	var out strings.Builder
	for _, s := range segs {
		if s.name == "" {
			out.WriteString(s.literal)
			continue
		}
		v, ok := s.value(e.lookup)
		if !ok {
			e.unset[s.name] = append(e.unset[s.name], t.At)
		}
		out.WriteString(v)
	}
	t.V = out.String()
	return t
}

// add takes over the unset names and problems of another expander.
func (e *expander) add(other *expander) {
	for name, at := range other.unset {
		e.unset[name] = append(e.unset[name], at...)
	}
	e.ps = append(e.ps, other.ps...)
}

func (e *expander) texts(m Map) Map {
	out := make(Map, len(m))
	for _, k := range sortedKeys(m) {
		out[k] = e.text(m[k])
	}
	return out
}

// problems are the problems found so far. All unset names are one problem.
func (e *expander) problems() Problems {
	if len(e.unset) == 0 {
		return e.ps
	}
	names := sortedKeys(e.unset)
	first := e.unset[names[0]][0]
	parts := make([]string, len(names))
	for i, n := range names {
		at := e.unset[n][0]
		parts[i] = fmt.Sprintf("%s (%s:%d)", n, at.File, at.Line)
	}
	noun := "variable is"
	if len(names) > 1 {
		noun = "variables are"
	}
	out := append(Problems(nil), e.ps...)
	out.errorf(first, RuleUnset, "%d %s not set on the host: %s", len(names), noun, strings.Join(parts, ", "))
	out.hint("set them, or write ${NAME:-default}; a credential of a provider has no default")
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// Expanded is a harness with its references replaced. It contains values of the
// host's environment, so do not print its texts: print the names only.
type Expanded struct {
	*Harness
	Runner      Map                 // env.runner
	Sandbox     Map                 // env.sandbox
	Sources     []HostFile          // host_files with their sources expanded; optional ones with an unset variable are left out
	Credentials map[string]Provider // the providers with credentials and config expanded
	Schema      Text                // validation_loop.schema, expanded
	Passed      Map                 // container.env_passthrough with the values of the host
	lookup      Lookup
}

// Expand replaces ${NAME} references by the values of the host's variables. One
// problem lists all unset names. An optional host file whose source refers to
// an unset variable is left out.
func (h *Harness) Expand(lookup Lookup) (*Expanded, Problems) {
	lookup = h.withRoot(lookup)
	e := newExpander(lookup)
	x := &Expanded{Harness: h, Runner: e.texts(h.Env.Runner), Sandbox: e.texts(h.Env.Sandbox), lookup: lookup}
	for _, f := range h.HostFiles {
		try := newExpander(lookup)
		src := try.text(f.Src)
		if f.Optional.V && len(try.unset) > 0 && len(try.ps) == 0 {
			continue
		}
		e.add(try)
		f.Src = src
		x.Sources = append(x.Sources, f)
	}
	x.Credentials = make(map[string]Provider, len(h.Definitions))
	for _, name := range sortedKeys(h.Definitions) {
		p := h.Definitions[name]
		printed := p.Printed()
		p.Credentials, p.Config = e.texts(p.Credentials), e.texts(p.Config)
		for _, k := range printed { // known when the program has run
			p.Credentials[k] = Text{At: p.Credentials[k].At}
		}
		for _, k := range sortedKeys(p.Credentials) {
			if slices.Contains(printed, k) {
				continue
			}
			if c := p.Credentials[k]; c.V == "" && len(e.unset[References(h.Definitions[name].Credentials[k].V)[0]]) == 0 {
				e.ps.errorf(c.At, RuleProvider, "credentials.%s of the provider %s is empty on the host", k, name)
			}
		}
		x.Credentials[name] = p
	}
	x.Schema = e.text(h.ValidationLoop.Schema)
	x.passThrough(e)
	if len(e.unset) == 0 {
		h.checkSchema(&e.ps, x.Schema)
	}
	if len(e.unset) > 0 {
		x.unsetInFiles(e)
	}
	if ps := e.problems(); ps.HasErrors() {
		return nil, ps
	}
	return x, nil
}

// passThrough takes the host's values of env_passthrough. An agent in the sandbox has them by
// env.sandbox.
func (x *Expanded) passThrough(e *expander) {
	x.Passed = Map{}
	for _, name := range x.Container.EnvPassthrough {
		if why := reservedInSandbox(name.V); why != "" {
			e.ps.errorf(name.At, RuleReserved, "container.env_passthrough: %s %s", name.V, why)
			continue
		}
		x.Passed[name.V] = e.text(Text{V: "${" + name.V + "}", At: name.At})
		if _, own := x.Sandbox[name.V]; x.Outside() || own {
			continue
		}
		x.Sandbox[name.V] = x.Passed[name.V]
	}
}

// unsetInFiles adds the unset variables of delivered files, so that all of them
// are listed in one round.
func (x *Expanded) unsetInFiles(e *expander) {
	files := newExpander(x.lookup)
	files.inside = x.inside()
	for _, h := range x.Sources {
		x.hostFile(files, h)
	}
	files.ps = nil
	e.add(files)
}

// inside are the variables that .env files set.
func (x *Expanded) inside() map[string]bool {
	names := map[string]bool{}
	for _, v := range x.EnvFileVars {
		names[v.V] = true
	}
	return names
}

// rootName is the variable of the root of a harness in its references.
const rootName = "FULLSEND_DIR"

// withRoot returns a lookup in which [rootName] is the root of the harness.
func (h *Harness) withRoot(lookup Lookup) Lookup {
	return func(name string) (string, bool) {
		if name == rootName {
			return h.Root, true
		}
		return lookup(name)
	}
}

// checkSchema checks that the schema of the validation loop exists.
func (h *Harness) checkSchema(ps *Problems, schema Text) {
	if schema.V != "" {
		h.checkPath(ps, "validation_loop.schema", pathFile, &tree{text: schema.V, at: schema.At})
	}
}

// known expands a text if its only variable is [rootName], which lint knows.
func (h *Harness) known(t Text) (Text, bool) {
	for _, name := range References(t.V) {
		if name != rootName {
			return t, false
		}
	}
	e := newExpander(h.withRoot(func(string) (string, bool) { return "", false }))
	return e.text(t), true
}

// Hide gives the sandbox other texts than the values of some variables of the
// host. Later calls of Files use them, and env.sandbox is expanded again.
func (x *Expanded) Hide(texts map[string]string) {
	before := x.lookup
	x.lookup = func(name string) (string, bool) {
		if text, ok := texts[name]; ok {
			return text, true
		}
		return before(name)
	}
	for name, text := range texts {
		if was, passed := x.Passed[name]; passed && !x.Outside() && x.Sandbox[name] == was {
			x.Sandbox[name] = Text{V: text, At: was.At}
		}
	}
	e := newExpander(x.lookup)
	for name, v := range x.Env.Sandbox {
		for _, ref := range References(v.V) {
			if _, ok := texts[ref]; ok {
				x.Sandbox[name] = e.text(v)
			}
		}
	}
}

// References are the names of the variables in a text, in order; none if the
// text cannot be expanded.
func References(s string) []string {
	segs, _, err := segments(s)
	if err != nil {
		return nil
	}
	var names []string
	for _, seg := range segs {
		if seg.name != "" {
			names = append(names, seg.name)
		}
	}
	return names
}
