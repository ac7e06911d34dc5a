package harness

import (
	"reflect"
	"strconv"
	"strings"
)

// decode fills those fields of a struct that have a key as tag, from the merged
// tree. A tag may be a dotted path.
func decode(t *tree, into any) {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("harness")
		if key == "" {
			continue
		}
		if sub := t.get(key); sub != nil {
			decodeValue(sub, v.Field(i))
		}
	}
}

// decodeValue fills one value. It supports the types of [Harness]. Another type
// is a defect, which the tests of the package find.
func decodeValue(t *tree, v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *Text:
		*p = Text{t.text, t.at}
	case *Value[bool]:
		*p = Value[bool]{t.text == "true", t.at}
	case *Value[int]:
		n, err := strconv.Atoi(t.text)
		if err != nil {
			panic("harness: a checked number is none: " + t.text)
		}
		*p = Value[int]{n, t.at}
	case *Value[float64]:
		n, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			panic("harness: a checked number is none: " + t.text)
		}
		*p = Value[float64]{n, t.at}
	case *Map:
		*p = make(Map, len(t.keys))
		for _, k := range t.keys {
			(*p)[k] = Text{t.dict[k].text, t.dict[k].at}
		}
	default:
		if v.Kind() == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), len(t.items), len(t.items)))
			for i, item := range t.items {
				decodeValue(item, v.Index(i))
			}
			return
		}
		decode(t, p)
	}
}

// leaves calls visit for every leaf of a merged tree with its dotted path. The
// entries of a list have the path of the list.
func leaves(schema []field, t *tree, where string, visit func(path string, f *field, t *tree)) {
	for i := range schema {
		f := &schema[i]
		v := t.dict[f.name]
		if v == nil || v.shape == shapeNull {
			continue
		}
		path := join(where, f.name)
		switch f.kind {
		case kindStruct:
			leaves(f.fields, v, path, visit)
		case kindStructs, kindRefs:
			for _, item := range v.items {
				leaves(f.fields, item, path, visit)
			}
		default:
			visit(path, f, v)
		}
	}
}

// isPathLike reports whether a provider entry names a file rather than a name.
func isPathLike(s string) bool {
	return strings.ContainsAny(s, "/.")
}

// isURL reports whether a path is the URL of a resource.
func isURL(s string) bool { return strings.Contains(s, "://") }
