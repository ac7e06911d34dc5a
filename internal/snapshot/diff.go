package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"agentsh/internal/beneath"
	"agentsh/internal/wire"
)

// Diff returns what changed in the workspace since the checkpoint id, sorted by
// path. With until it compares the two checkpoints.
func (c *Checkpoints) Diff(id, until string) ([]wire.Change, error) {
	_, from, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	var to *listing
	if until != "" {
		_, to, err = c.read(until, true)
	} else {
		to, err = c.look(from)
	}
	if err != nil {
		return nil, err
	}
	if err := c.align(from, to); err != nil {
		return nil, err
	}
	return compare(from, to), nil
}

// align gives entries of format 0 the digests of the current format, where the
// other listing has a sparse file of the same size.
func (c *Checkpoints) align(from, to *listing) error {
	old, other := from, to
	if other.format != currentFormat {
		old, other = other, old
	}
	if old.format == other.format {
		return nil
	}
	all := other.byPath()
	for i := range old.entries {
		e := &old.entries[i]
		now := all[string(e.Path)]
		if now == nil || now.Size != e.Size || !strings.HasPrefix(now.SHA256, sparseMark) || e.SHA256 == "" {
			continue
		}
		f, err := os.Open(c.object(e.SHA256))
		if err != nil {
			return err
		}
		e.SHA256, err = digest(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// look lists the workspace. It reads the files that may differ from known, and
// makes digests of known's format.
func (c *Checkpoints) look(known *listing) (*listing, error) {
	old := known.byPath()
	l, err := scan(c.root, func(dir int, name string, e *Entry, dated bool) error {
		was := old[string(e.Path)]
		if was != nil && dated && known.format == currentFormat && len(was.Link) == 0 && e.untouched(was, known.at) {
			e.SHA256, e.Xattrs = was.SHA256, was.Xattrs
			return nil
		}
		r := reading{digest: digest}
		if known.format != currentFormat && was != nil && was.Size == e.Size {
			r.digest = plainDigest
		}
		return unlessBusy(readStable(dir, name, e, r)) // then it differs
	})
	if err == nil {
		l.format = known.format
	}
	return l, err
}

// same reports whether two entries agree in all that a rollback restores. It
// ignores the times of directories, which a rollback always sets.
func (e *Entry) same(other *Entry) bool {
	return e.sameAttributes(other) && e.sameContent(other) && (e.Type == beneath.TypeDir || e.Mtime == other.Mtime)
}

func (e *Entry) sameAttributes(other *Entry) bool {
	return e.Mode == other.Mode && e.UID == other.UID && e.GID == other.GID
}

func (e *Entry) sameContent(other *Entry) bool {
	return e.sameType(other) && e.SHA256 == other.SHA256 && string(e.Target) == string(other.Target) && string(e.Link) == string(other.Link)
}

// compare lists the changes between two listings. A change of times alone does
// not count.
func compare(from, to *listing) []wire.Change {
	old := from.byPath()
	xattrs := from.xattrs && to.xattrs
	out := []wire.Change{}
	add := func(e *Entry, kind wire.ChangeKind) {
		out = append(out, wire.Change{Path: wire.Name(e.Path), Kind: kind})
	}
	for i := range to.entries {
		e := &to.entries[i]
		was := old[string(e.Path)]
		delete(old, string(e.Path))
		switch {
		case was == nil:
			add(e, wire.Created)
		case !was.sameContent(e) || !was.sameAttributes(e) || xattrs && !beneath.SameXattrs(was.Xattrs, e.Xattrs):
			if len(e.Path) > 0 {
				add(e, wire.Modified)
			}
		}
	}
	for _, e := range old {
		add(e, wire.Deleted)
	}
	slices.SortFunc(out, func(a, b wire.Change) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return out
}

// View gives access to the files of a checkpoint.
type View struct {
	c       *Checkpoints
	entries map[string]*Entry
}

// View reads a checkpoint.
func (c *Checkpoints) View(id string) (*View, error) {
	_, l, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	return &View{c, l.byPath()}, nil
}

// Open opens the stored content of a regular file. fs.ErrNotExist is in the
// chain of the error if the checkpoint has no such file.
func (v *View) Open(path string) (*os.File, error) {
	if e := v.entries[path]; e != nil && e.Type == beneath.TypeFile {
		return os.Open(v.c.object(e.SHA256))
	}
	return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
}
