package fuse

import (
	"cmp"
	"errors"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
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
	away     *redirects // names of the mount whose changes are those of another place
}

// entry is a present file that differs, or may.
type entry struct {
	fresh    bool   // the baseline had it nowhere
	from     string // else where the baseline had it
	modified bool
	was      *stamp // it could be written unseen since it looked like this
}

// stamp tells whether a file was written.
type stamp struct {
	ino   inode
	size  int64
	mtime unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp { return stamp{inodeOf(st), st.Size, st.Mtim} }

func newChanges() *changes {
	return &changes{entries: map[string]entry{}, gone: map[string]struct{}{}, away: &redirects{}}
}

// reset makes the present state the baseline.
func (c *changes) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.gone, c.overflow = map[string]entry{}, map[string]struct{}{}, false
}

// implied is the entry of the file now at rel when none speaks of rel itself:
// the baseline had it there, unless a directory above it was moved or made.
func (c *changes) implied(rel string) entry {
	for i := len(rel) - 1; i > 0; i-- {
		if rel[i] != '/' {
			continue
		}
		if e, ok := c.entries[rel[:i]]; ok {
			if e.fresh {
				return entry{fresh: true}
			}
			return entry{from: e.from + rel[i:]}
		}
	}
	return entry{from: rel}
}

// at is the entry of the file now at rel.
func (c *changes) at(rel string) entry {
	if e, ok := c.entries[rel]; ok {
		return e
	}
	return c.implied(rel)
}

// put records the file now at rel, unless it is just what the baseline had.
func (c *changes) put(rel string, e entry) {
	implied := c.implied(rel)
	if _, deleted := c.gone[implied.from]; deleted && e.fresh && !implied.fresh {
		e = entry{from: implied.from, modified: true} // a new file in the place of an old one
	}
	if !e.fresh {
		delete(c.gone, e.from)
	}
	if e == implied && !e.fresh {
		delete(c.entries, rel)
		return
	}
	if len(c.entries)+len(c.gone) >= maxChanges {
		c.overflow = true
		return
	}
	c.entries[rel] = e
}

// created records a new file, where a redirected name leads.
func (c *changes) created(rel string) {
	if to, ok := c.away.find(rel); ok {
		to.m.changes.createdHere(to.rel)
		return
	}
	c.createdHere(rel)
}

func (c *changes) createdHere(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(rel, entry{fresh: true})
}

func (c *changes) modified(rel string) {
	if to, ok := c.away.find(rel); ok {
		to.m.changes.modifiedHere(to.rel)
		return
	}
	c.modifiedHere(rel)
}

func (c *changes) modifiedHere(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.at(rel); !e.fresh && !e.modified {
		e.modified, e.was = true, nil
		c.put(rel, e)
	}
}

// watched records that a file may be written without a sign from now on.
func (c *changes) watched(rel string, was stamp) {
	if to, ok := c.away.find(rel); ok {
		to.m.changes.watchedHere(to.rel, was)
		return
	}
	c.watchedHere(rel, was)
}

func (c *changes) watchedHere(rel string, was stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.at(rel); !e.fresh && !e.modified && e.was == nil {
		e.was = &was
		c.put(rel, e)
	}
}

func (c *changes) deleted(rel string) {
	if to, ok := c.away.find(rel); ok {
		to.m.changes.deletedHere(to.rel)
		return
	}
	c.deletedHere(rel)
}

func (c *changes) deletedHere(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(rel)
}

func (c *changes) remove(rel string) {
	e := c.at(rel)
	delete(c.entries, rel)
	if e.fresh {
		return
	}
	if len(c.entries)+len(c.gone) >= maxChanges {
		c.overflow = true
		return
	}
	c.gone[e.from] = struct{}{}
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
	if c.away.has(from) || c.away.has(to) {
		c.deleted(from)
		c.created(to)
		return
	}
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
// along. A mount of one file calls it ".". stat looks at a present path.
func (c *changes) list(stat func(rel string, st *unix.Stat_t) error) ([]wire.Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overflow {
		return nil, errManyChanges
	}
	out := make([]wire.Change, 0, len(c.entries)+len(c.gone))
	var st unix.Stat_t
	for rel, e := range c.entries {
		switch {
		case e.fresh:
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Created})
			continue
		case e.from != c.implied(rel).from:
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Renamed, From: wire.Name(e.from)})
		}
		if e.modified || e.was != nil && (stat(rel, &st) != nil || stampOf(&st) != *e.was) {
			out = append(out, wire.Change{Path: wire.Name(cmp.Or(rel, ".")), Kind: wire.Modified})
		}
	}
	for rel := range c.gone {
		if stat(rel, &st) != nil {
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Deleted})
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
