// Package changes implements the change record of one mount: the net difference
// between its baseline and the present state. The file server reports every operation
// with the path at that time. A file that was created and removed again leaves no
// entry.
package changes

import (
	"cmp"
	"errors"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// maxChanges bounds the entries of one change record. If a record overflows,
// [Record.List] returns an error instead of a partial list.
const maxChanges = 1 << 20

var errManyChanges = errors.New("more than 1048576 files were changed: the change record is incomplete")

// Record is the change record of one mount. Paths are relative to the mount. It is
// safe for concurrent use.
type Record struct {
	mu       sync.Mutex
	entries  map[string]entry    // present paths whose file differs from the file that the baseline had there
	gone     map[string]struct{} // baseline paths whose file was deleted
	host     map[string]bool     // paths that processes outside the session changed; true: a file was there before
	overflow bool
}

// entry describes a present file that differs from the baseline, or may differ.
type entry struct {
	fresh    bool   // the file is not in the baseline
	from     string // otherwise its path in the baseline
	modified bool
	was      *Stamp // not nil: the file may have been written undetected since it had this stamp
}

// Stamp contains the attributes of a file that a write changes.
type Stamp struct {
	dev   uint64
	ino   uint64
	size  int64
	mtime unix.Timespec
}

// StampOf returns the stamp of a file with these attributes.
func StampOf(st *unix.Stat_t) Stamp { return Stamp{st.Dev, st.Ino, st.Size, st.Mtim} }

// New returns an empty record: the present state is the baseline.
func New() *Record {
	return &Record{entries: map[string]entry{}, gone: map[string]struct{}{}, host: map[string]bool{}}
}

// Reset makes the present state the baseline.
func (c *Record) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.gone, c.host, c.overflow = map[string]entry{}, map[string]struct{}{}, map[string]bool{}, false
}

// implied returns the entry of the file now at rel if the record has none for rel
// itself. The baseline then had the file at the same path, unless a directory above it
// was moved or created.
func (c *Record) implied(rel string) entry {
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

// at returns the entry of the file now at rel.
func (c *Record) at(rel string) entry {
	if e, ok := c.entries[rel]; ok {
		return e
	}
	return c.implied(rel)
}

// put records the file now at rel, unless it equals the file of the baseline.
func (c *Record) put(rel string, e entry) {
	implied := c.implied(rel)
	if _, deleted := c.gone[implied.from]; deleted && e.fresh && !implied.fresh {
		e = entry{from: implied.from, modified: true} // a new file replaces an old one
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

// Created records a new file at rel.
func (c *Record) Created(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(rel, entry{fresh: true})
}

// Modified records that the content or the attributes of the file at rel changed.
func (c *Record) Modified(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.at(rel); !e.fresh && !e.modified {
		e.modified, e.was = true, nil
		c.put(rel, e)
	}
}

// Watched records that the file at rel may be written undetected from now on.
// [Record.List] compares the file with was.
func (c *Record) Watched(rel string, was Stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.at(rel); !e.fresh && !e.modified && e.was == nil {
		e.was = &was
		c.put(rel, e)
	}
}

// Deleted records that rel was removed.
func (c *Record) Deleted(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(rel)
}

func (c *Record) remove(rel string) {
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

// detach removes the entry of rel. For a directory it also removes the entries below
// it. It returns them by their path relative to rel.
func (c *Record) detach(rel string, dir bool) map[string]entry {
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

// attach adds the entries that detach returned under another name, parents first.
func (c *Record) attach(rel string, moved map[string]entry) {
	below := make([]string, 0, len(moved))
	for p := range moved {
		below = append(below, p)
	}
	sort.Strings(below)
	for _, p := range below {
		c.put(rel+p, moved[p])
	}
}

// Renamed records the move of a file or directory. replaced says that the new name
// existed before.
func (c *Record) Renamed(from, to string, dir, replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replaced {
		c.remove(to)
	}
	c.attach(to, c.detach(from, dir))
	c.moveHost(from, to, dir)
}

// Exchanged records the exchange of two names.
func (c *Record) Exchanged(a, b string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, y := c.detach(a, true), c.detach(b, true)
	c.attach(b, x)
	c.attach(a, y)
}

// List returns the net changes sorted by path. A renamed file that was also written
// has two entries. A renamed directory has one entry, which includes everything below
// it. For a mount of one file the path is ".". List calls stat for present paths.
func (c *Record) List(stat func(rel string, st *unix.Stat_t) error) ([]wire.Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overflow {
		return nil, errManyChanges
	}
	out := make([]wire.Change, 0, len(c.entries)+len(c.gone))
	var st unix.Stat_t
	for rel, e := range c.entries {
		_, host := c.host[rel]
		switch {
		case e.fresh && host && stat(rel, &st) != nil:
			continue // the host removed it
		case e.fresh:
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Created})
			continue
		case e.from != c.implied(rel).from:
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Renamed, From: wire.Name(e.from)})
		}
		if e.modified || e.was != nil && (stat(rel, &st) != nil || StampOf(&st) != *e.was) {
			out = append(out, wire.Change{Path: wire.Name(cmp.Or(rel, ".")), Kind: wire.Modified})
		}
	}
	for rel := range c.gone {
		if stat(rel, &st) != nil {
			out = append(out, wire.Change{Path: wire.Name(rel), Kind: wire.Deleted})
		}
	}
	out = c.addHost(out, stat)
	sort.Slice(out, func(i, j int) bool {
		if out[i].Path != out[j].Path {
			return out[i].Path < out[j].Path
		}
		return out[i].Kind > out[j].Kind // renamed before modified
	})
	return out, nil
}

// Unchanged reports whether the file now at rel is a file of the baseline with its
// original content. It also returns the path that the file had in the baseline.
func (c *Record) Unchanged(rel string) (from string, unchanged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at(rel)
	return e.from, !e.fresh && !e.modified
}
