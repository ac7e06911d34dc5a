package harness

import (
	"path"
	"strings"
)

// shape is the type of a tree.
type shape uint8

const (
	shapeScalar shape = iota
	shapeList
	shapeDict
	shapeNull // explicit null: removes the value of weaker layers
)

// tree is a checked value with its position. Trees are shared between layers
// and do not change after they are built.
type tree struct {
	shape shape
	at    Origin
	text  string
	keys  []string // of dict, in the order of the file
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

// without is a copy of a dict without some keys.
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

// baseName is the key of skills and plugins. Two directories of the same name
// would have the same destination.
func baseName(t *tree) string {
	if p := t.get("path"); p != nil {
		return path.Base(path.Clean(p.text))
	}
	return ""
}

// cleanDest is the key of host files.
func cleanDest(t *tree) string { return cleanPath(t, "dest") }

// cleanTarget is the key of mounts.
func cleanTarget(t *tree) string { return cleanPath(t, "target") }

func cleanPath(t *tree, key string) string {
	if d := t.get(key); d != nil {
		return path.Clean(d.text)
	}
	return ""
}

// serverName is the key of MCP servers.
func serverName(t *tree) string { return t.dict["name"].text }
