package kubernetes

import (
	"slices"
	"strings"
	"testing"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// build makes the objects of a directory as 'kubectl apply -k' does. A field that Kubernetes does
// not know fails the test. Objects of agent-sandbox are left out: their types are in its cluster.
func build(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../"+dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var out []runtime.Object
	for _, r := range made.Resources() {
		if strings.HasSuffix(r.GetGvk().Group, "agents.x-k8s.io") {
			continue
		}
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := strict.Decode(text, nil, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", dir, err, text)
			continue
		}
		out = append(out, o)
	}
	return out
}

// find returns the only object of a type.
func find[T any](t *testing.T, all []runtime.Object) *T {
	t.Helper()
	var found *T
	for _, o := range all {
		if one, ok := o.(any).(*T); ok {
			if found != nil {
				t.Fatalf("two objects of %T", one)
			}
			found = one
		}
	}
	if found == nil {
		t.Fatalf("no object of %T", found)
	}
	return found
}

func TestManifestsAreThoseOfKubernetes(t *testing.T) {
	for dir, n := range map[string]int{
		"packaging/kubernetes": 7, "packaging/kubernetes/fuse": 1, "packaging/kubernetes/warm-pool": 0,
		"packaging/kubernetes/batch": 2, "examples/batch-in-cluster": 3,
	} {
		if all := build(t, dir); len(all) != n {
			t.Errorf("%s: %d objects, want %d", dir, len(all), n)
		}
	}
}

func TestTheJobOfABatchHasNoMoreRightsThanItNeeds(t *testing.T) {
	all := build(t, "examples/batch-in-cluster")
	job, files := find[batch.Job](t, all), find[core.ConfigMap](t, all)
	pod := job.Spec.Template.Spec
	if job.Namespace != "agentsh" || pod.ServiceAccountName != "agentctl" || files.Name != "agents" || files.Namespace != "agentsh" {
		t.Errorf("%s %s %s", job.Namespace, pod.ServiceAccountName, files.Name)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil ||
			!*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: %+v", c.Name, s)
		}
		if c.Image != "registry.example.com/agentctl:1" {
			t.Errorf("%s: image %s", c.Name, c.Image)
		}
	}
	if !*pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v", pod.SecurityContext)
	}
	// A pod that is made again must go on with the batch, and must not for what another attempt cannot mend.
	if !slices.Contains(pod.Containers[0].Args, "--once") || pod.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("%v %s", pod.Containers[0].Args, pod.RestartPolicy)
	}
	fails := job.Spec.PodFailurePolicy.Rules[0]
	if fails.Action != batch.PodFailurePolicyActionFailJob || !slices.Equal(fails.OnExitCodes.Values, []int32{1, 2, 5}) {
		t.Errorf("%+v", fails)
	}
	for _, name := range []string{"batch.yaml", "harness.yaml", "policy.yaml", "agent.md", "agentctl.yaml", "repository"} {
		if files.Data[name] == "" {
			t.Errorf("no %s", name)
		}
	}
}
