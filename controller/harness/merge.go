package harness

import "strings"

// merger merges the layers of one harness, weakest first.
type merger struct {
	ps *Problems
}

// dict merges strong over weak, key by key, by the rule of each field.
func (m *merger) dict(schema []field, weak, strong *tree, where string) *tree {
	out := newDict(strong.at)
	for i := range schema {
		f := &schema[i]
		if v := m.value(f, weak.dict[f.name], strong.dict[f.name], join(where, f.name)); v != nil {
			out.put(f.name, v)
		}
	}
	return out
}

// value merges one field. A null removes the weaker value. It stays in the
// tree, to distinguish it from a field that no layer sets.
func (m *merger) value(f *field, weak, strong *tree, where string) *tree {
	switch {
	case strong == nil:
		return weak
	case strong.shape == shapeNull:
		if weak == nil || weak.shape == shapeNull {
			m.nothing(strong, where)
		}
		return strong
	case weak == nil || weak.shape == shapeNull:
		weak = nil
	}
	switch {
	case strong.shape == shapeDict && f.kind == kindMap:
		return m.maps(weak, strong, where)
	case strong.shape == shapeDict:
		if weak == nil {
			weak = newDict(strong.at)
		}
		return m.dict(f.fields, weak, strong, where)
	case strong.shape == shapeList && weak != nil && f.merge != mergeReplace:
		return appended(f, weak.items, strong)
	case strong.shape == shapeList:
		return m.alone(f, strong, where)
	}
	return strong
}

// maps is the union of two maps. For each key, the stronger map has precedence.
func (m *merger) maps(weak, strong *tree, where string) *tree {
	out := newDict(strong.at)
	if weak != nil {
		for _, k := range weak.keys {
			out.put(k, weak.dict[k])
		}
	}
	for _, k := range strong.keys {
		v := strong.dict[k]
		if old := out.dict[k]; v.shape == shapeNull && (old == nil || old.shape == shapeNull) {
			m.nothing(v, join(where, k))
		}
		out.put(k, v)
	}
	return out
}

func (m *merger) nothing(t *tree, where string) {
	m.ps.warnf(t.at, RuleNoEffect, "%s is empty and removes nothing: no weaker layer writes it", where)
}

// alone merges a list without a weaker list. Entries of the same key are
// merged.
func (m *merger) alone(f *field, strong *tree, where string) *tree {
	if f.merge == mergeReplace {
		return strong
	}
	out := appended(f, nil, strong)
	for i, t := range strong.items {
		for _, other := range strong.items[i+1:] {
			if f.identity != nil && f.identity(t) == f.identity(other) && !equal(t, other) {
				m.ps.warnf(other.at, RuleShadowed, "%s: this entry replaces the one in line %d, both are %s", where, t.at.Line, f.identity(t))
			}
		}
	}
	return out
}

// appended is weak followed by strong. Equal entries occur once. An entry
// replaces an earlier one of the same key at its position.
func appended(f *field, weak []*tree, strong *tree) *tree {
	out := &tree{shape: shapeList, at: strong.at, items: append([]*tree(nil), weak...)}
next:
	for _, t := range strong.items {
		for i, old := range out.items {
			switch {
			case f.identity != nil && f.identity(old) == f.identity(t):
				out.items[i] = withOverrides(t, old.get("overrides"))
				continue next
			case f.identity == nil && equal(old, t):
				continue next
			}
		}
		out.items = append(out.items, t)
	}
	return out
}

// withOverrides is an entry with those overrides of the entry that it replaces
// that it does not set.
func withOverrides(t, weak *tree) *tree {
	if weak == nil || t.shape != shapeDict {
		return t
	}
	out := t.without("overrides")
	out.put("overrides", under(t.get("overrides"), weak))
	return out
}

// equal compares values without their positions.
func equal(a, b *tree) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.shape != b.shape || a.text != b.text || len(a.items) != len(b.items) || len(a.dict) != len(b.dict) {
		return false
	}
	for i := range a.items {
		if !equal(a.items[i], b.items[i]) {
			return false
		}
	}
	for k, v := range a.dict {
		if !equal(v, b.dict[k]) {
			return false
		}
	}
	return true
}

// normalized is the merged tree without nulls and the values they remove.
func normalized(t *tree) *tree {
	if t == nil || t.shape != shapeDict {
		return t
	}
	out := newDict(t.at)
	for _, k := range t.keys {
		if v := t.dict[k]; v.shape != shapeNull {
			out.put(k, normalized(v))
		}
	}
	return out
}

// inherited are the fields that a base passes on.
func inherited(t *tree) *tree {
	out := newDict(t.at)
	for _, k := range t.keys {
		if f := find(fields, k); f != nil && !f.private {
			out.put(k, t.dict[k])
		}
	}
	return out
}

// merge merges the layers of a chain of files for one forge.
func (l *Loader) merge(files []*file, ps *Problems) (*tree, Problems) {
	m := &merger{ps: ps}
	var skipped Problems
	out := newDict(files[0].at())
	forge := l.options.Forge
	from := m.forgesFrom(files, forge)
	for i, f := range files {
		if f.top == nil {
			continue
		}
		if i > 0 {
			out = inherited(out)
		}
		out = m.dict(fields, out, f.top, "")
		if block := f.forges[forge]; block != nil && i >= from {
			out = m.dict(fields, out, block, "")
		}
		for _, o := range f.overlays {
			holds, why := o.when.matches(guardInput{forge: forge, event: l.options.Event})
			if why != "" {
				skipped.warnf(o.when.at, RuleUnsupport, "the overlay is not merged: %s", why)
				if strings.HasSuffix(why, notGiven) {
					skipped.hint("name a JSON file with --event, or ask for the key first: has(event.KEY) && ...")
				}
			} else if holds {
				out = m.dict(fields, out, o.block, "")
			}
		}
	}
	return normalized(out), skipped
}

// forgesFrom is the index of the first file whose block of a forge is merged. A
// null removes the blocks of all weaker files.
func (m *merger) forgesFrom(files []*file, forge string) int {
	from, wrote := 0, false
	for i, f := range files {
		if at, ok := f.removed[forge]; ok {
			if !wrote {
				m.nothing(&tree{at: at}, "forge."+forge)
			}
			from, wrote = i, false
		}
		wrote = wrote || f.forges[forge] != nil
	}
	return from
}

// configures reports whether one of the files says something about a forge, or
// has a guard that reads it.
func configures(files []*file, forge string) bool {
	for _, f := range files {
		if _, removed := f.removed[forge]; removed || f.forges[forge] != nil {
			return true
		}
		for _, o := range f.overlays {
			if o.when.readsForge || o.when.expr == nil {
				return true
			}
		}
	}
	return false
}

func (f *file) at() Origin { return Origin{File: f.name, Line: 1, Column: 1} }
