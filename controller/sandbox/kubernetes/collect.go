package kubernetes

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"agentsh/controller/sandbox/remote"
)

// Labels of the objects of a sandbox. Their domain is the one that agent-sandbox lets claims give to
// pods: its controller (0.5.6) refuses others unless its operator allows them.
const (
	labelOwner = "sandbox.users.io/agentsh-owner" // the state directory of the controller
	labelRun   = "sandbox.users.io/agentsh-run"
)

// found lists the objects of an owner. What is being deleted is not among them, nor a pod that
// another object made: it goes with that.
func (b *Backend) found(ctx context.Context, owner string) ([]remote.Found, error) {
	var out []remote.Found
	opts := meta.ListOptions{LabelSelector: labelOwner + "=" + owner}
	for _, kind := range []schema.GroupVersionResource{claims, sandboxes, pods, policies} {
		list, err := b.in(kind).List(ctx, opts)
		if kind != pods && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) { // agent-sandbox is not there, or not for this user
			continue
		}
		if err != nil {
			return nil, b.explain("list "+kind.Resource, err)
		}
		for _, o := range list.Items {
			if o.GetDeletionTimestamp() == nil && meta.GetControllerOf(&o) == nil {
				out = append(out, remote.Found{
					Run: o.GetLabels()[labelRun], Remove: func(ctx context.Context) error { return b.remove(ctx, kind, o.GetName()) },
				})
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
