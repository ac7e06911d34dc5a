package controller

import (
	"encoding/json"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"agentsh/internal/wire"
)

// resultSchema is the printed schema, ready to validate.
func resultSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	data, err := ResultSchema()
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// fill gives every field of a value a value of its own kind that is not zero.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else {
			v.SetUint(1)
		}
	}
}

// object is a value as readers of the file get it.
func object(t *testing.T, v any) map[string]any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// The schema allows no further properties, so a field that is not in it fails.
func TestTheSchemaHasEveryFieldOfAResult(t *testing.T) {
	s := resultSchema(t)
	var r Result
	fill(reflect.ValueOf(&r).Elem())
	r.Version, r.Status, r.Changed[0].By = 1, StatusDone, wire.ByBoth
	full := object(t, r)
	if err := s.Validate(full); err != nil {
		t.Errorf("a full result: %v", err)
	}
	least := Result{Version: 1, Status: StatusFailed}
	if err := s.Validate(object(t, least)); err != nil {
		t.Errorf("the least result: %v", err)
	}
	for name, change := range map[string]func(map[string]any){
		"another version":      func(m map[string]any) { m["version"] = 2 },
		"an unknown status":    func(m map[string]any) { m["status"] = "fine" },
		"no status":            func(m map[string]any) { delete(m, "status") },
		"an unknown property":  func(m map[string]any) { m["more"] = true },
		"a count that is text": func(m map[string]any) { m["refusals"] = "1" },
		"a severity":           func(m map[string]any) { m["findings"] = []any{map[string]any{"severity": "fatal"}} },
		"an unknown author": func(m map[string]any) {
			m["changed"] = []any{map[string]any{"path": "a", "status": "added", "by": "x"}}
		},
		"a list that is none": func(m map[string]any) { m["refused"] = map[string]any{} },
	} {
		bad := maps.Clone(full)
		change(bad)
		if s.Validate(bad) == nil {
			t.Errorf("%s is valid", name)
		}
	}
}
