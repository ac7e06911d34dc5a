package controller

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller/git"
	"agentsh/controller/provider"
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

// Shared is what the runs of a batch have in common, so that it is found out once: the
// repositories, each at the commit that HEAD pointed to when the first run looked, and what helpers
// of providers have printed. Safe for concurrent use.
type Shared struct {
	dir     string
	helpers helperCache

	mu    sync.Mutex
	repos map[[2]string]*sharedRepo // by path and author
	room  int64                     // for contents of files, in bytes
}

// sharedRepo is a repository with a clone that other clones are copied from.
type sharedRepo struct {
	mu       sync.Mutex // held while it is found out
	known    bool
	checkout checkout
	dirty    []string
	size     int64 // of the repository, in bytes
	contents map[string][]byte
}

// sharedContents bounds the contents of files that are kept in memory, in bytes.
const sharedContents = 8 << 20

// NewShared makes a directory for what the runs of one batch share. The caller calls Close after the
// last one.
func NewShared(dir string) (*Shared, error) {
	err := statedir.RemoveTree(dir) // of a killed process
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("directory for the runs of the batch: %w", err)
	}
	return &Shared{dir: dir, repos: map[[2]string]*sharedRepo{}, room: sharedContents}, nil
}

// Close removes the directory.
func (s *Shared) Close() error { return statedir.RemoveTree(s.dir) }

// repo returns a repository. An error is not remembered.
func (s *Shared) repo(ctx context.Context, path, author string) (*sharedRepo, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	key := [2]string{path, author}
	s.mu.Lock()
	r := s.repos[key]
	if r == nil {
		r = &sharedRepo{}
		s.repos[key] = r
	}
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known {
		return r, nil
	}
	dir, err := os.MkdirTemp(s.dir, "repo-")
	if err != nil {
		return nil, err
	}
	if err := r.open(ctx, s, path, author, dir); err != nil {
		return nil, err
	}
	r.known = true
	return r, nil
}

// open opens a repository and clones it.
func (r *sharedRepo) open(ctx context.Context, s *Shared, path, author, dir string) error {
	tool, err := git.New(dir)
	if err != nil {
		return err
	}
	c, err := openRepo(ctx, tool, path)
	if err != nil {
		return err
	}
	if r.size, err = c.target.Size(ctx); err != nil {
		return err
	}
	if r.checkout, r.dirty, err = c.cloned(ctx, filepath.Join(dir, cloneName), author); err != nil {
		return err
	}
	return r.readContents(ctx, s)
}

// readContents reads the files of the commit, if there is room for them.
func (r *sharedRepo) readContents(ctx context.Context, s *Shared) error {
	r.contents = nil
	var files []git.TreeEntry
	size := int64(0)
	for _, e := range r.checkout.tree {
		if e.Kind == git.KindFile && e.ID != "" {
			files = append(files, e)
			size += e.Size + objectCost
		}
	}
	s.mu.Lock()
	fits := size <= s.room
	if fits {
		s.room -= size
	}
	s.mu.Unlock()
	if !fits || len(files) == 0 {
		return nil
	}
	ids := make([]string, len(files))
	for i, e := range files {
		ids[i] = e.ID
	}
	out, err := r.checkout.clone.Objects(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the error of a read has more details
	contents := make(map[string][]byte, len(files))
	in := bufio.NewReader(out)
	for _, e := range files {
		object, err := git.Object(in, e)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(object)
		if err == nil {
			_, err = in.Discard(1)
		}
		if err != nil {
			return fmt.Errorf("read object of %q: %w", e.Path, err)
		}
		contents[e.ID] = data
	}
	r.contents = contents
	return nil
}

// objectCost is what an object takes in memory besides its content, in bytes.
const objectCost = 200

// objects is [git.Objects] from the contents in memory, where they have all of them.
func (r *sharedRepo) objects(from git.Objects) git.Objects {
	if r.contents == nil {
		return from
	}
	return func(ctx context.Context, ids []string) (io.ReadCloser, error) {
		parts := make([]io.Reader, 0, 3*len(ids))
		for _, id := range ids {
			data, has := r.contents[id]
			if !has {
				return from(ctx, ids)
			}
			parts = append(parts, bytes.NewReader(fmt.Appendf(nil, "%s blob %d\n", id, len(data))), bytes.NewReader(data), bytes.NewReader(newline))
		}
		return io.NopCloser(io.MultiReader(parts...)), nil
	}
}

var newline = []byte("\n")

// later is the checkout of a run, whose own clone at dest is copied when it is needed.
func (r *sharedRepo) later(dest string) checkout {
	c := r.checkout
	c.later = &laterClone{from: c.clone, dest: dest}
	c.objects = r.objects(c.clone.Objects)
	c.clone = git.Clone{Dir: dest, Source: c.target}
	return c
}

// helperCache is what helpers have printed.
type helperCache struct {
	mu  sync.Mutex
	all map[string]*helperEntry // by helper and environment
}

// helperEntry is what one helper has printed last.
type helperEntry struct {
	mu sync.Mutex // held while the helper runs: the other runs wait for it
	provider.Printed
}

// printed returns what a helper has printed, if that need not be renewed yet; otherwise it starts the
// helper. Errors are not remembered.
func (s *Shared) printed(ctx context.Context, h provider.Helper, environ []string) (provider.Printed, error) {
	key, err := json.Marshal([]any{h, slices.Sorted(slices.Values(environ))})
	if err != nil {
		return provider.Printed{}, err
	}
	sum := sha256.Sum256(key)
	s.helpers.mu.Lock()
	if s.helpers.all == nil {
		s.helpers.all = map[string]*helperEntry{}
	}
	e := s.helpers.all[string(sum[:])]
	if e == nil {
		e = &helperEntry{}
		s.helpers.all[string(sum[:])] = e
	}
	s.helpers.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if due := e.Due(); e.Values != nil && (due.IsZero() || time.Now().Before(due)) {
		return e.Printed, nil
	}
	p, err := h.Run(ctx, environ)
	if err == nil {
		e.Printed = p
	}
	return p, err
}

// findRepo finds the commit that the agent starts from. The runs of a batch have the same one,
// unless a pre_script may change it.
func (r *run) findRepo(ctx context.Context) error {
	if s := r.o.Member.Shared; s != nil && r.plan.harness.PreScript.V == "" && r.journal.record.Base == "" {
		repo, err := s.repo(ctx, r.o.Repo, r.plan.harness.AgentName())
		if err != nil {
			return err
		}
		r.checkout = repo.checkout
		r.checkout.shared = repo
		noteRepo(r.checkout, &r.result, r.journal)
		return nil
	}
	tool, err := git.New(r.journal.dir.Work())
	if err != nil {
		return err
	}
	return r.openRepo(ctx, tool)
}

// openRepo finds the commit that the agent starts from.
func (r *run) openRepo(ctx context.Context, tool git.Tool) (err error) {
	if r.o.Repo == "" {
		r.checkout = withoutRepo(tool)
		return nil
	}
	if r.checkout, err = openRepo(ctx, tool, r.o.Repo); err != nil {
		return err
	}
	if base := r.journal.record.Base; base != "" { // another controller has begun the run
		r.checkout.target.Head = base
	}
	noteRepo(r.checkout, &r.result, r.journal)
	return nil
}

// noteRepo writes the repository into the result and the record.
func noteRepo(c checkout, result *Result, j *journal) {
	result.Repo, result.Base = c.target.Dir, c.target.Head
	j.record.Repo = c.target.Dir
}

// cloneName is the clone in the work directory of a run.
const cloneName = "repo"

// cloneRepo makes the clone of the repository for the sandbox.
func (r *run) cloneRepo(ctx context.Context) (err error) {
	if r.o.Repo == "" {
		return nil
	}
	var dirty []string
	r.checkout, dirty, err = r.checkout.cloned(ctx, filepath.Join(r.journal.dir.Work(), cloneName), r.plan.harness.AgentName())
	if err != nil {
		return err
	}
	if r.result.EmptySubmodules = r.checkout.submodules(); len(r.result.EmptySubmodules) > 0 {
		r.progress.warn("submodules are empty in the sandbox: %s (commit what the agent needs, or deliver it by agent_input)",
			few(r.result.EmptySubmodules))
	}
	if len(dirty) == 0 {
		return nil
	}
	if !r.o.AllowDirty {
		return badConfig("commit or stash them, or leave them out with --allow-dirty",
			"%s has changes that are not committed, and the agent would not see them: %s", r.o.Repo, few(dirty))
	}
	r.progress.warn("the agent does not see what is not committed: %s", few(dirty))
	return nil
}
