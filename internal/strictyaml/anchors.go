package strictyaml

import "gopkg.in/yaml.v3"

// maxAliased bounds the nodes of a file whose aliases were replaced. A small
// file can otherwise stand for billions of nodes.
const maxAliased = 100_000

// aliases replaces aliases by copies of their anchors, and merge keys by the
// keys of the mappings they name.
type aliases struct {
	r     *Reader
	nodes int
	open  map[*Node]bool // anchors whose value is being copied
}

// withoutAliases returns a document without anchors, aliases and merge keys. The
// result is nil after a problem. Values have the position of their anchor.
func (r *Reader) withoutAliases(document *Node) *Node {
	if !anchored(document) {
		return document
	}
	a := &aliases{r: r, open: map[*Node]bool{}}
	return a.copy(document, 0)
}

// anchored reports whether a value has an anchor, an alias or a merge key.
func anchored(n *Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" {
		return true
	}
	for _, c := range n.Content {
		if anchored(c) {
			return true
		}
	}
	return false
}

func (a *aliases) copy(n *Node, depth int) *Node {
	d := a.r.dialect
	if a.nodes++; a.nodes > maxAliased {
		a.r.failText(n, d.Texts.Bomb.or(DefaultTexts.Bomb), maxAliased)
		return nil
	}
	if d.MaxDepth > 0 && depth > d.MaxDepth+1 {
		a.r.failText(n, d.Texts.TooDeep.or(DefaultTexts.TooDeep), d.MaxDepth)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		if a.open[n.Alias] {
			a.r.failText(n, d.Texts.Circle.or(DefaultTexts.Circle), n.Value)
			return nil
		}
		return a.copy(n.Alias, depth)
	}
	if n.Anchor != "" {
		a.open[n] = true
		defer delete(a.open, n)
	}
	out := *n
	out.Anchor, out.Content = "", nil
	if n.Kind == Mapping {
		return a.mapping(n, &out, depth)
	}
	for _, c := range n.Content {
		child := a.copy(c, depth+1)
		if child == nil {
			return nil
		}
		out.Content = append(out.Content, child)
	}
	return &out
}

// mapping copies the keys of a mapping. A key that is written beats one from a
// merge key, and an earlier mapping of a merge key beats a later one.
func (a *aliases) mapping(n, out *Node, depth int) *Node {
	var merged []*Node
	for key, value := range Pairs(n) {
		value := a.copy(value, depth+1)
		if value == nil {
			return nil
		}
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		key := a.copy(key, depth+1)
		if key == nil {
			return nil
		}
		out.Content = append(out.Content, key, value)
	}
	if len(merged) == 0 {
		return out
	}
	has := make(map[string]bool, len(out.Content)/2)
	for key := range Pairs(out) {
		has[key.Value] = true
	}
	for _, from := range merged {
		if !a.merge(out, from, has) {
			return nil
		}
	}
	return out
}

// merge adds the missing keys of a mapping, or of each mapping of a list.
func (a *aliases) merge(out, from *Node, has map[string]bool) bool {
	switch from.Kind {
	case Mapping:
		for key, value := range Pairs(from) {
			if !has[key.Value] {
				has[key.Value] = true
				out.Content = append(out.Content, key, value)
			}
		}
		return true
	case List:
		for _, m := range from.Content {
			if m.Kind != Mapping {
				a.r.failText(m, a.r.dialect.Texts.MergeValue.or(DefaultTexts.MergeValue))
				return false
			}
			a.merge(out, m, has)
		}
		return true
	}
	a.r.failText(from, a.r.dialect.Texts.MergeValue.or(DefaultTexts.MergeValue))
	return false
}
