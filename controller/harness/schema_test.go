package harness

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// A leaf that nothing consumes is a defect: it must be consumed by a named
// step, or say why it is not.
func TestEveryDocumentedKeyHasAReaderOrAReason(t *testing.T) {
	known := map[string]bool{}
	for _, p := range paths(fields, "") {
		known[p] = true
		_, consumed := Consumers[p]
		why := reason(p)
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

func TestEveryFieldSaysWhatItIs(t *testing.T) {
	var walk func(schema []field, where string)
	walk = func(schema []field, where string) {
		for _, f := range schema {
			if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
				t.Errorf("%s has no sentence: %q", join(where, f.name), f.doc)
			}
			if f.pattern != nil && f.says == "" || f.keys != nil && f.keysSay == "" {
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
