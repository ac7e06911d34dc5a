package controller

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

// takePlace is the file in which [target.take] notes the directory of packs that
// it writes to.
const takePlace = "objects"

// take brings branches of the host's fresh repository, which the agent's commits
// came to, into the target, with every object checked. branches maps their names
// there to those in the target. A branch that exists is an error.
//
// It does not use git fetch: a fetch that is killed leaves files of random names in
// the target. The pack is made and checked in dir, which must not exist, and comes
// into the target by renames. [undoTake] removes what a killed take left.
func (t target) take(ctx context.Context, scratch string, branches map[string]string, dir string) error {
	var revs, refs strings.Builder
	for _, from := range slices.Sorted(maps.Keys(branches)) {
		to := "refs/heads/" + branches[from]
		if _, err := t.git.run(ctx, t.dir, "rev-parse", "--verify", "--quiet", to); err == nil {
			return fmt.Errorf("branch %s exists in %s", branches[from], t.dir)
		}
		id, err := t.git.run(ctx, scratch, "rev-parse", "--verify", "refs/heads/"+from+"^{commit}")
		if err != nil {
			return fmt.Errorf("take commits: %w", err)
		}
		fmt.Fprintln(&revs, id)
		fmt.Fprintf(&refs, "create %s %s\n", to, id)
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		fmt.Fprintf(&revs, "^%s\n", t.head)
		err = t.takePack(ctx, scratch, revs.String(), dir)
	}
	if err == nil {
		_, err = t.git.feed(ctx, t.dir, refs.String(), "update-ref", "--stdin")
	}
	if err != nil {
		return fmt.Errorf("take commits: %w", errors.Join(err, undoTake(dir)))
	}
	return statedir.RemoveTree(dir)
}

// takePack makes a pack of the revisions, checks it and puts it into the target.
func (t target) takePack(ctx context.Context, scratch, revs, dir string) error {
	hash, err := t.git.feed(
		ctx,
		scratch,
		revs,
		"pack-objects",
		"--revs",
		"--non-empty",
		"--quiet",
		"--delta-base-offset",
		filepath.Join(dir, "pack"),
	)
	if err != nil || hash == "" { // the target has every object
		return err
	}
	pack := "pack-" + hash
	if _, err := t.git.run(ctx, scratch, "index-pack", "--strict", "-o", filepath.Join(dir, "checked.idx"), filepath.Join(dir,
		pack+".pack")); err != nil {
		return err
	}
	place, err := t.git.run(ctx, t.dir, "rev-parse", "--path-format=absolute", "--git-path", "objects/pack")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(place, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, takePlace), []byte(place), 0o600); err != nil {
		return err
	}
	for _, name := range []string{pack + ".pack", pack + ".idx"} { // git looks for the index
		if err := placeFile(filepath.Join(dir, name), place); err != nil {
			return err
		}
	}
	_, err = t.git.feed(ctx, t.dir, revs, "rev-list", "--quiet", "--objects", "--stdin") // nothing is missing
	return err
}

// unfinished is the name of a file until all of it is there. git gc knows it, too.
func unfinished(name string) string { return "tmp_" + name }

// placeFile copies a file into a directory, under its name when it is whole.
func placeFile(from, dir string) error {
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

// undoTake removes what [target.take] left unfinished in the target, then dir. A
// pack without its index is none to git.
func undoTake(dir string) error {
	place, err := os.ReadFile(filepath.Join(dir, takePlace))
	if errors.Is(err, fs.ErrNotExist) { // nothing came to the target
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
		if _, err := os.Lstat(filepath.Join(string(place), index)); errors.Is(err, fs.ErrNotExist) {
			names = append(names, pack)
		}
		for _, name := range names {
			if err := os.Remove(filepath.Join(string(place), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, statedir.RemoveTree(dir))...)
}
