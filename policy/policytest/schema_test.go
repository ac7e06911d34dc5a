package policytest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// properties are the keys of an object of the schema.
func properties(t *testing.T, path ...string) []string {
	t.Helper()
	var at any
	if err := json.Unmarshal(Schema, &at); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(path, "properties") {
		object, ok := at.(map[string]any)
		if !ok {
			t.Fatalf("%v is not in the schema", path)
		}
		at = object[p]
	}
	return slices.Sorted(maps.Keys(at.(map[string]any)))
}

// TestTheSchemaHasTheKeysThatTheReaderKnows: the answer to an unknown key lists
// the known ones.
func TestTheSchemaHasTheKeysThatTheReaderKnows(t *testing.T) {
	const kase = "policy: p\ntests: [{name: a, expect: deny, command: [x], "
	for text, path := range map[string][]string{
		"zzzzzzzzz: 1\n":                         {},
		kase + "zzzzzzzzz: 1}]\n":                {"properties", "tests", "items"},
		kase + "file: {zzzzzzzzz: 1}}]\n":        {"properties", "tests", "items", "properties", "file"},
		kase + "network: {zzzzzzzzz: 1}}]\n":     {"properties", "tests", "items", "properties", "network"},
		kase + "unix_socket: {zzzzzzzzz: 1}}]\n": {"properties", "tests", "items", "properties", "unix_socket"},
		kase + "signal: {zzzzzzzzz: 1}}]\n":      {"properties", "tests", "items", "properties", "signal"},
		kase + "repository: {zzzzzzzzz: 1}}]\n":  {"properties", "tests", "items", "properties", "repository"},
	} {
		_, err := ParseSuite("x_test.yaml", []byte(text))
		want := `"zzzzzzzzz" (one of: ` + strings.Join(properties(t, path...), ", ") + ")"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s%v\nthe schema has %s", text, err, want)
		}
	}
}
