package kubernetes

import (
	"context"
	"errors"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
)

// Labels of the objects of a sandbox.
const (
	labelOwner = "agentsh.owner" // the state directory of the controller
	labelRun   = "agentsh.run"
)

// Collect implements [sandbox.Backend].
func (b *Backend) Collect(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, false)
	here, hereErr := b.here.Collect(ctx)
	return remote.Merge(there, here), errors.Join(err, hereErr)
}

// Leftovers implements [sandbox.Backend].
func (b *Backend) Leftovers(ctx context.Context) ([]sandbox.Leftover, error) {
	there, err := b.collect(ctx, true)
	here, hereErr := b.here.Leftovers(ctx)
	return remote.Merge(there, here), errors.Join(err, hereErr)
}

// found is an object of a sandbox.
type found struct {
	run    string
	remove func(context.Context) error
}

// collect removes the objects of this host whose controllers are gone.
func (b *Backend) collect(ctx context.Context, dryRun bool) ([]sandbox.Leftover, error) {
	_, dead, err := b.here.Elsewhere(b.at())
	if err != nil || len(dead) == 0 && !b.cfg.Look {
		return nil, err
	}
	owner, err := remote.Owner(b.cfg.State)
	if err != nil {
		return nil, err
	}
	all, err := b.objects(ctx, labelOwner+"="+owner)
	if err != nil {
		return nil, err
	}
	// Asked after the list: an object that was made since is not in it.
	live, _, err := b.here.Elsewhere(b.at())
	if err != nil {
		return nil, err
	}
	left := map[string]sandbox.Leftover{}
	for _, o := range all {
		if slices.Contains(live, o.run) {
			continue
		}
		l := left[o.run]
		l.ID, l.RunID = o.run, o.run
		if !dryRun {
			l.Err = errors.Join(l.Err, o.remove(ctx))
		}
		left[o.run] = l
	}
	var out []sandbox.Leftover
	for _, run := range slices.Sorted(maps.Keys(left)) {
		out = append(out, left[run])
	}
	return out, nil
}

// objects are the objects with a label, those that make others first. What is being deleted is
// not among them.
func (b *Backend) objects(ctx context.Context, label string) ([]found, error) {
	var out []found
	opts := meta.ListOptions{LabelSelector: label}
	for _, kind := range []schema.GroupVersionResource{claims, sandboxes, pods, policies} {
		list, err := b.in(kind).List(ctx, opts)
		if kind != pods && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) { // agent-sandbox is not there, or not for this user
			continue
		}
		if err != nil {
			return nil, b.explain("list "+kind.Resource, err)
		}
		for _, o := range list.Items {
			if o.GetDeletionTimestamp() == nil {
				out = append(out, found{o.GetLabels()[labelRun], func(ctx context.Context) error { return b.remove(ctx, kind, o.GetName()) }})
			}
		}
	}
	return out, nil
}

// remove deletes an object. One that is gone is no error.
func (b *Backend) remove(ctx context.Context, kind schema.GroupVersionResource, name string) error {
	err := b.in(kind).Delete(ctx, name, meta.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return b.explain("delete "+name+" of "+kind.Resource, err)
}
