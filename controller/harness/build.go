package harness

import (
	"fmt"
	"strconv"
	"strings"

	"agentsh/internal/strictyaml"
)

// builder checks the nodes of one file against the table and builds trees.
type builder struct {
	file  string
	layer string
	ps    *Problems
	whole string // what the file describes, for messages; empty: a harness
}

func (b *builder) at(n *strictyaml.Node) Origin {
	return Origin{File: b.file, Line: n.Line, Column: n.Column, Layer: b.layer}
}

// mapping checks the keys of a mapping against a schema and builds each value.
// Values with problems are left out. A key without a value counts as not
// written: often only its comments are left.
func (b *builder) mapping(n *strictyaml.Node, schema []field, where string) *tree {
	t := b.keys(n, schema, where)
	if t == nil {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if t.dict[key.Value] == nil || !blank(value) {
			continue
		}
		t = t.without(key.Value)
		b.ps.warnf(b.at(key), RuleNoEffect, "%s is empty, as if it were not written", join(where, key.Value))
		b.ps.hint("leave the key out, or write ~ to remove what a base wrote")
	}
	return t
}

// blank reports whether a key has no value at all, not even an explicit null.
func blank(n *strictyaml.Node) bool { return strictyaml.IsNull(n) && n.Value == "" }

// keys is like mapping, and keeps keys without a value.
func (b *builder) keys(n *strictyaml.Node, schema []field, where string) *tree {
	out := newDict(b.at(n))
	if n.Kind != strictyaml.Mapping {
		b.ps.errorf(b.at(n), RuleType, "%s is a mapping of keys to values, this is %s", nameOr(where, "the file"), describe(n))
		return nil
	}
	seen := map[string]*strictyaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !b.freshKey(key, seen) {
			continue
		}
		f := find(schema, key.Value)
		if f == nil {
			b.unknown(key, schema, where)
			continue
		}
		if t := b.value(value, f, join(where, f.name)); t != nil {
			if t.shape == shapeDict || t.shape == shapeList {
				t.at = b.at(key) // a block begins with its key
			}
			out.put(f.name, t)
		}
	}
	return out
}

// freshKey reports a key that is not a text or that occurs twice.
func (b *builder) freshKey(key *strictyaml.Node, seen map[string]*strictyaml.Node) bool {
	if key.Kind != strictyaml.Scalar {
		b.ps.errorf(b.at(key), RuleType, "a key is a word, this is %s", describe(key))
		return false
	}
	if first, ok := seen[key.Value]; ok {
		b.ps.errorf(b.at(key), RuleDuplicate, "%s is written twice, first in line %d", quoted(key.Value), first.Line)
		return false
	}
	seen[key.Value] = key
	return true
}

func (b *builder) unknown(key *strictyaml.Node, schema []field, where string) {
	if b.whole == "" && where != "" && find(fields, key.Value) != nil && find(schema, "when") == nil && find(schema, "pre_script") == nil {
		b.ps.errorf(b.at(key), RuleUnknownKey, "%s has no key %s; it belongs to the top level", where, quoted(key.Value))
		return
	}
	if find(schema, "pre_script") != nil && find(fields, key.Value) != nil {
		b.ps.errorf(b.at(key), RuleForge, "%s may not differ in %s", quoted(key.Value), where)
		b.ps.hint("write it at the top level, or in a harness of its own with base")
		return
	}
	b.ps.errorf(b.at(key), RuleUnknownKey, "%s has no key %s", nameOr(where, nameOr(b.whole, "a harness")), quoted(key.Value))
	names := make([]string, len(schema))
	for i := range schema {
		names[i] = schema[i].name
	}
	if hint := strictyaml.DidYouMean(key.Value, names); hint != "" {
		b.ps.hint("%s", hint)
	}
}

// value builds the value of one field; nil after a problem.
func (b *builder) value(n *strictyaml.Node, f *field, where string) *tree {
	if strictyaml.IsNull(n) {
		return &tree{shape: shapeNull, at: b.at(n)}
	}
	switch f.kind {
	case kindList:
		return b.list(n, where, func(c *strictyaml.Node, where string) *tree { return b.text(c, f, where) })
	case kindMap:
		return b.dict(n, f, where)
	case kindStruct:
		return b.mapping(n, f.fields, where)
	case kindStructs:
		return b.list(n, where, func(c *strictyaml.Node, where string) *tree { return b.entry(c, f.fields, where) })
	case kindRefs:
		return b.list(n, where, func(c *strictyaml.Node, where string) *tree { return b.ref(c, f, where) })
	case kindForge, kindOverlay:
		return nil // built per layer
	}
	return b.scalar(n, f, where)
}

func (b *builder) list(n *strictyaml.Node, where string, entry func(*strictyaml.Node, string) *tree) *tree {
	if n.Kind != strictyaml.List {
		b.ps.errorf(b.at(n), RuleType, "%s is a list, this is %s", where, describe(n))
		return nil
	}
	out := &tree{shape: shapeList, at: b.at(n)}
	for i, c := range n.Content {
		where := where + "[" + strconv.Itoa(i) + "]"
		if strictyaml.IsNull(c) {
			b.ps.errorf(b.at(c), RuleType, "%s is empty", where)
			b.ps.hint("null removes a whole list, not an entry")
			continue
		}
		if t := entry(c, where); t != nil {
			out.items = append(out.items, t)
		}
	}
	return out
}

// dict builds a map of texts. A null removes the key of a weaker layer.
func (b *builder) dict(n *strictyaml.Node, f *field, where string) *tree {
	if f.keys.bare && n.Kind == strictyaml.List {
		return b.bare(n, f, where)
	}
	if n.Kind != strictyaml.Mapping {
		b.ps.errorf(b.at(n), RuleType, "%s is a mapping of keys to values, this is %s", where, describe(n))
		return nil
	}
	out := newDict(b.at(n))
	seen := map[string]*strictyaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !b.freshKey(key, seen) {
			continue
		}
		if f.keys.pattern != nil && !f.keys.pattern().MatchString(key.Value) {
			b.ps.errorf(b.at(key), RuleName, "%s: the key %s is not %s", where, quoted(key.Value), f.keys.means)
			continue
		}
		var t *tree
		if strictyaml.IsNull(value) {
			t = &tree{shape: shapeNull, at: b.at(key)}
		} else if t = b.text(value, f, join(where, key.Value)); t != nil {
			t.at = b.at(key)
		}
		if t != nil {
			out.put(key.Value, t)
		}
	}
	return out
}

// bare builds a map of a list of its keys.
func (b *builder) bare(n *strictyaml.Node, f *field, where string) *tree {
	out := newDict(b.at(n))
	b.list(n, where, func(c *strictyaml.Node, where string) *tree {
		t := b.text(c, &field{format: f.keys}, where)
		switch {
		case t == nil:
		case out.dict[t.text] != nil:
			b.ps.errorf(t.at, RuleDuplicate, "%s: %s is written twice", where, t.text)
		default:
			out.put(t.text, &tree{shape: shapeScalar, text: "${" + t.text + "}", at: t.at})
		}
		return nil
	})
	return out
}

// entry builds one mapping of a list. All required keys must be present.
func (b *builder) entry(n *strictyaml.Node, schema []field, where string) *tree {
	t := b.keys(n, schema, where)
	if t == nil {
		return nil
	}
	whole := true
	for i := range schema {
		f := &schema[i]
		v, ok := t.dict[f.name]
		switch {
		case ok && v.shape == shapeNull:
			b.ps.errorf(v.at, RuleType, "%s.%s is empty", where, f.name)
			whole = false
		case f.required && !ok:
			whole = false
			if !hasKey(n, f.name) {
				b.ps.errorf(b.at(n), RuleRequired, "%s has no %s", where, f.name)
			}
		}
	}
	if !whole {
		return nil
	}
	return t
}

func hasKey(n *strictyaml.Node, name string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}

// ref builds an entry that is a path, or a mapping with a path and options. A
// skill with overrides may also be written {path: {file: local}}.
func (b *builder) ref(n *strictyaml.Node, f *field, where string) *tree {
	if n.Kind == strictyaml.Mapping && !hasKey(n, "path") && find(f.fields, "overrides") != nil && len(n.Content) == 2 {
		out := newDict(b.at(n))
		overrides := b.value(n.Content[1], find(f.fields, "overrides"), join(where, "overrides"))
		if overrides == nil || n.Content[0].Kind != strictyaml.Scalar {
			return nil
		}
		out.put("path", &tree{at: b.at(n.Content[0]), text: n.Content[0].Value})
		out.put("overrides", overrides)
		return out
	}
	if n.Kind == strictyaml.Mapping {
		return b.entry(n, f.fields, where)
	}
	t := b.text(n, find(f.fields, "path"), where)
	if t == nil {
		return nil
	}
	out := newDict(t.at)
	out.put("path", t)
	return out
}

// text builds a text from a scalar. Numbers and words like true keep their
// spelling.
func (b *builder) text(n *strictyaml.Node, f *field, where string) *tree {
	if n.Kind != strictyaml.Scalar {
		b.ps.errorf(b.at(n), RuleType, "%s is a text, this is %s", where, describe(n))
		return nil
	}
	if problem := f.checkText(n.Value); problem != "" {
		b.ps.errorf(b.at(n), RuleValue, "%s: %s", where, problem)
		if s := strictyaml.Nearest(n.Value, f.format.values); s != "" {
			b.ps.hint("did you mean %q?", s)
		}
		return nil
	}
	if f.expands {
		if _, _, err := segments(n.Value); err != nil {
			b.ps.errorf(b.at(n), RuleExpansion, "%s: %v", where, err)
			return nil
		}
	}
	return &tree{at: b.at(n), text: n.Value}
}

// checkText returns the problem of a text, or "".
func (f *field) checkText(s string) string {
	if strings.ContainsRune(s, 0) {
		return "holds a NUL byte"
	}
	if f.format.values != nil {
		for _, w := range f.format.values {
			if s == w {
				return ""
			}
		}
		if why, ok := f.format.refused[s]; ok {
			return fmt.Sprintf("%s is not supported here: %s", quoted(s), why)
		}
		return fmt.Sprintf("%s is not one of %s", quoted(s), strings.Join(f.format.values, ", "))
	}
	if f.format.pattern != nil && !f.format.pattern().MatchString(s) {
		return fmt.Sprintf("%s is not %s", quoted(s), f.format.means)
	}
	return ""
}

// scalar builds a single value of the field's type.
func (b *builder) scalar(n *strictyaml.Node, f *field, where string) *tree {
	if f.kind == kindText {
		t := b.text(n, f, where)
		if t != nil && t.text == "" && (f.required || f.path != notPath) {
			b.ps.errorf(t.at, RuleValue, "%s is empty", where)
			b.ps.hint("leave the key out, or write null to remove what a base wrote")
			return nil
		}
		return t
	}
	want := map[kind]string{kindInt: "a whole number", kindNumber: "a number", kindBool: "true or false"}[f.kind]
	got := strictyaml.String
	if n.Kind == strictyaml.Scalar {
		got = strictyaml.TypeOf(n)
	}
	switch {
	case f.kind == kindBool && got == strictyaml.Bool:
		return &tree{at: b.at(n), text: strings.ToLower(n.Value)}
	case f.kind == kindInt && got == strictyaml.Int:
		return b.number(n, f, where)
	case f.kind == kindNumber && (got == strictyaml.Float || got == strictyaml.Int):
		return b.number(n, f, where)
	}
	b.ps.errorf(b.at(n), RuleType, "%s is %s, this is %s", where, want, describe(n))
	return nil
}

// number checks the range of a number and keeps its decimal spelling.
func (b *builder) number(n *strictyaml.Node, f *field, where string) *tree {
	var value float64
	text := n.Value
	if f.kind == kindInt {
		i, err := parseInt(n.Value)
		if err != nil {
			b.ps.errorf(b.at(n), RuleValue, "%s: %s is too large", where, n.Value)
			return nil
		}
		value, text = float64(i), strconv.Itoa(i)
	} else {
		v, err := strconv.ParseFloat(n.Value, 64)
		if err != nil {
			b.ps.errorf(b.at(n), RuleValue, "%s: %s is not a number that can be used", where, n.Value)
			return nil
		}
		value = v
	}
	if f.limits.min == f.limits.max && int(value) != f.limits.min {
		b.ps.errorf(b.at(n), RuleValue, "%s %s is not known, only %d", where, text, f.limits.min)
		return nil
	}
	if value < float64(f.limits.min) || f.limits.max > 0 && value > float64(f.limits.max) || value != value {
		b.ps.errorf(b.at(n), RuleValue, "%s: %s is not %s", where, n.Value, f.bounds())
		return nil
	}
	return &tree{at: b.at(n), text: text}
}

// bounds describes the range of a number.
func (f *field) bounds() string {
	if f.limits.max > 0 {
		return fmt.Sprintf("between %d and %d", f.limits.min, f.limits.max)
	}
	return fmt.Sprintf("%d or more", f.limits.min)
}

// describe describes a node, for messages.
func describe(n *strictyaml.Node) string {
	switch n.Kind {
	case strictyaml.Mapping:
		return "a mapping"
	case strictyaml.List:
		return "a list"
	case strictyaml.Scalar:
		switch strictyaml.TypeOf(n) {
		case strictyaml.Null:
			return "empty"
		case strictyaml.Bool:
			return "the truth value " + n.Value
		case strictyaml.Int, strictyaml.Float:
			return "the number " + clip(n.Value)
		}
		return "the text " + quoted(n.Value)
	}
	return "something else"
}

// quoted is a text in quotes, with control characters escaped. Long texts are
// cut.
func quoted(s string) string { return strconv.Quote(clip(s)) }

func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

func nameOr(where, name string) string {
	if where == "" {
		return name
	}
	return where
}

func join(where, name string) string {
	if where == "" {
		return name
	}
	return where + "." + name
}
