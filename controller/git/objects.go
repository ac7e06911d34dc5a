package git

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// Kinds of a [TreeEntry].
const (
	KindFile    = "file"
	KindDir     = "dir"
	KindSymlink = "symlink"
)

// TreeEntry is a file, directory or symbolic link of a commit.
type TreeEntry struct {
	Path   string // relative to the repository
	Kind   string
	Mode   fs.FileMode // permission bits
	Size   int64       // bytes, of a file
	ID     string      // object name, of a file
	Target string      // of a symbolic link
	// Submodule is true for the directory of a submodule, which is empty.
	Submodule bool
}

// Objects opens the output of git cat-file --batch for the given object names,
// in their order. The caller closes it, also before its end.
type Objects func(ctx context.Context, ids []string) (io.ReadCloser, error)

// maxTree bounds the files of a commit.
const maxTree = 2_000_000

// Tree lists the files of the clone's HEAD.
func (c Clone) Tree(ctx context.Context) ([]TreeEntry, error) {
	out := c.Source.git.Output(ctx, c.Dir, "ls-tree", "-r", "-t", "-z", "--long", "--full-tree", "HEAD")
	defer func() { _ = out.Close() }() // the error of a read has more details
	var all []TreeEntry
	var links []int
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := r.ReadString(0)
		if errors.Is(err, io.EOF) && line == "" {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list files of the commit: %w", err)
		}
		e, err := treeEntry(strings.TrimSuffix(line, "\x00"))
		if err != nil {
			return nil, err
		}
		if e.Kind == KindSymlink {
			links = append(links, len(all))
		}
		if all = append(all, e); len(all) > maxTree {
			return nil, fmt.Errorf("the commit has more than %d files", maxTree)
		}
	}
	return all, c.readLinks(ctx, all, links)
}

// treeEntry reads one line of ls-tree: mode, type, object and size, a tab, the
// path. See git-ls-tree(1), OUTPUT FORMAT.
func treeEntry(line string) (TreeEntry, error) {
	head, name, ok := strings.Cut(line, "\t")
	f := strings.Fields(head)
	if !ok || len(f) != 4 {
		return TreeEntry{}, fmt.Errorf("git ls-tree: %.200q is not an entry", line)
	}
	e := TreeEntry{Path: name, Kind: KindFile, Mode: 0o644, ID: f[2]}
	switch {
	case f[1] != "blob": // a directory, or the commit of a submodule
		e.Kind, e.Mode, e.ID, e.Submodule = KindDir, 0o755, "", f[1] == "commit"
		return e, nil
	case f[0] == "120000":
		e.Kind, e.Mode = KindSymlink, 0o777
	case f[0] == "100755":
		e.Mode = 0o755
	}
	size, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		return e, fmt.Errorf("git ls-tree: %.200q: %w", line, err)
	}
	e.Size = size
	return e, nil
}

// maxTarget is the longest target of a link, in bytes.
const maxTarget = 4096

// readLinks sets the targets of symbolic links.
func (c Clone) readLinks(ctx context.Context, all []TreeEntry, links []int) error {
	if len(links) == 0 {
		return nil
	}
	ids := make([]string, len(links))
	for i, at := range links {
		ids[i] = all[at].ID
	}
	out, err := c.Objects(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	r := bufio.NewReader(out)
	for _, at := range links {
		content, err := Object(r, all[at])
		if err != nil {
			return err
		}
		target, err := io.ReadAll(io.LimitReader(content, maxTarget))
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}
		if err == nil {
			_, err = r.Discard(1)
		}
		if err != nil {
			return fmt.Errorf("read link %q: %w", all[at].Path, err)
		}
		all[at].Target, all[at].ID = string(target), ""
	}
	return nil
}

// Object reads the header of the next object, which must be the object of e,
// and returns its content. One byte, a line end, follows the content. See git-
// cat-file(1), BATCH OUTPUT.
func Object(r *bufio.Reader, e TreeEntry) (io.Reader, error) {
	head, err := r.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("read object of %q: %w", e.Path, err)
	}
	if head != fmt.Sprintf("%s blob %d\n", e.ID, e.Size) {
		return nil, fmt.Errorf("read object of %q: got %q", e.Path, head)
	}
	return io.LimitReader(r, e.Size), nil
}

// Objects opens objects of the clone, see [Objects].
func (c Clone) Objects(ctx context.Context, ids []string) (io.ReadCloser, error) {
	return c.Source.git.Stream(ctx, c.Dir, strings.NewReader(strings.Join(ids, "\n")+"\n"), "cat-file", "--batch", "--buffer"), nil
}
