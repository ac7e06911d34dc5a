package syntax

import (
	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// shape is the form of a value. The parser and the JSON Schema both use it.
type shape struct {
	kind   shapeKind
	words  []string       // if not empty: the only allowed values
	item   *shape         // of a list or a map
	fields func() []field // of an object
	others []shape        // alternative forms of the value
}

type shapeKind uint8

const (
	shapeText shapeKind = iota
	shapeInt
	shapeBool
	shapeDuration
	shapeList
	shapeMap
	shapeObject
)

// field describes one key of an object.
type field struct {
	name     string
	doc      string // one sentence for people and for editors
	shape    shape
	required bool
	refused  string // why the key is refused; empty: it is accepted
}

// key is a field and its reader into a T. The tables of keys are the only
// definition of the language: the parser and the schema use them.
type key[T any] struct {
	field
	read func(r *reader, n *strictyaml.Node, into *T)
}

// fieldsOf returns the fields of a key table without their readers.
func fieldsOf[T any](keys []key[T]) []field {
	fields := make([]field, len(keys))
	for i := range keys {
		fields[i] = keys[i].field
	}
	return fields
}

// maxProblems is the maximum number of problems that one load reports.
const maxProblems = 100

// reader parses the nodes of one file and collects problems.
type reader struct {
	strictyaml.Reader
	vars       map[string]string
	filesAlone bool // see [Options.FilesAlone]
}

// newReader returns a reader that appends its problems to a list.
func newReader(file string, vars map[string]string, problems *policy.Problems) *reader {
	return &reader{Reader: strictyaml.NewReader(file, &dialect, collect(problems)), vars: vars}
}

// collect returns a function that appends problems to a list, up to
// maxProblems.
func collect(problems *policy.Problems) func(strictyaml.Problem) {
	return func(p strictyaml.Problem) {
		if len(*problems) < maxProblems {
			*problems = append(*problems, policy.Problem{
				Pos: policy.Position{File: p.File, Line: p.Line, Column: p.Column}, Message: p.Message, Hint: p.Hint,
			})
		}
	}
}

func (r *reader) pos(n *strictyaml.Node) policy.Position {
	return policy.Position{File: r.File, Line: n.Line, Column: n.Column}
}

// readObject parses a mapping by its key table. Unknown, repeated and missing
// keys are problems.
func readObject[T any](r *reader, n *strictyaml.Node, what string, keys []key[T], into *T) {
	var seen uint64
	isMapping := r.Keys(n, what, func() []string { return keyNames(keys) }, func(name *strictyaml.Node) func(*strictyaml.Node) {
		at := findKey(keys, name.Value)
		if at < 0 {
			return nil
		}
		seen |= 1 << at
		return func(value *strictyaml.Node) {
			switch {
			case keys[at].refused != "":
				r.Fail(name, "", "%s: %s", name.Value, keys[at].refused)
			case strictyaml.IsNull(value):
				r.Fail(value, "give it a value or remove the key", "%s has no value", name.Value)
			default:
				keys[at].read(r, value, into)
			}
		}
	})
	for i := range keys {
		if isMapping && keys[i].required && seen&(1<<i) == 0 {
			hint := "write " + keys[i].name + ": and a value"
			if keys[i].name == "version" {
				hint = "write version: 1"
			}
			r.Fail(n, hint, "%s has no %s", what, keys[i].name)
		}
	}
}

func findKey[T any](keys []key[T], name string) int {
	for i := range keys {
		if keys[i].name == name {
			return i
		}
	}
	return -1
}

func keyNames[T any](keys []key[T]) []string {
	var names []string
	for i := range keys {
		if keys[i].refused == "" {
			names = append(names, keys[i].name)
		}
	}
	return names
}

// texts parses a list of texts. An empty list is a problem, because it matches
// nothing.
func (r *reader) texts(n *strictyaml.Node) []located {
	var out []located
	ok := r.Items(n, func(item *strictyaml.Node) {
		if s, ok := r.Text(item); ok {
			out = append(out, located{s, item})
		}
	})
	if ok && len(n.Content) == 0 {
		r.Fail(n, "remove the key to leave it open", "an empty list selects nothing")
	}
	return out
}

// oneOrMore parses a text or a list of texts.
func (r *reader) oneOrMore(n *strictyaml.Node) []located {
	if n.Kind == strictyaml.Scalar {
		if s, ok := r.Text(n); ok {
			return []located{{s, n}}
		}
		return nil
	}
	return r.texts(n)
}

// located is a text with its position.
type located struct {
	text string
	node *strictyaml.Node
}

func values(list []located) []string {
	out := make([]string, len(list))
	for i, l := range list {
		out[i] = l.text
	}
	return out
}

// dictionary parses a mapping of names to values.
func (r *reader) dictionary(n *strictyaml.Node, each func(name, value *strictyaml.Node)) {
	if n.Kind != strictyaml.Mapping {
		r.Fail(n, "", "must be a mapping of names to values")
		return
	}
	r.Keys(n, "", nil, func(name *strictyaml.Node) func(*strictyaml.Node) {
		return func(value *strictyaml.Node) { each(name, value) }
	})
}
