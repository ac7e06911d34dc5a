package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"agentsh/controller/git"
	"agentsh/controller/runtime"
	"agentsh/internal/layout"
	"agentsh/internal/lazy"
	"agentsh/internal/statedir"
)

// checkout is the operator's repository with its clone for the sandbox.
type checkout struct {
	git    git.Tool
	target git.Repository
	clone  git.Clone       // of this run: see own
	source git.Clone       // with the files and the history; clone, or one that other runs have too
	tree   []git.TreeEntry // files of the clone
	dir    string          // path in the sandbox
	start  string          // directory in which the agent starts: dir, or a directory below it

	objects git.Objects // of the clone
	shared  *sharedRepo // with what is known already; nil: nothing
	later   *laterClone // nil: clone exists
}

// laterClone is a clone that does not exist before something is to be written to it.
type laterClone struct {
	mu   sync.Mutex
	made bool
	from git.Clone
	dest string
}

// own makes the clone of this run, if it does not exist yet.
func (c checkout) own() error {
	if c.later == nil {
		return nil
	}
	c.later.mu.Lock()
	defer c.later.mu.Unlock()
	if c.later.made {
		return nil
	}
	if _, err := c.later.from.Copy(c.later.dest); err != nil {
		return errors.Join(err, statedir.RemoveTree(c.later.dest))
	}
	c.later.made = true
	return nil
}

// run runs git where the clone of this run exists.
func (c checkout) run(ctx context.Context, dir string, args ...string) (string, error) {
	if err := c.own(); err != nil {
		return "", err
	}
	return c.git.Run(ctx, dir, args...)
}

// output is like run, for an output without a limit.
func (c checkout) output(ctx context.Context, dir string, args ...string) io.ReadCloser {
	if err := c.own(); err != nil {
		return io.NopCloser(failing{err})
	}
	return c.git.Output(ctx, dir, args...)
}

// failing is a stream that cannot be read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// openRepo finds the commit that the agent starts from.
func openRepo(ctx context.Context, tool git.Tool, dir string) (checkout, error) {
	const hint = "name a directory of a git repository with --repo"
	t, err := tool.Open(ctx, dir)
	switch {
	case errors.Is(err, git.ErrNotRepository):
		return checkout{}, badConfig(hint+", or make one: git init && git add -A && git commit", "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return checkout{}, badConfig(hint, "repository: %w", err)
	case err != nil && ctx.Err() == nil:
		return checkout{}, badConfig("the agent starts from a commit: git commit", "repository: %w", err)
	case err != nil:
		return checkout{}, err
	}
	c := checkout{git: tool, target: t, dir: path.Join(layout.Workspace, repoName(t.Dir))}
	c.start = path.Join(c.dir, t.Sub)
	return c, nil
}

// emptyWork is the directory of a sandbox without a repository, in the workspace.
const emptyWork = "work"

// withoutRepo is the checkout of a sandbox without a repository.
func withoutRepo(tool git.Tool) checkout {
	dir := path.Join(layout.Workspace, emptyWork)
	return checkout{git: tool, dir: dir, start: dir}
}

// name is the directory of the repository in the workspace.
func (c checkout) name() string { return path.Base(c.dir) }

// submodules are the directories of submodules.
func (c checkout) submodules() []string {
	var out []string
	for _, e := range c.tree {
		if e.Submodule {
			out = append(out, e.Path)
		}
	}
	return out
}

// cloned makes the clone at dest, and lists the tracked files that differ from
// its commit. author is the agent's name.
func (c checkout) cloned(ctx context.Context, dest, author string) (_ checkout, dirty []string, err error) {
	if c.shared != nil {
		return c.shared.later(dest), c.shared.dirty, nil
	}
	clone, err := c.target.Clone(ctx, dest, author)
	if err != nil {
		return c, nil, fail(ExitSandbox, "", fmt.Errorf("clone repository: %w", err))
	}
	var tree []git.TreeEntry
	listed := make(chan error, 1)
	go func() {
		var err error
		tree, err = clone.Tree(ctx)
		listed <- err
	}()
	dirty, err = clone.Uncommitted(ctx)
	err = errors.Join(err, <-listed)
	c.clone, c.source, c.tree, c.objects = clone, clone, tree, clone.Objects
	return c, dirty, err
}

var badInName = lazy.Regexp(`[^A-Za-z0-9_.-]+`)

// repoName is the name of a repository's directory in the workspace. It is
// derived from the name of the target. It has no characters that shells
// interpret, and is not a reserved name.
func repoName(dir string) string {
	name := strings.TrimLeft(badInName().ReplaceAllString(filepath.Base(dir), "-"), "-.")
	if name == "" || layout.ReservedName(name) {
		return "repo-" + name
	}
	return name
}

// few lists the first few paths.
func few(paths []string) string {
	const most = 5
	shown := paths
	if len(shown) > most {
		shown = shown[:most]
	}
	text := runtime.Clean(strings.Join(shown, ", "))
	if n := len(paths) - len(shown); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
