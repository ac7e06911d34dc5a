package tools

import (
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOf is the JSON Schema of a type. A list is never null: clients of models reject a
// schema with two types.
func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic("schema of a tool: " + err.Error()) // a mistake in its type, which every test finds
	}
	notNull(s)
	return s
}

func notNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if slices.Contains(s.Types, "null") && len(s.Types) == 2 {
		kinds := slices.DeleteFunc(slices.Clone(s.Types), func(kind string) bool { return kind == "null" })
		s.Type, s.Types = kinds[0], nil
	}
	notNull(s.Items)
	for _, p := range s.Properties {
		notNull(p)
	}
}
