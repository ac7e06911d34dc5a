package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"agentsh/internal/lazy"
)

// ErrNotRepository reports a directory that is in no git repository.
var ErrNotRepository = errors.New("not a git repository")

// Repository is the operator's repository. The agent works in a [Clone] of it.
type Repository struct {
	Dir    string // absolute, symbolic links resolved
	Sub    string // the opened directory, relative to Dir, as a slash path; empty: Dir itself
	Head   string // commit id
	format string // of object ids: sha1 or sha256
	branch string // the branch of HEAD; empty: detached
	index  string // file
	git    Tool
}

// Open reads which commit and branch HEAD of a repository names. dir is the top
// of its working tree, or a directory below it that HEAD contains. The error is
// [ErrNotRepository] if dir is in no repository.
func (g Tool) Open(ctx context.Context, dir string) (Repository, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Repository{}, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return Repository{}, err
	}
	abs, sub, found := topOf(abs)
	if !found {
		return Repository{}, fmt.Errorf("%s: %w", dir, ErrNotRepository)
	}
	out, err := g.Run(ctx, abs, "rev-parse", "--path-format=absolute", "--show-object-format", "HEAD^{commit}", "--symbolic-full-name", "HEAD",
		"--show-toplevel", "--git-path", "index")
	if err != nil {
		return Repository{}, g.openError(ctx, dir, abs)
	}
	format, rest, _ := strings.Cut(out, "\n")
	head, rest, _ := strings.Cut(rest, "\n")
	ref, rest, _ := strings.Cut(rest, "\n")
	index, ok := strings.CutPrefix(rest, abs+"\n") // the name of the directory may contain line ends
	if !ok {
		return Repository{}, fmt.Errorf("%s: %w", dir, ErrNotRepository)
	}
	t := Repository{Dir: abs, Sub: sub, Head: head, format: format, index: index, git: g}
	if sub != "" {
		kind, err := g.Run(ctx, abs, "cat-file", "-t", head+":"+sub)
		if err != nil || kind != "tree" {
			return Repository{}, errors.Join(fmt.Errorf("%s: HEAD of the repository %s has no directory %s: commit it", dir, abs, sub), ctx.Err())
		}
	}
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		t.branch = branch
	}
	return t, nil
}

// topOf finds the nearest directory at or above dir that has a .git. sub is dir
// relative to it.
func topOf(dir string) (top, sub string, found bool) {
	for top = dir; ; top = filepath.Dir(top) {
		if _, err := os.Lstat(filepath.Join(top, ".git")); err == nil {
			break
		}
		if top == filepath.Dir(top) {
			return "", "", false
		}
	}
	sub, err := filepath.Rel(top, dir)
	if err != nil {
		return "", "", false
	}
	if sub == "." {
		sub = ""
	}
	return top, filepath.ToSlash(sub), true
}

// openError returns the reason why a directory cannot be opened: it is not a
// repository, or it has no commit.
func (g Tool) openError(ctx context.Context, dir, abs string) error {
	if top, err := g.Run(ctx, abs, "rev-parse", "--show-toplevel"); err != nil || top != abs {
		return errors.Join(fmt.Errorf("%s: %w", dir, ErrNotRepository), err)
	}
	return fmt.Errorf("%s has no commit yet", dir)
}

// Size is the disk space of the repository's objects, in bytes.
func (t Repository) Size(ctx context.Context) (int64, error) {
	out, err := t.git.Run(ctx, t.Dir, "count-objects", "-v")
	if err != nil {
		return 0, err
	}
	var total int64
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name != "size" && name != "size-pack" {
			continue
		}
		kib, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("git count-objects in %s: %w", t.Dir, err)
		}
		total += kib << 10
	}
	return total, nil
}

// Clone is a new repository on the host with the history of HEAD. It goes into
// the sandbox, and the agent's commits come back to it.
type Clone struct {
	Dir    string
	Source Repository
}

// Clone makes a new repository at dest with the history of HEAD. It has no
// other data: no configuration, hook, remote, tag or other branch. Its working
// tree is empty: [Clone.Tree] lists the files, [Clone.Objects] reads them.
// author names the agent in its commits.
func (t Repository) Clone(ctx context.Context, dest, author string) (Clone, error) {
	branch := t.branch
	if branch == "" {
		branch = "work"
	}
	c := Clone{Dir: dest, Source: t}
	if _, err := t.git.Run(ctx, filepath.Dir(dest), "init", "--quiet", "--template=", "--initial-branch="+branch,
		"--object-format="+t.format, "--", dest); err != nil {
		return c, err
	}
	if err := addSettings(filepath.Join(dest, ".git", "config"), author); err != nil {
		return c, err
	}
	// The operator's own objects are not checked: git in the sandbox only reads them.
	_, err := t.git.Run(ctx, dest, "-c", "transfer.fsckObjects=false", "-c", "fetch.fsckObjects=false",
		"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--update-head-ok", "--update-shallow",
		"--", t.Dir, "+"+t.Head+":refs/heads/"+branch)
	return c, err
}

// addSettings writes the agent's name into a configuration, and turns automatic
// gc off. See git-config(1), Syntax: author needs no quotes.
func addSettings(config, author string) error {
	if !authorName().MatchString(author) {
		return fmt.Errorf("agent name %q: only letters, digits, - and _", author)
	}
	f, err := os.OpenFile(config, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write git configuration: %w", err)
	}
	_, err = fmt.Fprintf(f, "[user]\n\tname = %s\n\temail = %s@agentctl.invalid\n[gc]\n\tauto = 0\n", author, author)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write git configuration: %w", err)
	}
	return nil
}

var authorName = lazy.Regexp(`^[A-Za-z0-9_-]+$`)

// Uncommitted lists the tracked files of the repository that differ from HEAD,
// and sets the index of the clone to HEAD. It compares the files with the
// clone's configuration, so that no filter or monitor of the repository runs.
// It uses a copy of the repository's index: git does not read a file whose
// times and size are those of the index.
func (c Clone) Uncommitted(ctx context.Context) ([]string, error) {
	index, source := filepath.Join(c.Dir, ".git", "index"), c.Source
	diff := func() (string, error) {
		return source.git.Run(ctx, source.Dir, "--git-dir="+filepath.Join(c.Dir, ".git"), "--work-tree="+source.Dir,
			"diff", "--name-only", "-z", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD", "--")
	}
	fresh := func() error {
		if err := os.Remove(index); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_, err := source.git.Run(ctx, c.Dir, "read-tree", "HEAD")
		return err
	}
	err := source.copyIndex(index)
	var out string
	if err == nil {
		out, err = diff()
	}
	// A split index, or one of a newer git version, cannot be used alone.
	again := err != nil
	if err := fresh(); err != nil {
		return nil, err
	}
	if again {
		if out, err = diff(); err != nil {
			return nil, err
		}
	}
	return splitNUL(out), nil
}

// SkipWorktree marks paths as intentionally missing from the working tree, so
// that the agent does not commit their deletion. See git-update-index(1),
// --skip-worktree.
func (c Clone) SkipWorktree(ctx context.Context, paths []string) error {
	_, err := c.Source.git.Feed(ctx, c.Dir, strings.Join(paths, "\x00")+"\x00", "update-index", "-z", "--skip-worktree", "--stdin")
	return err
}

// maxIndex bounds the index that is copied, in bytes.
const maxIndex = 1 << 30

func (t Repository) copyIndex(to string) error {
	in, err := os.Open(t.index)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, maxIndex))
	info, statErr := in.Stat()
	if err = errors.Join(err, statErr, out.Close()); err != nil {
		return err
	}
	// Git reads a file again if it was written in the same second as the index.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// Commit is one commit of the agent. The subject is not cleaned.
type Commit struct {
	ID      string
	Subject string
}

// maxCommits bounds the commits that [Clone.Commits] lists.
const maxCommits = 200

// Commits lists the commits of a branch of the clone that are not in the HEAD
// of the source, the newest first.
func (c Clone) Commits(ctx context.Context, branch string) ([]Commit, error) {
	out, err := c.Source.git.Run(ctx, c.Dir, "log", "-z", "--no-show-signature", "--no-ext-diff",
		"--max-count="+strconv.Itoa(maxCommits), "--format=%H %s", "refs/heads/"+branch, "^"+c.Source.Head)
	if err != nil {
		return nil, err
	}
	commits := []Commit{}
	for _, line := range splitNUL(out) {
		id, subject, _ := strings.Cut(line, " ")
		commits = append(commits, Commit{ID: id, Subject: subject})
	}
	return commits, nil
}

// Patches is the text of all changes in the commits of a branch. The caller
// closes it.
func (c Clone) Patches(ctx context.Context, branch string) io.ReadCloser {
	return c.Source.git.Output(ctx, c.Dir, "log", "--patch", "--no-show-signature", "--no-ext-diff", "--no-textconv", "--no-color",
		"--text", "--full-index", "refs/heads/"+branch, "^"+c.Source.Head)
}

func splitNUL(s string) []string {
	var out []string
	for _, part := range strings.Split(s, "\x00") {
		if part != "" {
			out = append(out, part)
		}
	}
	return out
}
