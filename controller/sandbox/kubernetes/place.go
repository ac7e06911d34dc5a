package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
)

// place is the pod of one sandbox. It is made when the first stream is opened.
type place struct {
	b    *Backend
	spec sandbox.Spec

	mu       sync.Mutex
	asked    bool // the cluster may have objects of the sandbox
	pod      pod  // zero: it does not run yet
	digest   string
	renewing func() // ends the renewal and waits for it; nil: there is none
}

// pod is a running pod.
type pod struct {
	name, container string
	uid             types.UID
}

// String implements [remote.Carrier].
func (p *place) String() string { return p.b.at() }

// Shell implements [remote.Carrier]. agentsh itself is started, without a shell.
func (p *place) Shell() bool { return false }

// Check implements [remote.Carrier].
func (p *place) Check() error { return nil }

// remote configures how the sandbox is made in the pod.
func (p *place) remote() remote.Config {
	return remote.Config{
		Name: Name, Carrier: p, State: p.b.cfg.State, Lease: p.b.cfg.Lease, Release: p.remove, Image: p.image,
	}
}

// name is that of all objects of the sandbox.
func (p *place) name() string { return "agentsh-" + strings.ToLower(p.spec.RunID) }

// image returns the digest of the image that the pod has.
func (p *place) image() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.digest, p.digest != ""
}

// Open implements [remote.Carrier].
func (p *place) Open(ctx context.Context) (remote.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pod.name == "" {
		if err := p.make(ctx); err != nil {
			return nil, errors.Join(err, p.removeMade(ctx))
		}
	}
	return p.b.exec(p.pod)
}

// removeTime bounds the removal of the objects of a sandbox.
const removeTime = 30 * time.Second

// remove removes the objects of the sandbox.
func (p *place) remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removeMade(ctx)
}

func (p *place) removeMade(ctx context.Context) error {
	p.stopRenewing()
	if !p.asked {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	kind := p.kind()
	if kind.Resource == "" {
		kind = pods
	}
	err := p.removeObject(ctx, kind)
	if !p.spec.Container.Cluster.Open {
		err = errors.Join(err, p.removeObject(ctx, policies))
	}
	if err == nil {
		p.asked, p.pod = false, pod{}
	}
	return err
}

// removeObject removes an object of the sandbox. An API server that starts is asked again until ctx ends.
func (p *place) removeObject(ctx context.Context, kind schema.GroupVersionResource) error {
	for {
		err := p.b.remove(ctx, kind, p.name())
		if err == nil || !passes(err) && !isDenied(err) || !pause(ctx, retryWait) {
			return err
		}
	}
}

// defaultStart is the time for a node to be found, and for it to get the images.
const defaultStart = 5 * time.Minute

func startOf(t sandbox.ClusterTimes) time.Duration { return cmp.Or(t.Start, defaultStart) }

// make makes the pod and waits until it runs and has the program.
func (p *place) make(ctx context.Context) error {
	owner, err := remote.Owner(p.b.cfg.State)
	if err != nil {
		return err
	}
	labels := map[string]string{labelOwner: owner, labelRun: p.spec.RunID}
	t, err := describe(p.spec.Container, labels, p.b.cfg.Lease)
	if err != nil {
		return err
	}
	p.asked = true
	if err := p.makeObjects(ctx, t, labels); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startOf(p.spec.Container.Cluster.Times))
	defer cancel()
	running, err := p.waitRunning(ctx)
	if err != nil {
		return err
	}
	container, has, err := containerOf(running)
	if err != nil {
		return err
	}
	at := pod{running.Name, container, running.UID}
	if !has {
		if err := p.b.push(ctx, at); err != nil {
			return fmt.Errorf("send agentsh to pod %s: %w", at.name, err)
		}
	}
	for _, s := range running.Status.ContainerStatuses {
		if s.Name == container {
			p.digest = digestOf(s.ImageID)
		}
	}
	p.pod = at
	return nil
}

// makeObjects makes the objects of the sandbox. The network of the pod is closed before there
// is a pod.
func (p *place) makeObjects(ctx context.Context, t template, labels map[string]string) error {
	c := p.spec.Container
	if !c.Cluster.Open {
		n := networkPolicy(p.name(), labels, map[string]string{labelRun: p.spec.RunID}, c)
		if err := p.b.makePolicy(ctx, n); err != nil {
			return err
		}
	}
	by := meta.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.name()}
	var err error
	if p.kind().Resource != "" {
		by, err = p.makeManaged(ctx, t)
	} else {
		by.UID, err = p.b.makePod(ctx, &core.Pod{ObjectMeta: t.object(p.name()), Spec: t.spec})
	}
	if err != nil {
		return err
	}
	if p.kind().Resource != "" {
		p.startRenewing(ctx)
	}
	if c.Cluster.Open {
		return nil
	}
	return p.own(ctx, by)
}

// own has the cluster delete the network policy after its owner.
func (p *place) own(ctx context.Context, by meta.OwnerReference) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []meta.OwnerReference{by}}})
	if err != nil {
		return err
	}
	_, err = p.b.in(policies).Patch(ctx, p.name(), types.MergePatchType, patch, meta.PatchOptions{})
	return p.b.explain("give the network policy to its pod", err)
}

// eventInterval is how often the events of a pod that does not run are looked at.
const eventInterval = 3 * time.Second

// waitRunning waits until the container of a run's pod runs.
func (p *place) waitRunning(ctx context.Context) (*core.Pod, error) {
	b, run := p.b, p.spec.RunID
	var last *core.Pod
	for {
		list, version, err := b.listPods(ctx, meta.ListOptions{LabelSelector: labelRun + "=" + run})
		if err == nil {
			for _, last = range list {
				if done, err := isRunning(last); done || err != nil {
					return last, err
				}
			}
			if err := errors.Join(b.eventsOf(ctx, last), p.refused(ctx, last)); err != nil {
				return nil, err
			}
			last, err = b.watch(ctx, run, version, last)
			if last != nil && err == nil {
				if done, err := isRunning(last); done || err != nil {
					return last, err
				}
			}
		}
		if ctx.Err() != nil {
			return nil, b.neverRan(context.WithoutCancel(ctx), last, ctx.Err())
		}
		if err != nil && !passes(err) {
			return nil, b.explain("watch the pod", err)
		}
		if err != nil && !pause(ctx, retryWait) {
			return nil, b.neverRan(context.WithoutCancel(ctx), last, err)
		}
	}
}

// retryWait is the time between requests to an API server that does not answer.
const retryWait = time.Second

func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch watches the pod of a run until it runs or cannot, for a short time. It returns the pod as it
// was last.
func (b *Backend) watch(ctx context.Context, run, version string, last *core.Pod) (*core.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, eventInterval)
	defer cancel()
	w, err := b.in(pods).Watch(ctx, meta.ListOptions{LabelSelector: labelRun + "=" + run, ResourceVersion: version})
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return last, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case e, ok := <-w.ResultChan():
			o, is := e.Object.(*unstructured.Unstructured)
			if !ok || !is || o.GetKind() != "Pod" { // listing it again says more
				return last, nil
			}
			if last, err = typed[core.Pod](o); err != nil {
				return nil, err
			}
			if done, err := isRunning(last); done || err != nil {
				return last, nil
			}
		}
	}
}

// isRunning reports whether the container of a pod runs. The error is an end that leaves no
// hope for it.
func isRunning(p *core.Pod) (bool, error) {
	if p.DeletionTimestamp != nil || p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded {
		return false, endOf(p)
	}
	if end := hopeless(p); end != nil {
		return false, end
	}
	name, _, err := containerOf(p)
	if err != nil {
		return false, err
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == name && s.State.Running != nil {
			return true, nil
		}
	}
	return false, nil
}

// passes reports whether an API server may answer again.
func passes(err error) bool {
	return apierrors.ReasonForError(err) == meta.StatusReasonUnknown || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		apierrors.IsResourceExpired(err)
}
