package kubernetes

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
)

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	p := &place{b: b, spec: sandbox.Spec{RunID: runID}}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	taken, err := remote.New(p.remote()).Take(ctx, runID)
	if err != nil { // the objects stay
		p.stopRenewing()
		return nil, err
	}
	return taken, nil
}

// find finds the pod of a run, and the object that made it.
func (p *place) find(ctx context.Context) error {
	owner, err := remote.Owner(p.b.cfg.State)
	if err != nil {
		return err
	}
	list, _, err := p.b.listPods(ctx, meta.ListOptions{LabelSelector: labelOwner + "=" + owner + "," + labelRun + "=" + p.spec.RunID})
	if err != nil {
		return p.b.explain("list pods", err)
	}
	if len(list) != 1 {
		return errors.New("its pod is no more")
	}
	if running, err := isRunning(list[0]); err != nil || !running {
		return errors.Join(errors.New("its pod does not run"), err)
	}
	container, _, err := containerOf(list[0])
	if err != nil {
		return err
	}
	for _, kind := range []schema.GroupVersionResource{claims, sandboxes} {
		_, err := p.b.in(kind).Get(ctx, p.name(), meta.GetOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return p.b.explain("get "+kind.Resource, err)
		}
		m := &p.spec.Container.Cluster.Managed
		if m.Sandbox = true; kind == claims {
			m.WarmPool = p.name() // any name: it selects the kind of the object
		}
		p.startRenewing(ctx)
		break
	}
	p.asked, p.pod = true, pod{list[0].Name, container, list[0].UID}
	return nil
}

var _ sandbox.Taker = (*Backend)(nil)
