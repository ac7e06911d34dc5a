package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"agentsh/controller/git"
	"agentsh/controller/runtime"
	"agentsh/internal/layout"
	"agentsh/internal/lazy"
)

// checkout is the operator's repository with its clone for the sandbox.
type checkout struct {
	git    git.Tool
	target git.Repository
	clone  git.Clone
	tree   []git.TreeEntry // files of the clone
	dir    string          // path in the sandbox
	start  string          // directory in which the agent starts: dir, or a directory below it
}

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
	c.clone, c.tree = clone, tree
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
