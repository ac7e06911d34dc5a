package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Latest is the name of the newest one of a [Named].
const Latest = "latest"

// Named are things of one kind, as runs, each in a directory of its own below one.
type Named[T any] struct {
	Dir   string                       // where they are; it may not exist
	Many  string                       // what they are called, as "runs"
	None  error                        // begins the error of [Named.Find] where there is none
	Open  func(name string) (T, error) // reads one; [fs.ErrNotExist]: it is being made, or was just removed
	Newer func(a, b T) int             // orders them, the newest first
}

// Names are the names of their directories, sorted.
func (n Named[T]) Names() ([]string, error) {
	entries, err := os.ReadDir(n.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", n.Many, err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// List opens all, the newest first. It leaves out those that cannot be read; the error names
// each of them.
func (n Named[T]) List() ([]T, error) {
	all, err := n.Names()
	if err != nil {
		return nil, err
	}
	var out []T
	var errs []error
	for _, name := range all {
		one, err := n.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, n.Newer)
	return out, errors.Join(errs...)
}

// Find opens one by its name, by a unique beginning of it, or by [Latest].
func (n Named[T]) Find(name string) (one T, err error) {
	if name == Latest {
		all, err := n.List()
		if len(all) > 0 {
			return all[0], nil
		}
		return one, errors.Join(fmt.Errorf("%w: there is none", n.None), err)
	}
	all, err := n.Names()
	if err != nil {
		return one, err
	}
	found := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return !strings.HasPrefix(n, name) })
	if slices.Contains(all, name) {
		found = []string{name}
	}
	switch {
	case len(found) == 0 || name == "":
		return one, fmt.Errorf("%w: %.64q", n.None, name)
	case len(found) > 1:
		return one, fmt.Errorf("%d %s begin with %.64q: %s and %s", len(found), n.Many, name, found[0], found[1])
	}
	one, err = n.Open(found[0])
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s has no record: it is starting, or the agentctl that began it was killed", n.None, found[0])
	}
	return one, err
}
