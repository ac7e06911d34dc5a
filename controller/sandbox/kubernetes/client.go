package kubernetes

import (
	"context"
	"fmt"
	"net/url"

	auth "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// The objects that this package makes and reads. The clients with a type for each object would
// bring the types of all objects of Kubernetes into the program: 20 MB.
var (
	pods     = core.SchemeGroupVersion.WithResource("pods")
	events   = core.SchemeGroupVersion.WithResource("events")
	policies = networking.SchemeGroupVersion.WithResource("networkpolicies")
	reviews  = auth.SchemeGroupVersion.WithResource("selfsubjectaccessreviews")
)

// in are the objects of a kind in the namespace.
func (b *Backend) in(kind schema.GroupVersionResource) dynamic.ResourceInterface {
	return b.dynamic.Resource(kind).Namespace(b.cluster.namespace)
}

// untyped is an object in the form that is sent.
func untyped(kind schema.GroupVersion, name string, o any) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("describe a %s: %w", name, err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind.WithKind(name))
	delete(u.Object, "status")
	return u, nil
}

// typed is an object that was received.
func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("answer of the API server about %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

// listPods lists pods.
func (b *Backend) listPods(ctx context.Context, o meta.ListOptions) (list []*core.Pod, version string, err error) {
	got, err := b.in(pods).List(ctx, o)
	if err != nil {
		return nil, "", err
	}
	for i := range got.Items {
		p, err := typed[core.Pod](&got.Items[i])
		if err != nil {
			return nil, "", err
		}
		list = append(list, p)
	}
	return list, got.GetResourceVersion(), nil
}

// getPod returns a pod.
func (b *Backend) getPod(ctx context.Context, name string) (*core.Pod, error) {
	got, err := b.in(pods).Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[core.Pod](got)
}

// makePod makes a pod and returns its UID.
func (b *Backend) makePod(ctx context.Context, p *core.Pod) (types.UID, error) {
	o, err := untyped(core.SchemeGroupVersion, "Pod", p)
	if err != nil {
		return "", err
	}
	made, err := b.in(pods).Create(ctx, o, meta.CreateOptions{})
	if err != nil {
		return "", b.explain("make a pod", err)
	}
	return made.GetUID(), nil
}

// makePolicy makes a network policy.
func (b *Backend) makePolicy(ctx context.Context, p *networking.NetworkPolicy) error {
	o, err := untyped(networking.SchemeGroupVersion, "NetworkPolicy", p)
	if err != nil {
		return err
	}
	_, err = b.in(policies).Create(ctx, o, meta.CreateOptions{})
	return b.explain("make a network policy", err)
}

// allowed reports whether this user has a right in the namespace.
func (b *Backend) allowed(ctx context.Context, r right) (bool, error) {
	o, err := untyped(auth.SchemeGroupVersion, "SelfSubjectAccessReview", &auth.SelfSubjectAccessReview{
		Spec: auth.SelfSubjectAccessReviewSpec{ResourceAttributes: &auth.ResourceAttributes{
			Namespace: b.cluster.namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.part,
		}},
	})
	if err != nil {
		return false, err
	}
	got, err := b.dynamic.Resource(reviews).Create(ctx, o, meta.CreateOptions{})
	if err != nil {
		return false, b.explain("ask for the rights of this user", err)
	}
	review, err := typed[auth.SelfSubjectAccessReview](got)
	return err == nil && review.Status.Allowed, err
}

// execURL is the address of a command in a pod.
func (b *Backend) execURL(p pod, argv []string) (*url.URL, error) {
	base, version, err := rest.DefaultServerURL(b.cluster.rest.Host, "/api", core.SchemeGroupVersion, true)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	u := base.JoinPath(version, "namespaces", b.cluster.namespace, "pods", p.name, "exec")
	u.RawQuery = url.Values{
		"container": {p.container}, "command": argv, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	}.Encode()
	return u, nil
}
