package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/internal/statedir"
)

// packDirFile is the file in which [Clone.Deliver] records the repository's
// directory of packs before it writes there.
const packDirFile = "objects"

// Deliver creates branches of the clone in the source repository, with every
// object checked. branches maps their names in the clone to those in the
// repository. An existing branch is an error.
//
// It does not use git fetch: a killed fetch leaves files with random names in
// the repository. The pack is made and checked in dir, which must not exist,
// and renamed into the repository. [Undo] removes the files of a killed
// Deliver.
func (c Clone) Deliver(ctx context.Context, branches map[string]string, dir string) error {
	var revs, refs strings.Builder
	repo := c.Source
	for _, from := range slices.Sorted(maps.Keys(branches)) {
		to := "refs/heads/" + branches[from]
		if _, err := repo.git.Run(ctx, repo.Dir, "rev-parse", "--verify", "--quiet", to); err == nil {
			return fmt.Errorf("branch %s exists in %s", branches[from], repo.Dir)
		}
		id, err := repo.git.Run(ctx, c.Dir, "rev-parse", "--verify", "refs/heads/"+from+"^{commit}")
		if err != nil {
			return fmt.Errorf("deliver commits: %w", err)
		}
		fmt.Fprintln(&revs, id)
		fmt.Fprintf(&refs, "create %s %s\n", to, id)
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		fmt.Fprintf(&revs, "^%s\n", repo.Head)
		err = c.deliverPack(ctx, revs.String(), dir)
	}
	if err == nil {
		_, err = repo.git.Feed(ctx, repo.Dir, refs.String(), "update-ref", "--stdin")
	}
	if err != nil {
		return fmt.Errorf("deliver commits: %w", errors.Join(err, Undo(dir)))
	}
	return statedir.RemoveTree(dir)
}

// Bundle writes branches of the clone into a bundle, which must not exist. It needs no commit that the repository does not have.
func (c Clone) Bundle(ctx context.Context, branches []string, file string) error {
	args := append([]string{"bundle", "create", "--quiet", file}, branches...)
	if _, err := c.Source.git.Run(ctx, c.Source.Dir, "cat-file", "-e", c.Source.Head+"^{commit}"); err == nil {
		args = append(args, "^"+c.Source.Head)
	}
	if _, err := c.Source.git.Run(ctx, c.Dir, args...); err != nil {
		return fmt.Errorf("keep the commits in a bundle: %w", err)
	}
	return nil
}

// deliverPack makes a pack of the revisions, checks it and moves it into the
// repository.
func (c Clone) deliverPack(ctx context.Context, revs, dir string) error {
	repo, git := c.Source, c.Source.git
	hash, err := git.Feed(ctx, c.Dir, revs, "pack-objects", "--revs", "--non-empty", "--quiet", "--delta-base-offset",
		filepath.Join(dir, "pack"))
	if err != nil || hash == "" { // empty: the repository has every object
		return err
	}
	pack := "pack-" + hash
	if _, err := git.Run(ctx, c.Dir, "index-pack", "--strict", "-o", filepath.Join(dir, "checked.idx"),
		filepath.Join(dir, pack+".pack")); err != nil {
		return err
	}
	packDir, err := git.Run(ctx, repo.Dir, "rev-parse", "--path-format=absolute", "--git-path", "objects/pack")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(packDir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, packDirFile), []byte(packDir), 0o600); err != nil {
		return err
	}
	for _, name := range []string{pack + ".pack", pack + ".idx"} { // git looks for the index
		if err := installFile(filepath.Join(dir, name), packDir); err != nil {
			return err
		}
	}
	_, err = git.Feed(ctx, repo.Dir, revs, "rev-list", "--quiet", "--objects", "--stdin") // fails if an object is missing
	return err
}

// unfinished is the name of an incomplete file. git gc also removes files with
// such names.
func unfinished(name string) string { return "tmp_" + name }

// installFile copies a file into a directory. Its final name appears only when
// the copy is complete.
func installFile(from, dir string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := filepath.Join(dir, unfinished(filepath.Base(from)))
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, filepath.Base(from)))
}

// Undo removes the unfinished files of [Clone.Deliver] from the repository,
// then removes dir. Git ignores a pack without its index.
func Undo(dir string) error {
	packDir, err := os.ReadFile(filepath.Join(dir, packDirFile))
	if errors.Is(err, fs.ErrNotExist) { // nothing was written to the repository
		return statedir.RemoveTree(dir)
	}
	if err != nil {
		return err
	}
	packs, err := filepath.Glob(filepath.Join(dir, "pack-*.pack"))
	errs := []error{err}
	for _, pack := range packs {
		pack = filepath.Base(pack)
		index := strings.TrimSuffix(pack, ".pack") + ".idx"
		names := []string{unfinished(pack), unfinished(index)}
		if _, err := os.Lstat(filepath.Join(string(packDir), index)); errors.Is(err, fs.ErrNotExist) {
			names = append(names, pack)
		}
		for _, name := range names {
			if err := os.Remove(filepath.Join(string(packDir), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, statedir.RemoveTree(dir))...)
}

// RemoveBranches removes the branches of a repository whose names begin with a name.
func (g Tool) RemoveBranches(ctx context.Context, repo, name string) error {
	prefix := "refs/heads/" + name
	found, err := g.Run(ctx, repo, "for-each-ref", "--format=delete %(refname) %(objectname)", prefix+"*", prefix+"*/**")
	if err != nil || found == "" {
		return err
	}
	_, err = g.Feed(ctx, repo, found+"\n", "update-ref", "--stdin")
	return err
}
