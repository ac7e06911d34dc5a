package syntax

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// shape is what a value looks like. Reading and the JSON Schema both come
// from it.
type shape struct {
	kind   shapeKind
	words  []string       // the only words allowed, when not empty
	item   *shape         // of a list or a map
	fields func() []field // of an object
	others []shape        // other forms the value may take
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

// key is a field and how it is read into a T. The tables of keys are the one
// place where the language is written down: parsing and the schema use them.
type key[T any] struct {
	field
	read func(r *reader, n *yaml.Node, into *T)
}

// fieldsOf drops the readers of a key table.
func fieldsOf[T any](keys []key[T]) []field {
	fields := make([]field, len(keys))
	for i := range keys {
		fields[i] = keys[i].field
	}
	return fields
}

// reader reads the nodes of one file and collects problems.
type reader struct {
	file     string
	vars     map[string]string
	problems *policy.Problems
}

func (r *reader) pos(n *yaml.Node) policy.Position {
	return policy.Position{File: r.file, Line: n.Line, Column: n.Column}
}

// fail notes an error at n.
func (r *reader) fail(n *yaml.Node, hint, format string, args ...any) {
	r.failAt(r.pos(n), hint, fmt.Sprintf(format, args...))
}

func (r *reader) failAt(pos policy.Position, hint, message string) {
	if len(*r.problems) < maxProblems {
		*r.problems = append(*r.problems, policy.Problem{Pos: pos, Message: message, Hint: hint})
	}
}

// readObject reads a mapping by its key table. Unknown, repeated and missing
// keys are problems.
func readObject[T any](r *reader, n *yaml.Node, what string, keys []key[T], into *T) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "", "%s must be a mapping of keys to values", what)
		return
	}
	var seen uint64
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		at := findKey(keys, name.Value)
		switch {
		case name.Kind != yaml.ScalarNode || at < 0:
			r.fail(name, didYouMean(name.Value, keyNames(keys)), "%s has no key %q", what, shorten(name.Value))
		case seen&(1<<at) != 0:
			r.fail(name, "merge the two", "key %q is given twice", name.Value)
		case keys[at].refused != "":
			r.fail(name, "", "%s: %s", name.Value, keys[at].refused)
		case value.Tag == "!!null":
			r.fail(value, "give it a value or remove the key", "%s has no value", name.Value)
		default:
			keys[at].read(r, value, into)
		}
		if at >= 0 {
			seen |= 1 << at
		}
	}
	for i := range keys {
		if keys[i].required && seen&(1<<i) == 0 {
			r.fail(n, "", "%s has no %s", what, keys[i].name)
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

// shorten keeps messages readable when the file holds rubbish.
func shorten(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// text reads a scalar as it is written: 123 and true are texts here, since
// commands may be named so.
func (r *reader) text(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Tag == "!!binary" || (n.Style&yaml.TaggedStyle != 0) {
		r.fail(n, "", "must be text")
		return "", false
	}
	if i := strings.IndexByte(n.Value, 0); i >= 0 {
		r.fail(n, "", "text holds a NUL byte")
		return "", false
	}
	return n.Value, true
}

// word reads one of a fixed set of words.
func (r *reader) word(n *yaml.Node, what string, words []string) (int, bool) {
	s, ok := r.text(n)
	if !ok {
		return 0, false
	}
	for i, w := range words {
		if s == w {
			return i, true
		}
	}
	r.fail(n, didYouMean(s, words), "unknown %s %q", what, shorten(s))
	return 0, false
}

func (r *reader) number(n *yaml.Node, low, high int64) (int64, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		r.fail(n, "", "must be a whole number")
		return 0, false
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		r.fail(n, "write it in decimal", "%q is not a whole number that fits", shorten(n.Value))
		return 0, false
	}
	if v < low || v > high {
		r.fail(n, "", "%d is out of range, %d to %d", v, low, high)
		return 0, false
	}
	return v, true
}

func (r *reader) flag(n *yaml.Node) (bool, bool) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		switch n.Value {
		case "true":
			return true, true
		case "false":
			return false, true
		}
	}
	r.fail(n, "", "must be true or false")
	return false, false
}

// duration reads "90s", "5m" or "1h30m".
func (r *reader) duration(n *yaml.Node) (time.Duration, bool) {
	s, ok := r.text(n)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		r.fail(n, "write it as 90s, 5m or 1h30m", "%q is not a length of time above zero", shorten(s))
		return 0, false
	}
	return d, true
}

// list calls each for every item of a sequence.
func (r *reader) list(n *yaml.Node, each func(item *yaml.Node)) bool {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "write it as [one, two]", "must be a list")
		return false
	}
	for _, item := range n.Content {
		each(item)
	}
	return true
}

// texts reads a list of texts. An empty list is a problem: it selects nothing.
func (r *reader) texts(n *yaml.Node) []located {
	var out []located
	ok := r.list(n, func(item *yaml.Node) {
		if s, ok := r.text(item); ok {
			out = append(out, located{s, item})
		}
	})
	if ok && len(n.Content) == 0 {
		r.fail(n, "remove the key to leave it open", "an empty list selects nothing")
	}
	return out
}

// oneOrMore reads a text or a list of texts.
func (r *reader) oneOrMore(n *yaml.Node) []located {
	if n.Kind == yaml.ScalarNode {
		if s, ok := r.text(n); ok {
			return []located{{s, n}}
		}
		return nil
	}
	return r.texts(n)
}

// located is a text and where it stands.
type located struct {
	text string
	node *yaml.Node
}

func values(list []located) []string {
	out := make([]string, len(list))
	for i, l := range list {
		out[i] = l.text
	}
	return out
}

// dictionary reads a mapping of texts to texts.
func (r *reader) dictionary(n *yaml.Node, each func(name, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "", "must be a mapping of names to values")
		return
	}
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if seen[name.Value] {
			r.fail(name, "", "key %q is given twice", shorten(name.Value))
			continue
		}
		seen[name.Value] = true
		each(name, n.Content[i+1])
	}
}
