package policy

import (
	"crypto/sha256"
	"slices"
)

// FileID is what tells one file from all others while it exists.
type FileID struct{ Dev, Ino uint64 }

// Identity is one file that a denying rule names, as it was found on the
// sandbox's PATH.
type Identity struct {
	Path   string // inside the sandbox, links resolved
	ID     FileID
	Size   int64
	Digest [sha256.Size]byte
}

// Identities are the files a policy denies by content. It is built once, from
// facts its user gathered, and safe for concurrent use.
type Identities struct {
	byID   map[FileID][]string
	bySize map[int64][]Identity
}

// NewIdentities indexes the files of list.
func NewIdentities(list []Identity) *Identities {
	t := &Identities{byID: map[FileID][]string{}, bySize: map[int64][]Identity{}}
	for _, f := range list {
		if !slices.Contains(t.byID[f.ID], f.Path) {
			t.byID[f.ID] = append(t.byID[f.ID], f.Path)
		}
		t.bySize[f.Size] = append(t.bySize[f.Size], f)
	}
	return t
}

// Same returns the paths of the denied programs a file is identical to: the
// same file, or one with the same content. digest is called only when the size
// is that of a denied program; when it fails the file counts as identical, so
// that what cannot be read cannot run.
func (t *Identities) Same(id FileID, size int64, digest func() ([sha256.Size]byte, error)) []string {
	if same := t.byID[id]; same != nil {
		return same
	}
	candidates := t.bySize[size]
	if len(candidates) == 0 {
		return nil
	}
	sum, err := digest()
	var same []string
	for i := range candidates {
		if (err != nil || candidates[i].Digest == sum) && !slices.Contains(same, candidates[i].Path) {
			same = append(same, candidates[i].Path)
		}
	}
	return same
}
