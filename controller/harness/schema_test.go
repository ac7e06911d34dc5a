package harness

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"
)

// Every leaf must be consumed by a named step, or have a reason why it is not.
func TestEveryDocumentedKeyHasAReaderOrAReason(t *testing.T) {
	known := map[string]bool{}
	for _, p := range paths(fields, "") {
		known[p] = true
		_, consumed := Consumers[p]
		why := reason(p)
		if text, ok := Meaningless[p]; ok {
			consumed, why = false, text
		}
		switch {
		case consumed && why != noStep:
			t.Errorf("%s is consumed and has a reason why it is not: %s", p, why)
		case !consumed && why == noStep:
			t.Errorf("%s is consumed by no step and has no reason in Unsupported", p)
		}
	}
	for p := range Consumers {
		if !known[p] {
			t.Errorf("Consumers names %s, which is not in the schema", p)
		}
	}
	for p := range Unsupported {
		found := false
		for k := range known {
			found = found || k == p || strings.HasPrefix(k, p+".")
		}
		if !found {
			t.Errorf("Unsupported names %s, which is not in the schema", p)
		}
	}
}

// structPaths lists the dotted tags of a struct.
func structPaths(v reflect.Type, where string) []string {
	var out []string
	for i := range v.NumField() {
		f := v.Field(i)
		tag := f.Tag.Get("harness")
		if tag == "" {
			continue
		}
		kind := f.Type
		if kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if _, value := reflect.PointerTo(kind).MethodByName("IsSet"); !value && kind.Kind() == reflect.Struct {
			out = append(out, structPaths(kind, join(where, tag))...)
			continue
		}
		out = append(out, join(where, tag))
	}
	return out
}

func TestTheStructHasTheFieldsOfTheTable(t *testing.T) {
	folded := map[string]bool{"base": true, "runner_env": true, "env.both": true}
	for _, c := range []struct {
		kind   reflect.Type
		schema []field
	}{{reflect.TypeFor[Harness](), fields}, {reflect.TypeFor[Provider](), providerFields}} {
		have := map[string]bool{}
		for _, p := range structPaths(c.kind, "") {
			have[p] = true
		}
		for _, p := range paths(c.schema, "") {
			if !have[p] && !folded[p] {
				t.Errorf("%s has no field for %s", c.kind, p)
			}
			delete(have, p)
		}
		for p := range have {
			t.Errorf("%s has a field for %s, which is not in the table", c.kind, p)
		}
	}
}

func TestEveryFieldHasADescription(t *testing.T) {
	var walk func(schema []field, where string)
	walk = func(schema []field, where string) {
		for _, f := range schema {
			if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
				t.Errorf("%s has no sentence: %q", join(where, f.name), f.doc)
			}
			if f.format.pattern != nil && f.format.means == "" || f.keys.pattern != nil && f.keys.means == "" {
				t.Errorf("%s has a pattern without words", join(where, f.name))
			}
			walk(f.fields, join(where, f.name))
		}
	}
	walk(fields, "")
	walk(overlayFields, "overlays")
	walk(providerFields, "provider")
}

func TestTheSchemasAreJSON(t *testing.T) {
	for _, make := range []func() ([]byte, error){Schema, ProviderSchema} {
		text, err := make()
		if err != nil || !json.Valid(text) {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// schemaOf is a JSON Schema as an editor reads it.
func schemaOf(t *testing.T, make func() ([]byte, error)) *jsonschema.Resolved {
	t.Helper()
	text, err := make()
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestTheSchemaAcceptsWhatLoads(t *testing.T) {
	s := schemaOf(t, Schema)
	for name, text := range portable {
		if strings.HasPrefix(name, "harness/") {
			if err := s.Validate(instance(t, text)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, text := range []string{
		"model: ~\nskills: ~\nenv: {runner: {A: ~, B: 1, C: true}, sandbox: ~}\nsecurity: ~\n", "skills: [a, {path: b}, {c: {f: g, h: ~}}]\n",
		"plugins: [{path: x, env: {A: b}, pi: {args: [--x]}}]\n", "overlays: [{when: x, env: {}}]\nforge: {other: {policy: p}, github: ~}\n",
	} {
		if err := s.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := schemaOf(t, ProviderSchema).Validate(instance(t, "name: n\ntype: t\ncredentials: {K: '${V}'}\nendpoints: ['*.example.com', 'x:443']\nheader: Authorization\n")); err != nil {
		t.Error(err)
	}
}

func TestTheSchemaRefusesWhatDoesNotLoad(t *testing.T) {
	s := schemaOf(t, Schema)
	for _, text := range []string{
		"modell: x\n", "model: a b\n", "model: [x]\n", "version: 2\n", "timeout_minutes: soon\n", "timeout_minutes: -1\n",
		"timeout_minutes: 1.5\n", "readonly_repo: 'yes'\n", "effort: hgih\n",
		"env: {sandbx: {}}\n", "env: {runner: [x]}\n", "env: {runner: {9A: x}}\n", "host_files: [{src: a}]\n",
		"host_files: [{src: a, dest: b, mode: c}]\n", "skills: [[a]]\n", "forge: {github: {model: x}}\n",
		"overlays: [{env: {}}]\n", "security: {host_scanners: {llm_guard: {threshold: 2}}}\n", "agent: ''\n", "slug: ''\n",
	} {
		if s.Validate(instance(t, text)) == nil {
			t.Errorf("accepted: %s", text)
		}
	}
	p := schemaOf(t, ProviderSchema)
	for _, text := range []string{"name: n\n", "name: n\ntype: t\nx: y\n", "name: a b\ntype: t\n", "name: n\ntype: t\nendpoints: ['https://x/']\n"} {
		if p.Validate(instance(t, text)) == nil {
			t.Errorf("accepted: %s", text)
		}
	}
}

// selectors collects the names in selector expressions of the code in a
// directory.
func selectors(t *testing.T, dir string, into map[string]bool) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				into[s.Sel.Name] = true
			}
			return true
		})
	}
}

// goNames maps the dotted paths of a struct to the names of its fields.
func goNames(v reflect.Type, where string, names []string, out map[string][]string) {
	for i := range v.NumField() {
		f := v.Field(i)
		tag := f.Tag.Get("harness")
		if tag == "" {
			continue
		}
		kind := f.Type
		if kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		path := append(append([]string(nil), names...), f.Name)
		if _, value := reflect.PointerTo(kind).MethodByName("IsSet"); !value && kind.Kind() == reflect.Struct {
			goNames(kind, join(where, tag), path, out)
			continue
		}
		out[join(where, tag)] = path
	}
}

// The Go name of every consumed field must be selected somewhere in the code of
// a run.
func TestKeysMarkedConsumedAreReadByTheCode(t *testing.T) {
	read := map[string]bool{}
	for _, dir := range []string{".", "..", "../provider", "../runtime", "../servers", "../../cmd/agentctl"} {
		selectors(t, dir, read)
	}
	names := map[string][]string{}
	goNames(reflect.TypeFor[Harness](), "", nil, names)
	for path, step := range Consumers {
		if step == "load" {
			continue // read by the loader
		}
		for _, name := range names[path] {
			if !read[name] {
				t.Errorf("%s is consumed by the step %s, but nothing reads %s", path, step, name)
			}
		}
		if names[path] == nil {
			t.Errorf("%s has no field", path)
		}
	}
}

// paths lists the dotted paths of the leaves of a schema.
func paths(schema []field, where string) []string {
	var out []string
	for i := range schema {
		f := &schema[i]
		if f.kind == kindForge || f.kind == kindOverlay {
			continue
		}
		if f.fields != nil {
			out = append(out, paths(f.fields, join(where, f.name))...)
			continue
		}
		out = append(out, join(where, f.name))
	}
	return out
}
