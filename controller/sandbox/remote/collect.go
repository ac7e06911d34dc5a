package remote

import (
	"context"
	"errors"
	"maps"
	"slices"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/statedir"
)

// Sweep finds what killed controllers of this host left at a place that lists its objects, and on
// this host. Backends embed it.
type Sweep struct {
	State statedir.Dir // has the directories of sandboxes
	At    string       // the place, as [Owner]'s sandboxes name it
	Look  bool         // ask the place also where no sandbox here says that it has one there
	// Find lists the objects of an owner at the place, those that make others first.
	Find func(ctx context.Context, owner string) ([]Found, error)
}

// Found is an object of a run at a place: a container, a machine, a policy of the network.
type Found struct {
	Run    string
	Remove func(context.Context) error // an object that is gone is no error
}

// Collect implements [sandbox.Backend].
func (s *Sweep) Collect(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := s.there(ctx, false)
	here, hereErr := s.here().Collect(ctx)
	return merge(there, here), errors.Join(err, hereErr)
}

// Leftovers implements [sandbox.Backend].
func (s *Sweep) Leftovers(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := s.there(ctx, true)
	here, hereErr := s.here().Leftovers(ctx)
	return merge(there, here), errors.Join(err, hereErr)
}

// UsesImage implements [sandbox.Backend].
func (s *Sweep) UsesImage(dir string) (bool, error) { return s.here().UsesImage(dir) }

func (s *Sweep) here() *local.Backend { return local.New(local.Config{State: s.State}) }

// there removes the objects at the place whose controllers are gone.
func (s *Sweep) there(ctx context.Context, dryRun bool) ([]sandbox.Leftover, error) {
	_, dead, err := s.here().Elsewhere(s.At)
	if err != nil || len(dead) == 0 && !s.Look {
		return nil, err
	}
	owner, err := Owner(s.State)
	if err != nil {
		return nil, err
	}
	all, err := s.Find(ctx, owner)
	if err != nil {
		return nil, err
	}
	// Asked after the list: an object that was made since is not in it.
	live, _, err := s.here().Elsewhere(s.At)
	if err != nil {
		return nil, err
	}
	left := map[string]sandbox.Leftover{}
	for _, o := range all {
		if slices.Contains(live, o.Run) {
			continue
		}
		l := left[o.Run]
		l.ID, l.RunID = o.Run, o.Run
		if !dryRun {
			l.Err = errors.Join(l.Err, o.Remove(ctx))
		}
		left[o.Run] = l
	}
	var out []sandbox.Leftover
	for _, run := range slices.Sorted(maps.Keys(left)) {
		out = append(out, left[run])
	}
	return out, nil
}

// merge lists each sandbox once.
func merge(there, here []sandbox.Leftover) []sandbox.Leftover {
	seen := map[string]bool{}
	var out []sandbox.Leftover
	for _, l := range append(there, here...) {
		if !seen[l.ID] {
			seen[l.ID] = true
			out = append(out, l)
		}
	}
	return out
}
