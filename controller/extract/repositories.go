package extract

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/internal/gitguard"
	"agentsh/internal/rootfs"
	"agentsh/internal/wire"
)

// Stream runs git on the host like [Git] and returns its standard output as it
// comes. How git ended is the error of the last read; closing it ends git.
type Stream func(ctx context.Context, dir string, args ...string) io.ReadCloser

// Guard finds repositories of git in the work of an agent. What git would run
// or read outside because of them does not come out.
type Guard struct {
	git      Stream
	target   string // the operator's repository; empty: there is none
	base     string // commit that the agent's work is laid over; empty: none
	location gitguard.Location
}

// NewGuard makes the guard for work on a repository that is at dir inside the
// sandbox. What the base commit of the target has may stay.
func NewGuard(git Stream, target, base, dir string) *Guard {
	return &Guard{git: git, target: target, base: base, location: gitguard.Location{Dir: dir, Roots: []string{dir}}}
}

// stream runs git with the settings of every git of this package.
func (g *Guard) stream(ctx context.Context, dir string, args ...string) io.ReadCloser {
	return g.git(ctx, dir, append(slices.Clone(hardened), args...)...)
}

// commits finds new commits whose files hold a repository that may not come
// out, with the reason. The repository dir has the tips.
func (g *Guard) commits(ctx context.Context, dir string, tips []tip) (map[string]string, error) {
	args := []string{
		"log",
		"-z",
		"-m",
		"--root",
		"-r",
		"--no-renames",
		"--name-only",
		"--diff-filter=d",
		"--no-show-signature",
		"--format=%x00%H",
	}
	for _, t := range tips {
		args = append(args, t.id)
	}
	if g.base != "" {
		args = append(args, "^"+g.base)
	}
	suspects, names, err := suspectCommits(g.stream(ctx, dir, args...))
	if err != nil {
		return nil, fmt.Errorf("list what new commits change: %w", err)
	}
	unsafe := map[string]string{}
	if len(suspects) == 0 {
		return unsafe, nil
	}
	if some, err := g.someRepository(ctx, dir, tips, names); err != nil || !some {
		return unsafe, err
	}
	for _, id := range suspects {
		found, err := gitguard.Scan(g.tree(ctx, dir, id, nil), gitguard.Options{Location: g.location, Commit: true, Old: g.old(ctx)})
		if err != nil {
			return nil, fmt.Errorf("look for repositories in commit %s: %w", id, err)
		}
		if len(found.Problems) > 0 {
			unsafe[id] = "its files hold a repository that git would act on: " + found.Problems[0].String()
		}
	}
	return unsafe, nil
}

// someRepository reports whether any commit could hold a repository: whether all
// suspect names of new commits and of what they build on would make one together.
// To look at every commit takes a second for each 100,000 files.
func (g *Guard) someRepository(ctx context.Context, dir string, tips []tip, names map[string]bool) (bool, error) {
	below, err := g.boundary(ctx, dir, tips)
	if err != nil {
		return false, fmt.Errorf("list what new commits build on: %w", err)
	}
	for _, id := range below {
		for e, err := range g.tree(ctx, dir, id, func(name string) bool { return !suspect(name) }) {
			if err != nil {
				return false, fmt.Errorf("list the files of commit %s: %w", id, err)
			}
			names[e.Path] = true
		}
	}
	all := func(yield func(gitguard.Entry, error) bool) {
		for name := range names {
			if !yield(gitguard.Entry{Path: name, Mode: fs.ModeIrregular}, nil) {
				return
			}
		}
	}
	found, err := gitguard.Scan(all, gitguard.Options{Location: g.location, Commit: true})
	return len(found.Repositories)+len(found.Problems) > 0, err
}

// boundary lists the commits that new ones build on.
func (g *Guard) boundary(ctx context.Context, dir string, tips []tip) (ids []string, err error) {
	if g.base == "" {
		return nil, nil
	}
	args := []string{"rev-list", "--boundary", "^" + g.base}
	for _, t := range tips {
		args = append(args, t.id)
	}
	list := g.stream(ctx, dir, args...)
	defer func() { err = errors.Join(err, list.Close()) }()
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "-"); ok {
			ids = append(ids, id)
		}
	}
	return ids, lines.Err()
}

// suspectCommits reads the output of git log and returns the commits that change
// a name which could belong to a repository, each once, and these names.
func suspectCommits(log io.ReadCloser) (ids []string, suspects map[string]bool, err error) {
	defer func() { err = errors.Join(err, log.Close()) }()
	names := bufio.NewScanner(log)
	names.Buffer(nil, 1<<20)
	names.Split(byNUL)
	seen := map[string]bool{}
	suspects = map[string]bool{}
	id, header, first := "", false, false
	for names.Scan() {
		name := names.Text()
		switch {
		case name == "": // no file is called so: a commit follows
			header = true
		case header:
			id, header, first = name, false, true
		default:
			if first {
				name, first = strings.TrimPrefix(name, "\n"), false
			}
			if !suspect(name) {
				continue
			}
			suspects[name] = true
			if !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids, suspects, names.Err()
}

// byNUL splits at NUL bytes.
func byNUL(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// suspect reports whether a path could belong to a repository.
func suspect(name string) bool {
	parent := ""
	for part := range strings.SplitSeq(name, "/") {
		if gitguard.Suspect(parent, part) {
			return true
		}
		parent = part
	}
	return false
}

// tree lists the files of a commit that skip does not name.
func (g *Guard) tree(ctx context.Context, dir, commit string, skip func(name string) bool) iter.Seq2[gitguard.Entry, error] {
	return func(yield func(gitguard.Entry, error) bool) {
		list := g.stream(ctx, dir, "ls-tree", "-r", "-z", "--full-tree", commit)
		defer func() { _ = list.Close() }() // an early end is no error
		lines := bufio.NewScanner(list)
		lines.Buffer(nil, 1<<20)
		lines.Split(byNUL)
		for lines.Scan() {
			about, name, ok := strings.Cut(lines.Text(), "\t")
			fields := strings.Fields(about)
			if !ok || len(fields) != 3 {
				yield(gitguard.Entry{}, fmt.Errorf("git ls-tree says %.100q", lines.Text()))
				return
			}
			if skip != nil && skip(name) {
				continue
			}
			e := gitguard.Entry{Path: name, Mode: treeMode(fields[0]), Read: func() ([]byte, error) { return g.blob(ctx, dir, fields[2]) }}
			if !yield(e, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(gitguard.Entry{}, err)
		}
	}
}

// treeMode is the kind of a tree's entry. See git-fast-import(1).
func treeMode(mode string) fs.FileMode {
	switch mode {
	case "120000":
		return fs.ModeSymlink
	case "160000":
		return fs.ModeIrregular
	}
	return 0
}

// blob reads the beginning of a file of a commit.
func (g *Guard) blob(ctx context.Context, dir, id string) ([]byte, error) {
	r := g.stream(ctx, dir, "cat-file", "blob", id)
	defer func() { _ = r.Close() }() // the end of a long file is not read
	return io.ReadAll(io.LimitReader(r, gitguard.MaxFile+1))
}

// old returns what the base has: it may stay.
func (g *Guard) old(ctx context.Context) func(string) []byte {
	if g.base == "" {
		return nil
	}
	return func(name string) []byte {
		data, err := g.blob(ctx, g.target, g.base+":"+name)
		if err != nil {
			return nil // the base has no such file
		}
		return data
	}
}

// Files removes from a directory that was taken out what may not be in a
// repository, and returns why. The directory holds the files that changed: it is
// judged as laid over the base, without what was deleted.
func (g *Guard) Files(ctx context.Context, root *os.Root, changed, deleted []string) ([]gitguard.Problem, error) {
	o := gitguard.Options{Location: g.location, Old: g.old(ctx)}
	found, err := gitguard.Scan(g.over(ctx, root, changed, deleted), o)
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	var removed []gitguard.Problem
	for _, p := range found.Problems {
		_, err := root.Lstat(filepath.FromSlash(p.File))
		switch {
		case err == nil:
			err = root.Remove(filepath.FromSlash(p.File))
		case errors.Is(err, fs.ErrNotExist): // of the base, or removed for another problem
			err = nil
		}
		if err != nil {
			return nil, fmt.Errorf("remove %q, which git would act on: %w", p.File, err)
		}
		removed = append(removed, p)
	}
	return removed, nil
}

// over lists a directory, then what the base has beside it.
func (g *Guard) over(ctx context.Context, root *os.Root, changed, deleted []string) iter.Seq2[gitguard.Entry, error] {
	return func(yield func(gitguard.Entry, error) bool) {
		for e, err := range gitguard.FS(rootfs.New(root)) {
			if !yield(e, err) {
				return
			}
		}
		if g.base == "" || g.target == "" {
			return
		}
		gone, again := set(deleted), set(changed)
		replaced := func(name string) bool {
			if again[name] {
				return true
			}
			for ; name != "."; name = path.Dir(name) {
				if gone[name] {
					return true
				}
			}
			return false
		}
		for e, err := range g.tree(ctx, g.target, g.base, replaced) {
			if !yield(e, err) {
				return
			}
		}
	}
}

func set(names []string) map[string]bool {
	s := map[string]bool{}
	for _, name := range names {
		s[name] = true
	}
	return s
}

// withoutFiles drops entries that were removed.
func withoutFiles(entries []wire.ManifestEntry, removed []gitguard.Problem) []wire.ManifestEntry {
	gone := map[string]bool{}
	for _, p := range removed {
		gone[p.File] = true
	}
	return slices.DeleteFunc(entries, func(e wire.ManifestEntry) bool { return gone[string(e.Path)] })
}
