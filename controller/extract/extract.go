// Package extract copies the result of a run out of a sandbox. Commits arrive as a
// bundle, which is fetched into the operator's own repository. Changed files arrive as
// an archive, which is unpacked into a fresh directory. The agent's .git never reaches
// the host, and git never runs in a directory that the agent wrote.
package extract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/gitguard"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// Git runs git on the host in dir, with its own environment, and returns its standard
// output. An error contains git's error output.
type Git func(ctx context.Context, dir string, args ...string) (stdout string, err error)

// Input says what to extract and where to store it.
type Input struct {
	Governed string // governed directory inside the sandbox, which the change record is relative to
	Repo     string // repository inside the sandbox, at or below Governed
	Base     string // commit id that the repository had at upload; empty: none

	Target string // the operator's repository on the host; empty: commits are not collected
	Branch string // branch to make there; it must not exist
	Git    Git
	Stream Stream

	Out  string // existing directory on the host to which no agent can write
	Name string // of the directory made in Out for changed files; it must not exist

	// KeepBundle is a path on the host. If a commit is refused, the bundle is stored
	// there. The path must not exist. Empty: the bundle is not stored.
	KeepBundle string

	MaxBundle int64        // bytes; 0: 1 GiB
	Limits    tarfs.Limits // of the changed files
}

// Result lists the extracted commits and files.
type Result struct {
	Branch   string   // made in the target; empty: no new commits
	Branches []string // branches made for other branches of the agent
	Commits  []string // new commit ids of Branch, newest first, at most 1000
	Refused  []Refused
	Bundle   string // file with all commits of the agent; set if one was refused and the bundle was stored

	Dir     string               // directory with the changed files; empty: none changed
	Changed []wire.ManifestEntry // what is in Dir, paths relative to the repository
	Deleted []string             // relative to the repository: to be removed before Dir is copied over it
	Skipped []string             // files that cannot be extracted, each with the reason
	Unsafe  []gitguard.Problem   // removed from Dir, because git would run or read something due to them
	// By says which changed or deleted paths a process outside the session changed, alone or
	// too. What it changed alone is among Changed only in a directory that the agent made.
	By map[string]wire.ChangedBy

	Partial bool // something is missing; the error says what
}

// Collect extracts commits and changed files. If one of them fails, the other is still
// extracted. The result is then marked partial and an error is returned too.
func Collect(ctx context.Context, ex sandbox.Executor, in Input) (Result, error) {
	var res Result
	if err := in.check(); err != nil {
		return res, fmt.Errorf("extract: %w", err)
	}
	record := newReplay(relative(in))
	changes := ex.EachChange(ctx, record.add)
	var commits error
	if in.Target != "" && (changes != nil || record.git) {
		commits = collectCommits(ctx, ex, in, &res)
	}
	var files error
	if changes != nil {
		files = fmt.Errorf("changed files: %w", changes)
	} else {
		files = collectFiles(ctx, ex, in, record.net(), &res)
	}
	if err := errors.Join(commits, files); err != nil {
		res.Partial = true
		return res, fmt.Errorf("extract: %w", err)
	}
	return res, nil
}

// check returns an error if a field of the input is inconsistent with the others.
func (in *Input) check() error {
	if in.MaxBundle == 0 {
		in.MaxBundle = 1 << 30
	}
	rel, below := strings.CutPrefix(in.Repo+"/", strings.TrimSuffix(in.Governed, "/")+"/")
	switch {
	case !path.IsAbs(in.Governed) || path.Clean(in.Repo) != in.Repo || !below || strings.HasPrefix(rel, "/"):
		return fmt.Errorf("repository %q is not beneath the governed directory %q", in.Repo, in.Governed)
	case in.Base != "" && !isObjectID(in.Base):
		return fmt.Errorf("base %.100q is not a commit id", in.Base)
	case in.Target != "" && !isBranch(in.Branch):
		return fmt.Errorf("branch %.100q is not a plain branch name", in.Branch)
	case in.Target != "" && (in.Git == nil || in.Stream == nil):
		return errors.New("no git to fetch commits with")
	case in.Name == "" || filepath.Base(in.Name) != in.Name || strings.HasPrefix(in.Name, "."):
		return fmt.Errorf("directory name %.100q is not one plain component", in.Name)
	}
	return nil
}

// collectFiles receives the changed files of the working tree.
func collectFiles(ctx context.Context, ex sandbox.Executor, in Input, w changed, res *Result) error {
	res.Deleted, res.By = w.deleted, w.by
	if len(w.trees)+len(w.names) == 0 {
		return nil
	}
	out, err := os.OpenRoot(in.Out)
	if err != nil {
		return fmt.Errorf("changed files: %w", err)
	}
	defer func() { _ = out.Close() }()
	req := wire.CopyOut{Dir: wire.Name(in.Repo), Paths: w.trees, Names: w.names, Gone: true, SkipGit: true}
	m, err := channel.ReceiveArchive(ctx, ex, req, channel.ArchiveTarget{Parent: out, Name: in.Name, Options: tarfs.ReceiveOptions{
		UnpackOptions: tarfs.UnpackOptions{Limits: in.Limits, RefuseGit: true, KeepPartial: true},
	}})
	res.Changed, res.Skipped, res.Deleted = m.Entries, m.Skipped, without(w.deleted, m.Entries)
	dir := in.Name
	if err != nil {
		dir += tarfs.PartialSuffix
	}
	if _, missing := out.Lstat(dir); missing == nil {
		res.Dir = filepath.Join(in.Out, dir)
		if failed := in.removeUnsafe(ctx, res); failed != nil {
			err = errors.Join(err, failed, os.RemoveAll(res.Dir))
			res.Dir, res.Changed = "", nil
		}
	}
	if err != nil {
		return fmt.Errorf("changed files: %w", err)
	}
	return nil
}

// removeUnsafe removes files that git would act on from the changed files.
func (in Input) removeUnsafe(ctx context.Context, res *Result) error {
	root, err := os.OpenRoot(res.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	changed := make([]string, 0, len(res.Changed))
	for _, e := range res.Changed {
		if e.Type != "dir" {
			changed = append(changed, string(e.Path))
		}
	}
	if res.Unsafe, err = in.guard().Files(ctx, root, changed, res.Deleted); err != nil {
		return err
	}
	res.Changed = withoutFiles(res.Changed, res.Unsafe)
	for _, p := range res.Unsafe {
		res.Skipped = append(res.Skipped, p.String())
	}
	return nil
}

// guard returns the guard for repositories in the agent's work.
func (in Input) guard() *Guard { return NewGuard(in.Stream, in.Target, in.Base, in.Repo) }

// relative returns the repository's path in the change record; empty: the whole
// record.
func relative(in Input) string {
	return strings.Trim(strings.TrimPrefix(in.Repo, strings.TrimSuffix(in.Governed, "/")), "/")
}

// changed is the net result of a change record. Paths are relative to the repository
// and sorted.
type changed struct {
	trees   []string // with everything below
	names   []string // alone
	deleted []string
	by      map[string]wire.ChangedBy // changed by a process outside the session, alone or too
}

// kind says how a present path has changed.
type kind int

const (
	alone kind = iota + 1 // its content or mode changed
	tree                  // it is new, with everything below it
)

// replay is the state of a working tree while its change record is read. It selects
// paths below a repository that are not in a .git, and ignores a path that cannot occur
// in a record.
type replay struct {
	repo string // relative to the governed directory
	now  map[string]kind
	gone map[string]bool // was removed at some time and may have been created again
	by   map[string]wire.ChangedBy
	size int  // bytes of the names
	git  bool // the git directory of the repository changed, other than its index: it may have new commits
}

func newReplay(repo string) *replay {
	return &replay{repo: repo, now: map[string]kind{}, gone: map[string]bool{}, by: map[string]wire.ChangedBy{}}
}

// add replays one change.
func (s *replay) add(c wire.Change) error {
	s.git = s.git || s.inGit(string(c.Path)) || s.inGit(string(c.From))
	name, ok := below(string(c.Path), s.repo)
	if ok && (c.By == wire.ByHost || c.By == wire.ByBoth) {
		s.by[name] = c.By
		s.size += len(name) + nameCost
	}
	if c.By == wire.ByHost {
		return s.room() // not the agent's work
	}
	if from, moved := below(string(c.From), s.repo); moved && c.Kind == wire.Renamed {
		s.remove(from)
	}
	switch {
	case !ok:
	case c.Kind == wire.Deleted:
		s.remove(name)
	case (c.Kind == wire.Created || c.Kind == wire.Modified) && s.now[name] == 0 && s.inTree(name):
		// It comes with its directory.
	case c.Kind == wire.Created || c.Kind == wire.Renamed:
		s.set(name, tree)
	case s.now[name] != tree:
		s.set(name, alone)
	}
	return s.room()
}

// inGit reports whether a change of a path may be one of the repository's commits or branches: it
// is in the git directory, or above it. The index has none.
func (s *replay) inGit(name string) bool {
	dir := path.Join(s.repo, ".git")
	if name == "" || name == dir+"/index" || name == dir+"/index.lock" {
		return false
	}
	return strings.HasPrefix(name+"/", dir+"/") || strings.HasPrefix(dir, name+"/") || !wire.IsNamePath(name)
}

func (s *replay) set(name string, k kind) {
	s.now[name] = k
	s.size += len(name) + nameCost
}

func (s *replay) remove(name string) {
	delete(s.now, name)
	s.gone[name] = true
	s.size += len(name) + nameCost
}

// A replay holds names up to maxNames. nameCost is what one takes besides its bytes.
const (
	maxNames = 32 << 20 // bytes
	nameCost = 64
)

// room returns an error if the names are too many.
func (s *replay) room() error {
	if s.size > maxNames {
		return &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf(
			"the names of the changed files take more than %d MiB: have the agent pack them into an archive", maxNames>>20)}
	}
	return nil
}

// inTree reports whether a directory above name is new and is copied as a whole.
func (s *replay) inTree(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if s.now[dir] == tree {
			return true
		}
	}
	return false
}

// net returns the net result of the record.
func (s *replay) net() changed {
	w := changed{by: s.by}
	for name := range s.gone {
		w.deleted = append(w.deleted, name)
	}
	for name, k := range s.now {
		switch {
		case s.covered(name):
		case k == tree:
			w.trees = append(w.trees, name)
		default:
			w.names = append(w.names, name)
		}
	}
	sort.Strings(w.trees)
	sort.Strings(w.names)
	sort.Strings(w.deleted)
	return w
}

// covered reports whether name needs no entry: a directory above it is copied as a
// whole, or is removed.
func (s *replay) covered(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if s.now[dir] == tree || s.gone[dir] && s.now[dir] == 0 {
			return true
		}
	}
	return false
}

// without returns the deleted names that were not created again as something other
// than a directory.
func without(deleted []string, made []wire.ManifestEntry) []string {
	again := map[string]bool{}
	for _, e := range made {
		again[string(e.Path)] = e.Type != "dir"
	}
	return slices.DeleteFunc(deleted, func(name string) bool { return again[name] })
}

// below returns name relative to repo if it is below repo and outside every .git.
func below(name, repo string) (string, bool) {
	if repo != "" {
		var ok bool
		if name, ok = strings.CutPrefix(name, repo+"/"); !ok {
			return "", false
		}
	}
	if !wire.IsNamePath(name) || name == "." {
		return "", false
	}
	for part := range strings.SplitSeq(name, "/") {
		if tarfs.IsGitDir(part) {
			return "", false
		}
	}
	return name, true
}
