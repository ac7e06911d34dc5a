package glob

import (
	"slices"
	"strings"
)

// Set finds which of many patterns of one kind match a text. It tries only the
// patterns that share a literal part with the text. Each pattern has a number;
// several may have the same. A Set is safe for concurrent use after [NewSet].
type Set struct {
	sep   byte
	exact map[string][]int32
	nodes map[string]*node   // by the literal directory they begin with
	bases map[string][]entry // by a literal last part
	parts map[string][]entry // by a literal part in the middle
	exts  map[string][]entry // by what follows the last dot
	tails map[string][]entry // host names, by a literal end that begins with a dot
	rest  []entry
}

// node has the patterns that are indexed under one directory.
type node struct {
	trees   []int32
	entries []entry
}

// entry is one alternative of a pattern, and the pattern's number.
type entry struct {
	alt *alt
	id  int32
}

// Numbered is a pattern and its number.
type Numbered struct {
	Glob *Glob
	ID   int32
}

// NewSet indexes patterns of one kind.
func NewSet(kind Kind, patterns []Numbered) *Set {
	s := &Set{
		sep: kind.separator(), exact: map[string][]int32{}, nodes: map[string]*node{}, bases: map[string][]entry{},
		parts: map[string][]entry{}, exts: map[string][]entry{}, tails: map[string][]entry{},
	}
	count := map[slot]int{}
	var open []entry
	for _, p := range patterns {
		for i := range p.Glob.alts {
			a := &p.Glob.alts[i]
			switch {
			case a.literal():
				s.exact[a.prefix] = append(s.exact[a.prefix], p.ID)
			case a.tree:
				s.node(a.prefix).trees = append(s.node(a.prefix).trees, p.ID)
			default:
				open = append(open, entry{a, p.ID})
				for _, at := range s.slots(a) {
					count[at]++
				}
			}
		}
	}
	for _, e := range open {
		s.insert(e, count)
	}
	s.sort()
	return s
}

// slot is a position in the index.
type slot struct {
	where uint8
	key   string
}

const (
	inBases uint8 = iota
	inTails
	inExts
	inParts
	inNodes
)

// slots lists the positions at which an alternative can be indexed.
func (s *Set) slots(a *alt) []slot {
	var out []slot
	if s.sep == '.' {
		if at := strings.IndexByte(a.suffix, '.'); at >= 0 {
			out = append(out, slot{inTails, a.suffix[at:]})
		}
		return out
	}
	if s.sep != '/' {
		return nil
	}
	if at := strings.LastIndexByte(a.suffix, '/'); at >= 0 {
		out = append(out, slot{inBases, a.suffix[at+1:]})
	} else if at := strings.LastIndexByte(a.suffix, '.'); at >= 0 {
		out = append(out, slot{inExts, a.suffix[at:]})
	}
	for i := range a.middle {
		if part := wholePart(a.middle[i].text); part != "" {
			out = append(out, slot{inParts, part})
		}
	}
	if at := strings.LastIndexByte(a.prefix, '/'); at >= 0 {
		out = append(out, slot{inNodes, a.prefix[:at]})
	}
	return out
}

// wholePart returns a literal part that has a slash on both sides.
func wholePart(text string) string {
	_, after, found := strings.Cut(text, "/")
	if !found {
		return ""
	}
	part, _, found := strings.Cut(after, "/")
	if !found {
		return ""
	}
	return part
}

// insert adds an alternative at the position with the fewest others.
func (s *Set) insert(e entry, count map[slot]int) {
	slots := s.slots(e.alt)
	if len(slots) == 0 {
		s.rest = append(s.rest, e)
		return
	}
	best := slots[0]
	for _, at := range slots[1:] {
		if count[at] < count[best] {
			best = at
		}
	}
	switch best.where {
	case inBases:
		s.bases[best.key] = append(s.bases[best.key], e)
	case inTails:
		s.tails[best.key] = append(s.tails[best.key], e)
	case inExts:
		s.exts[best.key] = append(s.exts[best.key], e)
	case inParts:
		s.parts[best.key] = append(s.parts[best.key], e)
	default:
		n := s.node(best.key)
		n.entries = append(n.entries, e)
	}
}

func (s *Set) node(key string) *node {
	n := s.nodes[key]
	if n == nil {
		n = &node{}
		s.nodes[key] = n
	}
	return n
}

// sort orders every list by number. A search then stops at the first number
// that is not lower than the best.
func (s *Set) sort() {
	for _, ids := range s.exact {
		slices.Sort(ids)
	}
	for _, n := range s.nodes {
		slices.Sort(n.trees)
		sortEntries(n.entries)
	}
	for _, m := range []map[string][]entry{s.bases, s.parts, s.exts, s.tails} {
		for _, list := range m {
			sortEntries(list)
		}
	}
	sortEntries(s.rest)
}

func sortEntries(list []entry) {
	slices.SortFunc(list, func(a, b entry) int { return int(a.id - b.id) })
}

// First returns the lowest number below limit whose pattern matches text and
// which accept allows. Without one it returns limit. It allocates no memory.
func (s *Set) First(text string, limit int32, accept func(id int32) bool) int32 {
	limit = firstID(s.exact[text], limit, accept)
	limit = firstEntry(s.rest, text, limit, accept)
	switch s.sep {
	case '/':
		limit = s.firstPath(text, limit, accept)
	case '.':
		for i := 0; i < len(text) && len(s.tails) > 0; i++ {
			if text[i] == '.' {
				limit = firstEntry(s.tails[text[i:]], text, limit, accept)
			}
		}
	}
	return limit
}

// firstPath searches by the directories, the parts, the base name and the
// extension of a path.
func (s *Set) firstPath(text string, limit int32, accept func(id int32) bool) int32 {
	start := 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && text[i] != '/' {
			continue
		}
		if n := s.nodes[text[:i]]; n != nil {
			limit = firstID(n.trees, limit, accept)
			limit = firstEntry(n.entries, text, limit, accept)
		}
		if i > start && i < len(text) && len(s.parts) > 0 {
			limit = firstEntry(s.parts[text[start:i]], text, limit, accept)
		}
		if i < len(text) {
			start = i + 1
		}
	}
	base := text[start:]
	limit = firstEntry(s.bases[base], text, limit, accept)
	if at := strings.LastIndexByte(base, '.'); at >= 0 && len(s.exts) > 0 {
		limit = firstEntry(s.exts[base[at:]], text, limit, accept)
	}
	return limit
}

func firstID(ids []int32, limit int32, accept func(id int32) bool) int32 {
	for _, id := range ids {
		if id >= limit {
			break
		}
		if accept(id) {
			return id
		}
	}
	return limit
}

func firstEntry(list []entry, text string, limit int32, accept func(id int32) bool) int32 {
	for i := range list {
		e := &list[i]
		if e.id >= limit {
			break
		}
		if e.alt.match(text) && accept(e.id) {
			return e.id
		}
	}
	return limit
}
