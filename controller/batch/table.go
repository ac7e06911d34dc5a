package batch

import (
	"encoding/json"
	"maps"
	"slices"

	"agentsh/controller/harness"
	"agentsh/internal/lazy"
	"agentsh/internal/strictyaml"
	"agentsh/policy/env"
)

// dialect is what a batch file may contain.
var dialect = strictyaml.Dialect{
	MaxBytes: 4 << 20, MaxMarks: 400_000, MaxDepth: 8, MaxText: 64 << 10, CoreTags: true, Anchors: true,
	Texts: strictyaml.Texts{
		None:   strictyaml.Text{Message: "the file is empty", Hint: "write runs: [{harness: FILE, repo: DIR}]"},
		Second: strictyaml.Text{Message: "a second document: one file describes one batch"},
	},
}

// key is one key of a mapping of the file. The table of keys drives the reader and the JSON
// Schema.
type key[T any] struct {
	name     string
	doc      string
	required bool
	schema   schema
	read     func(r *reader, n *strictyaml.Node, into *T)
}

// schema is a JSON Schema.
type schema map[string]any

// reader reads the nodes of a file.
type reader struct {
	strictyaml.Reader
	problems *harness.Problems
}

func newReader(file string, ps *harness.Problems) *reader {
	r := &reader{problems: ps}
	r.Reader = strictyaml.NewReader(file, &dialect, r.report(harness.RuleValue))
	return r
}

// report adds problems of a rule.
func (r *reader) report(rule string) func(strictyaml.Problem) {
	return func(p strictyaml.Problem) {
		*r.problems = append(*r.problems, harness.Problem{
			At: harness.Origin{File: p.File, Line: p.Line, Column: p.Column}, Severity: harness.Error, Rule: rule,
			Message: p.Message, Hint: p.Hint,
		})
	}
}

func (r *reader) at(n *strictyaml.Node) harness.Origin {
	return harness.Origin{File: r.File, Line: n.Line, Column: n.Column}
}

// object reads a mapping with the keys of a table.
func object[T any](r *reader, n *strictyaml.Node, what string, keys []key[T], into *T) bool {
	readers := make(map[string]func(*strictyaml.Node), len(keys))
	for _, k := range keys {
		readers[k.name] = func(n *strictyaml.Node) { k.read(r, n, into) }
	}
	if !r.Fields(n, what, readers) {
		return false
	}
	whole := true
	for _, k := range keys {
		if k.required && strictyaml.Value(n, k.name) == nil {
			r.Fail(n, "write "+k.name+": ...", "%s has no %s", what, k.name)
			whole = false
		}
	}
	return whole
}

// objectSchema describes a mapping with the keys of a table.
func objectSchema[T any](keys []key[T]) schema {
	properties := schema{}
	var required []string
	for _, k := range keys {
		s := maps.Clone(k.schema)
		s["description"] = k.doc
		properties[k.name] = s
		if k.required {
			required = append(required, k.name)
		}
	}
	out := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	return out
}

// Schema is the JSON Schema (draft 2020-12) of batch files.
func Schema() ([]byte, error) {
	s := objectSchema(fileKeys)
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "agentsh batch"
	s["anyOf"] = []schema{{"required": []string{"runs"}}, {"required": []string{"matrix"}}}
	out, err := json.MarshalIndent(s, "", "  ")
	return append(out, '\n'), err
}

// Texts that are written as they are: 12 and true are texts here.
var textSchema = schema{"type": []string{"string", "number", "boolean"}}

// countSchema is a number from 1 on.
func countSchema(high int64) schema {
	return schema{"type": "integer", "minimum": 1, "maximum": high}
}

var durationSchema = schema{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`}

func listSchema(of schema) schema { return schema{"type": "array", "items": of, "minItems": 1} }

func oneOrMore(of schema) schema { return schema{"anyOf": []schema{of, listSchema(of)}} }

func mapSchema(names string, of schema) schema {
	return schema{"type": "object", "propertyNames": schema{"pattern": names}, "additionalProperties": of}
}

// Patterns of names.
const (
	namePattern = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`
	varPattern  = `^[A-Za-z_][A-Za-z0-9_]*$`
)

var (
	nameRE = lazy.Regexp(namePattern)
	varRE  = lazy.Regexp(varPattern)
)

// name reads the name of a run, a label, a backend or a provider.
func (r *reader) name(n *strictyaml.Node, what string) (string, bool) {
	s, ok := r.Text(n)
	if ok && !nameRE().MatchString(s) {
		r.Fail(n, "letters, digits and _ . -, at most 100, beginning with a letter or digit", "%q is no name of %s", strictyaml.Shorten(s), what)
		return "", false
	}
	return s, ok
}

// path reads the name of a file or directory.
func (r *reader) path(n *strictyaml.Node) (string, bool) {
	s, ok := r.Text(n)
	if ok && s == "" {
		r.Fail(n, "", "the path is empty")
		return "", false
	}
	return s, ok
}

// list reads a list, or one value that stands for a list of it.
func (r *reader) list(n *strictyaml.Node, each func(*strictyaml.Node)) {
	if n.Kind == strictyaml.Scalar && !strictyaml.IsNull(n) {
		each(n)
		return
	}
	if r.Items(n, each) && len(n.Content) == 0 {
		r.Fail(n, "", "the list is empty")
	}
}

// labels reads names with texts.
func (r *reader) labels(n *strictyaml.Node, into map[string]string) {
	r.Keys(n, "labels", nil, func(k *strictyaml.Node) func(*strictyaml.Node) {
		return func(v *strictyaml.Node) {
			if _, ok := r.name(k, "a label"); !ok {
				return
			}
			if slices.Contains(ownLabels, k.Value) {
				r.Fail(k, "name it otherwise", "every run has the label %s", k.Value)
				return
			}
			if s, ok := r.name(v, "a label"); ok {
				into[k.Value] = s
			}
		}
	})
}

// variables reads the values of variables. each gets the value of each.
func (r *reader) variables(n *strictyaml.Node, each func(name string, value *strictyaml.Node)) {
	r.Keys(n, "vars", nil, func(k *strictyaml.Node) func(*strictyaml.Node) {
		return func(v *strictyaml.Node) {
			switch {
			case !varRE().MatchString(k.Value):
				r.Fail(k, "letters, digits and _", "%q is no name of a variable", strictyaml.Shorten(k.Value))
			case env.Reserved(k.Value):
				r.Fail(k, "name it otherwise", "the variable %s is reserved for the system or the supervisor", k.Value)
			default:
				each(k.Value, v)
			}
		}
	})
}
