package harness

import (
	"path"
	"strings"
)

// shape is what a tree is.
type shape uint8

const (
	shapeScalar shape = iota
	shapeList
	shapeDict
	shapeNull // written as null: removes what weaker layers wrote
)

// tree is a checked value with the place that wrote it. Trees are shared
// between layers and never changed once built.
type tree struct {
	shape shape
	at    Origin
	text  string
	keys  []string // of dict, in the order written
	dict  map[string]*tree
	items []*tree
}

func newDict(at Origin) *tree {
	return &tree{shape: shapeDict, at: at, dict: map[string]*tree{}}
}

// get is the value at a dotted path of keys, or nil.
func (t *tree) get(path string) *tree {
	for t != nil && path != "" {
		key, rest, _ := strings.Cut(path, ".")
		t, path = t.dict[key], rest
	}
	return t
}

// put sets a key of a dict.
func (t *tree) put(key string, v *tree) {
	if _, ok := t.dict[key]; !ok {
		t.keys = append(t.keys, key)
	}
	t.dict[key] = v
}

// without is a copy of a dict that lacks some keys.
func (t *tree) without(names ...string) *tree {
	out := newDict(t.at)
next:
	for _, k := range t.keys {
		for _, n := range names {
			if k == n {
				continue next
			}
		}
		out.put(k, t.dict[k])
	}
	return out
}

// baseName keys skills and plugins: two directories of one name would be
// delivered to one place.
func baseName(t *tree) string {
	if p := t.get("path"); p != nil {
		return path.Base(path.Clean(p.text))
	}
	return ""
}

// cleanDest keys host files.
func cleanDest(t *tree) string {
	if d := t.get("dest"); d != nil {
		return path.Clean(d.text)
	}
	return ""
}
