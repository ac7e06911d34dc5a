package fuse

import (
	"errors"
	"sort"
	"strings"
	"sync"

	"agentsh/internal/wire"
)

// Kinds of [wire.Change].
const (
	changeCreated  = "created"
	changeModified = "modified"
	changeDeleted  = "deleted"
	changeRenamed  = "renamed"
)

// maxChanges bounds the entries of one change record. A record that overflows
// answers with an error, never with a part.
const maxChanges = 1 << 20

var errManyChanges = errors.New("more than 1048576 files were changed: the change record is incomplete")

// changes is the net difference of a mount to its baseline: what was created
// and removed again leaves nothing. Paths are relative to the mount.
type changes struct {
	mu       sync.Mutex
	entries  map[string]entry    // present paths whose file is not what the baseline had there
	gone     map[string]struct{} // baseline paths whose file was deleted
	overflow bool
}

// entry is a present file that differs.
type entry struct {
	from     string // where the baseline had it; empty: nowhere
	modified bool
}

func newChanges() *changes {
	return &changes{entries: map[string]entry{}, gone: map[string]struct{}{}}
}

// reset makes the present state the baseline.
func (c *changes) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.gone, c.overflow = map[string]entry{}, map[string]struct{}{}, false
}

// implied is where the baseline had the file now at rel when no entry speaks
// of rel itself: the same place, unless a directory above it was moved or made.
func (c *changes) implied(rel string) string {
	for i := len(rel) - 1; i > 0; i-- {
		if rel[i] != '/' {
			continue
		}
		if e, ok := c.entries[rel[:i]]; ok {
			if e.from == "" {
				return ""
			}
			return e.from + rel[i:]
		}
	}
	return rel
}

// at is the entry of the file now at rel.
func (c *changes) at(rel string) entry {
	if e, ok := c.entries[rel]; ok {
		return e
	}
	return entry{from: c.implied(rel)}
}

// put records the file now at rel, unless it is just what the baseline had.
func (c *changes) put(rel string, e entry) {
	implied := c.implied(rel)
	if _, deleted := c.gone[implied]; deleted && e.from == "" {
		e = entry{from: implied, modified: true} // a new file in the place of an old one
	}
	if e.from != "" {
		delete(c.gone, e.from)
	}
	if e == (entry{from: implied}) && implied != "" {
		delete(c.entries, rel)
		return
	}
	if len(c.entries)+len(c.gone) >= maxChanges {
		c.overflow = true
		return
	}
	c.entries[rel] = e
}

func (c *changes) created(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(rel, entry{})
}

func (c *changes) modified(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at(rel)
	if e.from != "" && !e.modified {
		e.modified = true
		c.put(rel, e)
	}
}

func (c *changes) deleted(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(rel)
}

func (c *changes) remove(rel string) {
	from := c.at(rel).from
	delete(c.entries, rel)
	if from == "" {
		return
	}
	if len(c.entries)+len(c.gone) >= maxChanges {
		c.overflow = true
		return
	}
	c.gone[from] = struct{}{}
}

// take removes the entry of rel and, for a directory, those below it. They are
// returned by the rest of their path.
func (c *changes) take(rel string, dir bool) map[string]entry {
	out := map[string]entry{"": c.at(rel)}
	delete(c.entries, rel)
	if !dir {
		return out
	}
	for p, e := range c.entries {
		if strings.HasPrefix(p, rel) && p[len(rel)] == '/' {
			out[p[len(rel):]] = e
			delete(c.entries, p)
		}
	}
	return out
}

// place puts back what take returned, under another name, parents first.
func (c *changes) place(rel string, moved map[string]entry) {
	below := make([]string, 0, len(moved))
	for p := range moved {
		below = append(below, p)
	}
	sort.Strings(below)
	for _, p := range below {
		c.put(rel+p, moved[p])
	}
}

// renamed records the move of a file or directory; replaced says that the new
// name was taken.
func (c *changes) renamed(from, to string, dir, replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replaced {
		c.remove(to)
	}
	c.place(to, c.take(from, dir))
}

// exchanged records the swap of two names.
func (c *changes) exchanged(a, b string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, y := c.take(a, true), c.take(b, true)
	c.place(b, x)
	c.place(a, y)
}

// list returns the net changes sorted by path. A renamed file that was also
// written has two entries. A renamed directory has one; what is in it moved
// along. exists tells whether a path is there at present.
func (c *changes) list(exists func(rel string) bool) ([]wire.Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overflow {
		return nil, errManyChanges
	}
	out := make([]wire.Change, 0, len(c.entries)+len(c.gone))
	for rel, e := range c.entries {
		switch implied := c.implied(rel); {
		case e.from == "":
			out = append(out, wire.Change{Path: rel, Kind: changeCreated})
			continue
		case e.from != implied:
			out = append(out, wire.Change{Path: rel, Kind: changeRenamed, From: e.from})
		}
		if e.modified {
			out = append(out, wire.Change{Path: rel, Kind: changeModified})
		}
	}
	for rel := range c.gone {
		if !exists(rel) {
			out = append(out, wire.Change{Path: rel, Kind: changeDeleted})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Path != out[j].Path {
			return out[i].Path < out[j].Path
		}
		return out[i].Kind > out[j].Kind // renamed before modified
	})
	return out, nil
}
