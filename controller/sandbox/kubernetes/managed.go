package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"agentsh/controller/sandbox"
)

// The objects of agent-sandbox.
var (
	sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}
	claims    = schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxclaims"}
	pools     = schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxwarmpools"}
)

const noAgentSandbox = "install agent-sandbox in the cluster (https://agent-sandbox.sigs.k8s.io), or " +
	"leave out kubernetes.agent_sandbox and warm_pool"

// checkPool checks that the warm pool exists.
func (b *Backend) checkPool(ctx context.Context, m sandbox.Managed) error {
	if m.WarmPool == "" {
		return nil
	}
	_, err := b.in(pools).Get(ctx, m.WarmPool, meta.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return &sandbox.End{
			Kind: sandbox.EndRefused, Text: fmt.Sprintf("namespace %s has no SandboxWarmPool %s", b.cluster.namespace, m.WarmPool),
			Hint: "'kubectl get sandboxwarmpools' lists them; " + noAgentSandbox,
		}
	case apierrors.IsForbidden(err): // the claim says more
		return nil
	}
	return b.explain("get SandboxWarmPool "+m.WarmPool, err)
}

// lifetime is the time from now after which agent-sandbox ends a sandbox whose controller does
// not renew it any more.
func (p *place) lifetime() string {
	after := startOf(p.spec.Container.Cluster.Times) + 2*p.b.cfg.Lease
	return time.Now().Add(after).UTC().Format(time.RFC3339)
}

// makeManaged makes the object of agent-sandbox that makes the pod.
func (p *place) makeManaged(ctx context.Context, t template) (meta.OwnerReference, error) {
	var o unstructured.Unstructured
	kind := p.kind()
	metadata := map[string]any{"labels": texts(t.labels), "annotations": texts(t.annotations)}
	if kind == claims {
		o.SetKind("SandboxClaim")
		o.Object["spec"] = map[string]any{
			"warmPoolRef":           map[string]any{"name": p.spec.Container.Cluster.Managed.WarmPool},
			"lifecycle":             map[string]any{"shutdownTime": p.lifetime(), "shutdownPolicy": "Delete"},
			"additionalPodMetadata": metadata,
		}
	} else {
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&t.spec)
		if err != nil {
			return meta.OwnerReference{}, err
		}
		o.SetKind("Sandbox")
		o.Object["spec"] = map[string]any{
			"podTemplate":  map[string]any{"metadata": metadata, "spec": spec},
			"shutdownTime": p.lifetime(), "shutdownPolicy": "Delete",
		}
	}
	o.SetAPIVersion(kind.GroupVersion().String())
	o.SetName(p.name())
	o.SetLabels(t.labels)
	made, err := p.b.in(kind).Create(ctx, &o, meta.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return meta.OwnerReference{}, &sandbox.End{
			Kind: sandbox.EndRefused, Text: "the cluster has no " + o.GetKind(), Hint: noAgentSandbox, Err: err,
		}
	}
	if err != nil {
		return meta.OwnerReference{}, p.b.explain("make "+o.GetKind(), err)
	}
	return meta.OwnerReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: made.GetName(), UID: made.GetUID()}, nil
}

func texts(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// kind is the object of agent-sandbox that makes the pod; zero: none.
func (p *place) kind() schema.GroupVersionResource {
	switch m := p.spec.Container.Cluster.Managed; {
	case m.WarmPool != "":
		return claims
	case m.Sandbox:
		return sandboxes
	}
	return schema.GroupVersionResource{}
}

// refused returns the end of an object that agent-sandbox makes no pod of; nil: it makes one, or may
// yet. made is the pod.
func (p *place) refused(ctx context.Context, made *core.Pod) error {
	if made != nil || p.kind().Resource == "" {
		return nil
	}
	o, err := p.b.in(p.kind()).Get(ctx, p.name(), meta.GetOptions{})
	if err != nil {
		return nil // asked again at the next interval
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions") // none if it is of another shape
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		reason, _ := c["reason"].(string)
		if c["type"] == "Ready" && c["status"] == "False" && strings.HasPrefix(reason, "Invalid") {
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: fmt.Sprintf("agent-sandbox refuses the %s: %v", o.GetKind(), c["message"]),
				Hint: "'kubectl describe " + p.kind().Resource + " " + p.name() + "' says more",
			}
		}
	}
	return nil
}

// startRenewing renews the lifetime of the object until stopRenewing.
func (p *place) startRenewing(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { // ends with cancel
		defer close(done)
		p.renew(ctx)
	}()
	p.renewing = func() { cancel(); <-done }
}

func (p *place) stopRenewing() {
	if p.renewing != nil {
		p.renewing()
		p.renewing = nil
	}
}

// renew renews the lifetime of the object until ctx ends. A renewal that fails is tried again at
// the next interval: the lifetime is that of several.
func (p *place) renew(ctx context.Context) {
	tick := time.NewTicker(p.b.cfg.Lease / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		spec := map[string]any{"shutdownTime": p.lifetime()}
		if p.kind() == claims {
			spec = map[string]any{"lifecycle": spec}
		}
		patch, err := json.Marshal(map[string]any{"spec": spec})
		if err != nil {
			return // a map of texts
		}
		_, _ = p.b.in(p.kind()).Patch(ctx, p.name(), types.MergePatchType, patch, meta.PatchOptions{})
	}
}

// errNoPlaceForProgram is the error of a pod of a pool in which the program has no directory.
var errNoPlaceForProgram = errors.New("no container of the pod has a volume at " + dirInside +
	": add an emptyDir there to the template of the pool, as packaging/kubernetes/warm-pool has it")

// containerOf returns the container in which the sandbox is, and whether the program is there
// already.
func containerOf(pod *core.Pod) (name string, has bool, err error) {
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPath != dirInside {
				continue
			}
			for _, i := range pod.Spec.InitContainers {
				for _, of := range i.VolumeMounts {
					has = has || of.Name == m.Name
				}
			}
			return c.Name, has, nil
		}
	}
	return "", false, errNoPlaceForProgram
}
