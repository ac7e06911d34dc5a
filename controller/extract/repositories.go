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

// Stream runs git on the host like [Git] and returns its standard output as a stream.
// The last read returns git's error. Closing the stream ends git.
type Stream func(ctx context.Context, dir string, args ...string) io.ReadCloser

// Guard finds git repositories in the work of an agent. Files that would make git run
// or read something outside are not extracted.
type Guard struct {
	git      Stream
	target   string // the operator's repository; empty: there is none
	base     string // commit below the agent's work; empty: none
	location gitguard.Location
}

// NewGuard makes the guard for work on the repository at dir inside the sandbox.
// Settings that the base commit of the target contains are allowed.
func NewGuard(git Stream, target, base, dir string) *Guard {
	return &Guard{git: git, target: target, base: base, location: gitguard.Location{Dir: dir, Roots: []string{dir}}}
}

// stream runs git with the hardened settings of this package.
func (g *Guard) stream(ctx context.Context, dir string, args ...string) io.ReadCloser {
	return g.git(ctx, dir, append(slices.Clone(hardened), args...)...)
}

// commits returns new commits whose files contain a repository that must not be
// extracted, with the reason. The tips are in the repository dir.
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

// someRepository reports whether any commit could contain a repository. It tests
// whether all suspect names of new commits and their bases would make one together.
// Examining every commit would take a second for each 100,000 files.
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

// boundary lists the commits on which new commits build.
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

// suspectCommits reads the output of git log. It returns the commits that change a
// name that could belong to a repository, each once. It also returns these names.
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
		case name == "": // no file has an empty name: a commit follows
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

// tree lists the files of a commit except those for which skip returns true.
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

// treeMode returns the kind of a tree entry. See git-fast-import(1).
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

// old returns the content of files of the base: their settings are allowed.
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

// Files removes entries from an extracted directory that are not allowed in a
// repository. It returns the reasons. The directory contains the changed files. It is
// checked as laid over the base, without the deleted files.
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
		case errors.Is(err, fs.ErrNotExist): // a file of the base, or removed for another problem
			err = nil
		}
		if err != nil {
			return nil, fmt.Errorf("remove %q, which git would act on: %w", p.File, err)
		}
		removed = append(removed, p)
	}
	return removed, nil
}

// over lists the entries of a directory, then those that only the base has.
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
