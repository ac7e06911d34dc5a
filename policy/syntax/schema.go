package syntax

import "encoding/json"

// Schema returns the JSON Schema (draft 2020-12) of a policy file, for editors.
// It is generated from the tables of the parser, so it has exactly the keys
// that load. The error is that of the JSON encoder.
func Schema() ([]byte, error) {
	root := objectSchema(fieldsOf(policyKeys))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "agentsh policy"
	return json.MarshalIndent(root, "", "  ")
}

// objectSchema returns the schema of an object with these fields. Rejected keys
// are omitted.
func objectSchema(fields []field) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, f := range fields {
		if f.refused != "" {
			continue
		}
		s := shapeSchema(f.shape)
		s["description"] = f.doc
		properties[f.name] = s
		if f.required {
			required = append(required, f.name)
		}
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	return out
}

// shapeSchema returns the schema of one value.
func shapeSchema(s shape) map[string]any {
	one := map[string]any{}
	switch s.kind {
	case shapeText:
		one["type"] = []string{"string", "number", "boolean"}
		if len(s.words) > 0 {
			one = map[string]any{"enum": s.words}
		}
	case shapeInt:
		one["type"] = "integer"
	case shapeBool:
		one["type"] = "boolean"
	case shapeDuration:
		one["type"] = "string"
		one["pattern"] = `^([0-9.]+(h|m|s|ms|us|ns))+$`
	case shapeList:
		one["type"] = "array"
		one["items"] = shapeSchema(*s.item)
	case shapeMap:
		one["type"] = "object"
		one["additionalProperties"] = shapeSchema(*s.item)
	case shapeObject:
		one = objectSchema(s.fields())
	}
	if len(s.others) == 0 {
		return one
	}
	forms := []map[string]any{one}
	for _, o := range s.others {
		forms = append(forms, shapeSchema(o))
	}
	return map[string]any{"anyOf": forms}
}
