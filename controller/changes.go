package controller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	linediff "github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"agentsh/controller/extract"
	"agentsh/controller/git"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Bounds of [Changes].
const (
	maxDiffs    = 500       // files
	maxDiffFile = 512 << 10 // bytes of a file whose lines are compared
	maxDiffAll  = 2 << 20   // bytes of all lines
)

// Changes are the changed files of a run's repository, with the lines that
// differ from the commit the agent started from.
type Changes struct {
	Version int        `json:"version"` // 1
	Files   []FileDiff `json:"files"`
	Omitted int        `json:"omitted,omitempty"` // files beyond the bound
}

// FileDiff is one path that differs.
type FileDiff struct {
	Path    string         `json:"path"` // unprintable characters are escaped
	Status  string         `json:"status"`
	By      wire.ChangedBy `json:"by,omitempty"`       // as in [Changed]
	OldMode uint32         `json:"old_mode,omitempty"` // permission bits; 0: the file did not exist
	NewMode uint32         `json:"new_mode,omitempty"`
	OldSize int64          `json:"old_size"`
	NewSize int64          `json:"new_size"`
	Added   int            `json:"added"` // lines
	Removed int            `json:"removed"`
	Why     string         `json:"why,omitempty"`  // why Diff is empty
	Diff    string         `json:"diff,omitempty"` // unified diff without the header
}

// differ compares extracted files with the base commit. It uses git only to read
// objects, so attributes and configuration that an agent writes cannot hide a
// line.
type differ struct {
	base   map[string]git.TreeEntry
	old    map[string][]byte // contents of the base
	files  *os.Root          // nil: all changes are deletions
	budget int
}

// compare compares the extracted files with the base commit.
func compare(ctx context.Context, c checkout, extracted extract.Result) (Changes, error) {
	out := Changes{Version: 1, Files: []FileDiff{}}
	entries := slices.DeleteFunc(slices.Clone(extracted.Changed), func(e wire.ManifestEntry) bool { return e.Type == "dir" })
	for _, name := range extracted.Deleted {
		entries = append(entries, wire.ManifestEntry{Path: wire.Name(name)})
	}
	slices.SortFunc(entries, func(a, b wire.ManifestEntry) int { return strings.Compare(string(a.Path), string(b.Path)) })
	if len(entries) > maxDiffs {
		out.Omitted = len(entries) - maxDiffs
		entries = entries[:maxDiffs]
	}
	d, err := newDiffer(ctx, c, extracted.Dir, entries)
	if err != nil {
		return out, err
	}
	if d.files != nil {
		defer func() { _ = d.files.Close() }() // opened for reading
	}
	for _, e := range entries {
		f, err := d.file(e)
		if err != nil {
			return out, err
		}
		f.By = extracted.By[string(e.Path)]
		out.Files = append(out.Files, f)
	}
	return out, nil
}

// newDiffer reads the old contents of entries. dir contains the extracted
// files; empty: there are none.
func newDiffer(ctx context.Context, c checkout, dir string, entries []wire.ManifestEntry) (*differ, error) {
	d := &differ{base: map[string]git.TreeEntry{}, old: map[string][]byte{}, budget: maxDiffAll}
	wanted := map[string]bool{}
	for _, e := range entries {
		wanted[string(e.Path)] = true
	}
	var blobs []git.TreeEntry
	var ids []string
	for _, b := range c.tree {
		if !wanted[b.Path] {
			continue
		}
		d.base[b.Path] = b
		if b.Kind == git.KindFile && b.Size <= maxDiffFile {
			blobs, ids = append(blobs, b), append(ids, b.ID)
		}
	}
	if err := d.readOld(ctx, c.objects, blobs, ids); err != nil {
		return nil, err
	}
	if dir == "" {
		return d, nil
	}
	files, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d.files = files
	return d, nil
}

func (d *differ) readOld(ctx context.Context, objects git.Objects, blobs []git.TreeEntry, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	out, err := objects(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // a read reports an error before the end
	in := bufio.NewReader(out)
	for _, b := range blobs {
		content, err := git.Object(in, b)
		if err != nil {
			return err
		}
		if d.old[b.Path], err = io.ReadAll(content); err != nil {
			return err
		}
		if _, err := in.Discard(1); err != nil {
			return fmt.Errorf("read object of %q: %w", b.Path, err)
		}
	}
	return nil
}

// file compares one path. An entry without a type is a deleted file.
func (d *differ) file(e wire.ManifestEntry) (FileDiff, error) {
	f := FileDiff{Path: text.Visible(string(e.Path)), Status: "added", NewMode: e.Mode & 0o7777, NewSize: e.Size}
	old, had := d.base[string(e.Path)]
	if had {
		f.Status, f.OldMode, f.OldSize = "modified", uint32(old.Mode.Perm()), old.Size
	}
	if e.Type == "" {
		f.Status = "deleted"
	}
	before, why := d.before(old, had)
	after, whyAfter, err := d.after(e)
	if err != nil {
		return f, err
	}
	if whyAfter != "" {
		why = whyAfter
	}
	if f.Why = why; why != "" {
		return f, nil
	}
	lines := string(linediff.Diff("a", before, "b", after))
	lines = hunks(lines)
	if len(lines) > d.budget {
		f.Why = "the differences of all files are too long"
		return f, nil
	}
	d.budget -= len(lines)
	f.Diff = lines
	for l := range strings.Lines(lines) {
		switch l[0] {
		case '+':
			f.Added++
		case '-':
			f.Removed++
		}
	}
	return f, nil
}

// hunks is a diff without the header that names the two files.
func hunks(lines string) string {
	at := strings.Index(lines, "\n@@ ")
	if at < 0 {
		return ""
	}
	return lines[at+1:]
}

const (
	whyBinary = "binary"
	whyLarge  = "larger than 512 KiB"
)

// before returns the old content of a path, or the reason why it is not
// compared.
func (d *differ) before(b git.TreeEntry, had bool) ([]byte, string) {
	if !had {
		return nil, ""
	}
	switch b.Kind {
	case git.KindSymlink:
		return linkText(b.Target), ""
	case git.KindDir:
		return nil, "it was a directory or a submodule"
	}
	data, read := d.old[b.Path]
	if !read {
		return nil, whyLarge
	}
	return asText(data)
}

// after returns the new content of a path, or the reason why it is not
// compared.
func (d *differ) after(e wire.ManifestEntry) ([]byte, string, error) {
	switch {
	case e.Type == "":
		return nil, "", nil
	case e.Type == "symlink":
		return linkText(string(e.Target)), "", nil
	case e.Size > maxDiffFile:
		return nil, whyLarge, nil
	case d.files == nil:
		return nil, "", fmt.Errorf("%q was not extracted", e.Path)
	}
	f, err := d.files.OpenFile(filepath.FromSlash(string(e.Path)), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "it was not extracted", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDiffFile+1))
	if err != nil {
		return nil, "", err
	}
	lines, why := asText(data)
	return lines, why, nil
}

func linkText(target string) []byte { return []byte("symbolic link to " + target + "\n") }

func asText(data []byte) ([]byte, string) {
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, whyBinary
	}
	return data, ""
}
