package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"agentsh/controller/sandbox"
	"agentsh/policy"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: here
clusters:
  - {name: one, cluster: {server: "https://one:6443"}}
  - {name: two, cluster: {server: "https://two/prefix"}}
  - {name: clear, cluster: {server: "http://three:8080"}}
  - {name: near, cluster: {server: "http://127.0.0.1:8080"}}
  - {name: blind, cluster: {server: "https://four", insecure-skip-tls-verify: true}}
users: [{name: me, user: {token: t}}]
contexts:
  - {name: here, context: {cluster: one, user: me, namespace: agents}}
  - {name: "arn:x/y", context: {cluster: two, user: me}}
  - {name: clear, context: {cluster: clear, user: me}}
  - {name: near, context: {cluster: near, user: me}}
  - {name: blind, context: {cluster: blind, user: me}}
`

func TestAddressesOfClusters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
	for _, tt := range []struct{ address, host, namespace, err string }{
		{"", "https://one:6443", "agents", ""},
		{"namespace:other", "https://one:6443", "other", ""},
		{"context:here/third", "https://one:6443", "third", ""},
		{"context:arn:x/y", "https://two/prefix", "default", ""},
		{"context:arn:x/y/z", "https://two/prefix", "z", ""},
		{"context:near", "http://127.0.0.1:8080", "default", ""},
		{"context:clear", "", "", "has no TLS: write https://"},
		{"context:blind", "", "", "insecure-skip-tls-verify"},
		{"context:none", "", "", `no context "none"`},
		{"context:here/", "", "", `no context "here/"`},
		{"tcp://x", "", "", "is no address of a cluster"},
		{"in-cluster:", "", "", "this process runs in no pod"},
	} {
		got, err := find(tt.address, os.Getenv)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.address, err, tt.err)
			}
		case err != nil || got.rest.Host != tt.host || got.namespace != tt.namespace:
			t.Errorf("%s: %+v, %v", tt.address, got, err)
		}
	}
}

func TestAPodOfAUserHasNoRights(t *testing.T) {
	s := sandbox.Container{Image: sandbox.Image{ID: "x@sha256:1"}, MemoryMB: 512, CPUs: 1.5, DiskMB: 100, Mounts: []sandbox.Mount{
		{Source: "cache", Target: "/cache"}, {Source: "cache", Target: "/again", Writable: true},
	}}
	s.Cluster.FUSEDevice = "example.com/fuse"
	s.Cluster.Requests.MemoryMB = 100
	s.Cluster.Place.Tolerations = []sandbox.Toleration{{Effect: "NoExecute", Seconds: 5}}
	s.Cluster.Times.Most = time.Minute
	got, err := describe(s, map[string]string{labelRun: "1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got.spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"hostUsers":false`, `"automountServiceAccountToken":false`, `"enableServiceLinks":false`, `"restartPolicy":"Never"`,
		`"capabilities":{"drop":["ALL"]},"runAsUser":1000,"runAsGroup":1000,"runAsNonRoot":true,"allowPrivilegeEscalation":false,"procMount":"Unmasked"`,
		`"seccompProfile":{"type":"Localhost","localhostProfile":"agentsh/seccomp-user.json"}`, `"activeDeadlineSeconds":60`,
		`"limits":{"cpu":"1500m","ephemeral-storage":"100Mi","example.com/fuse":"1","memory":"512Mi"},"requests":{"memory":"100Mi"}`,
		`"tolerations":[{"operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]`,
		`{"name":"claim-0","readOnly":true,"mountPath":"/cache"},{"name":"claim-0","mountPath":"/again"}`, `"command":["/bin/sh","-c",`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	s.User, s.Cluster.Program.Image, s.Cluster.Shared = "0", "agentsh:1", true
	got, err = describe(s, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	main, first := got.spec.Containers[0], got.spec.InitContainers[0]
	rights := main.SecurityContext
	if got.spec.HostUsers != nil || rights.ProcMount != nil || *rights.SeccompProfile.LocalhostProfile != seccompRoot ||
		!main.VolumeMounts[0].ReadOnly || first.VolumeMounts[0].ReadOnly || main.Command[0] != program || first.Image != "agentsh:1" {
		t.Errorf("%+v\n%+v", main, first)
	}
	s.User = "node"
	if _, err := describe(s, nil, time.Minute); err == nil || !strings.Contains(err.Error(), "a pod has no user by name") {
		t.Error(err)
	}
	for _, m := range []sandbox.Mount{{Source: "/usr", Target: "/x"}, {Source: "x", Target: "/proc/1"}, {Source: "x", Target: "/"}} {
		if checkMounts([]sandbox.Mount{m}) == nil {
			t.Errorf("%+v is a mount", m)
		}
	}
}

func TestANetworkPolicyLeavesTheWaysOutOfThePolicy(t *testing.T) {
	text := func(c sandbox.Container) string {
		data, err := json.Marshal(networkPolicy("n", nil, map[string]string{labelRun: "1"}, c).Spec)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	const closed = `{"podSelector":{"matchLabels":{"sandbox.users.io/agentsh-run":"1"}},"policyTypes":["Ingress","Egress"]}`
	if got := text(sandbox.Container{}); got != closed {
		t.Errorf("nothing allowed: %s", got)
	}
	c := sandbox.Container{Ways: sandbox.Ways{Names: true, To: []policy.Way{
		{Ports: []policy.PortRange{{Low: 443, High: 443}, {Low: 8000, High: 8999}}}, {Network: netip.MustParsePrefix("10.1.2.3/16")},
	}}}
	got := text(c)
	for _, want := range []string{
		`{"protocol":"UDP","port":53}`, `"kubernetes.io/metadata.name":"kube-system"`, `{"protocol":"TCP","port":443},{"protocol":"TCP","port":8000,"endPort":8999}`,
		`{"cidr":"0.0.0.0/0","except":["127.0.0.0/8"`, `"10.0.0.0/8"`, `"169.254.169.254/32"`, `{"cidr":"::/0","except":["::1/128"`, `"fc00::/7"`,
		`{"ports":[{"protocol":"TCP"}],"to":[{"ipBlock":{"cidr":"10.1.0.0/16"}}]}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	c.Network = "none"
	if got := text(c); got != closed {
		t.Errorf("no network: %s", got)
	}
}

func status(change func(*core.Pod)) *core.Pod {
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "p"}, Status: core.PodStatus{Phase: core.PodRunning}}
	p.Spec.Containers = []core.Container{{Name: containerName, VolumeMounts: []core.VolumeMount{{Name: volumeName, MountPath: dirInside}}}}
	change(p)
	return p
}

func disrupted(reason string) func(*core.Pod) {
	return func(p *core.Pod) {
		p.DeletionTimestamp = &meta.Time{}
		p.Status.Conditions = []core.PodCondition{{Type: core.DisruptionTarget, Status: core.ConditionTrue, Reason: reason, Message: "why"}}
	}
}

func terminated(reason string, code int32) func(*core.Pod) {
	return func(p *core.Pod) {
		p.Status.Phase = core.PodFailed
		p.Status.ContainerStatuses = []core.ContainerStatus{{
			Name: containerName, State: core.ContainerState{Terminated: &core.ContainerStateTerminated{Reason: reason, ExitCode: code}},
		}}
	}
}

func failed(reason, message string) func(*core.Pod) {
	return func(p *core.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = core.PodFailed, reason, message
	}
}

func TestEndsOfPodsAreNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*core.Pod)
		want   sandbox.EndKind
		text   string
	}{
		"runs":               {func(*core.Pod) {}, "", ""},
		"evicted for disk":   {failed("Evicted", "The node was low on resource: ephemeral-storage."), sandbox.EndEvicted, "low on resource"},
		"evicted by API":     {disrupted("EvictionByEvictionAPI"), sandbox.EndEvicted, "somebody empties its node"},
		"preempted":          {disrupted("PreemptionByScheduler"), sandbox.EndPreempted, "higher priority"},
		"for a critical one": {failed("Preempting", "Preempted in order to admit critical pod"), sandbox.EndPreempted, "higher priority"},
		"node is tainted":    {disrupted("DeletionByTaintManager"), sandbox.EndNode, "its node did not answer"},
		"node is no more":    {disrupted("DeletionByPodGC"), sandbox.EndNode, "its node is no more"},
		"node shuts down":    {disrupted("TerminationByKubelet"), sandbox.EndEvicted, "ended by its node"},
		"memory":             {terminated("OOMKilled", 137), sandbox.EndMemory, "memory was full"},
		"ended by itself":    {terminated("Completed", 0), sandbox.EndDied, "ended with status 0"},
		"too long":           {failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), sandbox.EndExpired, "as long as it may"},
		"not yet reported as that": {func(p *core.Pod) { // the node reports the end of the container first
			terminated("Completed", 0)(p)
			start := meta.NewTime(time.Unix(1000, 0))
			seconds := int64(20)
			p.Status.StartTime, p.Spec.ActiveDeadlineSeconds = &start, &seconds
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = meta.NewTime(time.Unix(1020, 0))
		}, sandbox.EndExpired, "as long as it may"},
		"refused by a node": {failed("UnexpectedAdmissionError", "Allocate failed due to no devices"), sandbox.EndRefused, "Allocate failed"},
		"deleted":           {func(p *core.Pod) { p.DeletionTimestamp = &meta.Time{} }, sandbox.EndKilled, "deleted by somebody"},
	} {
		end := endOf(status(tt.change))
		switch {
		case tt.want == "" && end != nil:
			t.Errorf("%s: %+v", name, end)
		case tt.want != "" && (end == nil || end.Kind != tt.want || !strings.Contains(end.Text, tt.text) ||
			!strings.HasPrefix(end.Text, "pod p ")):
			t.Errorf("%s: %+v, want %s and %q", name, end, tt.want, tt.text)
		}
	}
	waiting := func(reason, message string) func(*core.Pod) {
		return func(p *core.Pod) {
			p.Status.ContainerStatuses = []core.ContainerStatus{{
				Name: containerName, Image: "img", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: reason, Message: message}},
			}}
		}
	}
	for _, tt := range []struct {
		reason, message string
		want            sandbox.EndKind
		hint            string
	}{
		{"ContainerCreating", "", "", ""},
		{"ErrImagePull", "connection reset", "", ""}, // it is tried again
		{"ImagePullBackOff", "not found", sandbox.EndImage, "image_pull_secrets"},
		{"InvalidImageName", "invalid reference format", sandbox.EndImage, "check its name"},
		{"CreateContainerError", "cannot load seccomp profile /x: no such file", sandbox.EndRefused, "kubectl apply -k packaging/kubernetes"},
		{"RunContainerError", `exec: "/bin/sh": no such file`, sandbox.EndRefused, "kubernetes.agentsh_image"},
		{"CreateContainerError", "user namespaces are not supported", sandbox.EndRefused, "user_namespace: false"},
	} {
		end := hopeless(status(waiting(tt.reason, tt.message)))
		if tt.want == "" && end != nil || tt.want != "" && (end == nil || end.Kind != tt.want || !strings.Contains(end.Hint, tt.hint)) {
			t.Errorf("%s: %+v", tt.reason, end)
		}
	}
}

func TestErrorsOfTheAPIServerAreExplained(t *testing.T) {
	of := schema.GroupResource{Resource: "pods"}
	forbidden := func(text string) error { return apierrors.NewForbidden(of, "p", errors.New(text)) }
	for _, tt := range []struct {
		err  error
		want sandbox.EndKind
		hint string
	}{
		{forbidden("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), sandbox.EndQuota, "ResourceQuota raised"},
		{forbidden("failed quota: q: must specify limits.memory"), sandbox.EndQuota, "set container.memory_mb"},
		{forbidden(`violates PodSecurity "baseline:latest": procMount`), sandbox.EndRefused, "pod-security.kubernetes.io/enforce=baseline"},
		{forbidden(`User "x" cannot create resource "pods"`), sandbox.EndRefused, "apply packaging/kubernetes"},
		{apierrors.NewUnauthorized("expired"), sandbox.EndRefused, "log in to the cluster again"},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "n"), sandbox.EndRefused, "make the namespace"},
		{apierrors.NewAlreadyExists(of, "p"), sandbox.EndRefused, "agentctl gc"},
		{apierrors.NewServiceUnavailable("starting"), sandbox.EndUnreachable, "kubectl version"},
		{&url.Error{Op: "Get", URL: "https://one", Err: errors.New("connection refused")}, sandbox.EndUnreachable, "kubectl version"},
	} {
		b := &Backend{}
		b.cluster.rest = &rest.Config{Host: "https://one"}
		var end *sandbox.End
		if err := b.explain("make a pod", tt.err); !errors.As(err, &end) || end.Kind != tt.want || !strings.Contains(end.Hint, tt.hint) ||
			!errors.Is(err, tt.err) {
			t.Errorf("%v: %+v", tt.err, end)
		}
	}
}

func TestARefusedClaimEndsTheWait(t *testing.T) {
	reason := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/agents/sandboxclaims/agentsh-1"; r.URL.Path != want {
			t.Errorf("%s, want %s", r.URL.Path, want)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "agentsh-1"},
			"status": {"conditions": [{"type": "Ready", "status": "False", "reason": %q, "message": "label of nobody"}]}}`, reason)
	}))
	defer server.Close()
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &place{b: &Backend{cluster: cluster{namespace: "agents"}, dynamic: client}, spec: sandbox.Spec{RunID: "1"}}
	p.spec.Container.Cluster.Managed.WarmPool = "pool"
	for _, tt := range []struct{ reason, want string }{{"InvalidMetadata", "label of nobody"}, {"SandboxNotReady", ""}} {
		reason = tt.reason
		err := p.refused(t.Context(), nil)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.reason, err)
		}
		if err := p.refused(t.Context(), &core.Pod{}); err != nil {
			t.Errorf("with a pod: %v", err)
		}
	}
}
