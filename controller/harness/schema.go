package harness

import (
	"encoding/json"
)

// Schema is the JSON Schema (draft 2020-12) of harness files, made from the
// same table as the loader. Null is allowed where it removes the value of a
// base.
func Schema() ([]byte, error) {
	return schemaDocument("agentsh harness", fields, false)
}

// ProviderSchema is the JSON Schema of provider files.
func ProviderSchema() ([]byte, error) {
	return schemaDocument("agentsh provider", providerFields, true)
}

func schemaDocument(title string, schema []field, whole bool) ([]byte, error) {
	doc := objectSchema(schema, whole)
	doc["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	doc["title"] = title
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}

// objectSchema describes a mapping. Required keys are required only if whole is
// set: another layer may set them.
func objectSchema(schema []field, whole bool) map[string]any {
	properties := map[string]any{}
	var required []string
	for i := range schema {
		f := &schema[i]
		properties[f.name] = f.schema()
		if f.required && whole {
			required = append(required, f.name)
		}
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	return out
}

func (f *field) schema() map[string]any {
	out := f.valueSchema()
	out["description"] = f.doc
	if f.name == "runner_env" {
		out["deprecated"] = true
	}
	if reason(f.name) != noStep {
		out["description"] = f.doc + " Not supported here: " + reason(f.name) + "."
	}
	return out
}

// orNull also allows null.
func orNull(s map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{s, map[string]any{"type": "null"}}}
}

func (f *field) valueSchema() map[string]any {
	switch f.kind {
	case kindInt:
		return orNull(f.numberSchema("integer"))
	case kindNumber:
		return orNull(f.numberSchema("number"))
	case kindBool:
		return orNull(map[string]any{"type": "boolean"})
	case kindList:
		return orNull(map[string]any{"type": "array", "items": f.textSchema()})
	case kindMap:
		s := map[string]any{"type": "object", "additionalProperties": orNull(f.textSchema())}
		if keys := f.keys.pattern; keys != nil {
			s["propertyNames"] = map[string]any{"pattern": keys().String()}
		} else if f.expands {
			s["propertyNames"] = map[string]any{"pattern": identRE().String()}
		}
		if f.keys.bare {
			names := map[string]any{"type": "array", "items": map[string]any{"type": "string", "pattern": f.keys.pattern().String()}}
			return orNull(map[string]any{"anyOf": []any{s, names}})
		}
		return orNull(s)
	case kindStruct:
		return orNull(objectSchema(f.fields, false))
	case kindStructs:
		return orNull(map[string]any{"type": "array", "items": objectSchema(f.fields, true)})
	case kindRefs:
		entry := []any{find(f.fields, "path").textSchema(), objectSchema(f.fields, true)}
		if o := find(f.fields, "overrides"); o != nil {
			entry = append(entry, map[string]any{"type": "object", "maxProperties": 1, "additionalProperties": o.valueSchema()})
		}
		return orNull(map[string]any{"type": "array", "items": map[string]any{"anyOf": entry}})
	case kindForge:
		block := orNull(objectSchema(layered, false))
		return orNull(map[string]any{"type": "object", "additionalProperties": block})
	case kindOverlay:
		return orNull(map[string]any{"type": "array", "items": objectSchema(overlayFields, true)})
	}
	return orNull(f.textSchema())
}

func (f *field) numberSchema(kind string) map[string]any {
	s := map[string]any{"type": kind, "minimum": f.limits.min}
	if f.limits.max > 0 {
		s["maximum"] = f.limits.max
	}
	return s
}

// textSchema describes one text. Numbers and truth values are allowed and keep
// their spelling.
func (f *field) textSchema() map[string]any {
	s := map[string]any{"type": []string{"string", "number", "boolean"}}
	switch {
	case f.format.values != nil:
		return map[string]any{"enum": f.format.values}
	case f.format.pattern != nil:
		s["pattern"] = f.format.pattern().String()
	case f.path != notPath || f.required:
		s["minLength"] = 1
	}
	return s
}

// Backends are the names that backend of a harness may have.
func Backends() []string { return find(fields, "backend").format.values }
