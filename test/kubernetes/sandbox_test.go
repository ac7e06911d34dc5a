package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/kubernetes"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// listen serves on a port of loopback.
func listen(t *testing.T, h http.Handler) *http.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Addr: l.Addr().String(), Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMain(m *testing.M) { testenv.Main(m) }

// open makes a double with a node, and a backend that uses it.
func open(t *testing.T, lease time.Duration) (*double, *kubernetes.Backend) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	testenv.Need(t, testenv.Program("nsenter"), testenv.Program("setpriv"), testenv.Program("ip"))
	d := newDouble(t, newNode(t))
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {token: t}}],
contexts: [{name: c, context: {cluster: c, user: u, namespace: %s}}]}`, d.server.URL, namespace)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := kubernetes.Open(kubernetes.Config{State: state, Agentsh: testenv.Agentsh(t), Lease: lease, Look: true, Getenv: os.Getenv})
	if err != nil {
		t.Fatal(err)
	}
	return d, b
}

func TestSandboxesInPods(t *testing.T) {
	for _, carrier := range []string{"WebSocket", "SPDY"} {
		t.Run(carrier, func(t *testing.T) {
			d, b := open(t, 0)
			d.spdy = carrier == "SPDY"
			sandboxtest.Run(t, b, sandbox.Container{Image: sandbox.Image{Name: image}})
			d.waitLeft()
		})
	}
}

// spec is that of one sandbox.
func spec(id string) sandbox.Spec {
	return sandbox.Spec{
		RunID: id, EnvDir: layout.EnvDir, Home: layout.Home, Container: sandbox.Container{Image: sandbox.Image{Name: image, ID: image}},
		Policy: []wire.PolicySource{{Name: "p.yaml", Data: []byte("version: 1\nname: p\ncommand_rules: [{name: all, commands: ['*'], decision: allow}]\n" +
			"file_rules: [{name: all, paths: [/sandbox/**, /usr/**, /bin/**, /lib/**, /lib64/**], operations: ['*'], decision: allow}]\n")}},
	}
}

func TestEndsOfSandboxesInPods(t *testing.T) {
	for name, tt := range map[string]struct {
		why  func(*core.Pod)
		want sandbox.EndKind
	}{
		"memory": {func(p *core.Pod) {
			p.Status.Phase = core.PodFailed
			p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "sandbox", State: core.ContainerState{
				Terminated: &core.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137},
			}}}
		}, sandbox.EndMemory},
		"evicted": {func(p *core.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = core.PodFailed, "Evicted", "The node was low on resource: memory."
		}, sandbox.EndEvicted},
		"preempted": {func(p *core.Pod) {
			p.DeletionTimestamp = &meta.Time{Time: time.Now()}
			p.Status.Conditions = []core.PodCondition{{Type: core.DisruptionTarget, Status: core.ConditionTrue, Reason: "PreemptionByScheduler"}}
		}, sandbox.EndPreempted},
	} {
		t.Run(name, func(t *testing.T) {
			d, b := open(t, 0)
			box, err := b.Create(t.Context(), spec("end-1"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := box.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if digest, ok := box.(sandbox.Imaged).Image(); !ok || digest != "sha256:"+strings.Repeat("1", 64) {
				t.Errorf("image: %q", digest)
			}
			d.node.kill("agentsh-end-1", tt.why)
			<-box.Gone()
			var end *sandbox.End
			if !errors.As(box.Cause(), &end) || end.Kind != tt.want {
				t.Errorf("%v, want %s", box.Cause(), tt.want)
			}
			if err := box.Delete(context.Background()); err != nil {
				t.Error(err)
			}
			d.waitLeft()
		})
	}
}

func TestPodsThatCannotBeHad(t *testing.T) {
	refused := func(message string) func(verb, resource string) *meta.Status {
		return func(verb, resource string) *meta.Status {
			if verb != "create" || resource != "pods" {
				return nil
			}
			return &meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Code: http.StatusForbidden,
				Reason: meta.StatusReasonForbidden, Message: message}
		}
	}
	for name, tt := range map[string]struct {
		change func(d *double, s *sandbox.Spec)
		want   sandbox.EndKind
		hint   string
	}{
		"image": {func(_ *double, s *sandbox.Spec) { s.Container.Image.ID = "registry.invalid/none:1" }, sandbox.EndImage, "image_pull_secrets"},
		"quota": {func(d *double, _ *sandbox.Spec) { d.refuse = refused("exceeded quota: q") }, sandbox.EndQuota, "ResourceQuota"},
		"rules": {func(d *double, _ *sandbox.Spec) { d.refuse = refused(`violates PodSecurity "restricted"`) }, sandbox.EndRefused, "enforce=baseline"},
		"shell": {func(_ *double, s *sandbox.Spec) {
			s.Container.Cluster.Times.Start = 2 * time.Second
			s.Container.Cluster.Program.Image = "a:1"
		},
			sandbox.EndDied, "kubectl logs"}, // nothing copies the program here
	} {
		t.Run(name, func(t *testing.T) {
			d, b := open(t, 0)
			s := spec("no-1")
			tt.change(d, &s)
			_, err := b.Create(t.Context(), s)
			var end *sandbox.End
			if !errors.As(err, &end) || end.Kind != tt.want || !strings.Contains(end.Hint, tt.hint) {
				t.Errorf("%v, want %s and %q", err, tt.want, tt.hint)
			}
			d.waitLeft()
		})
	}
	t.Run("rights", func(t *testing.T) {
		d, b := open(t, 0)
		d.denied["get pods/exec"], d.denied["patch networkpolicies"] = true, true
		err := b.Check(t.Context(), spec("no-1"))
		if err == nil || !strings.Contains(err.Error(), "may not do in namespace agents: get pods/exec, patch networkpolicies") {
			t.Error(err)
		}
	})
}

func TestAControllerThatIsGoneLeavesAPodForTheLeaseOnly(t *testing.T) {
	d, b := open(t, 10*time.Second)
	box, err := b.Create(t.Context(), spec("gone-1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	owner := d.objects["networkpolicies"]["agentsh-gone-1"].(*networking.NetworkPolicy).OwnerReferences
	pod := d.objects["pods"]["agentsh-gone-1"].(*core.Pod)
	d.mu.Unlock()
	if len(owner) != 1 || owner[0].UID != pod.UID || owner[0].Kind != "Pod" {
		t.Errorf("the network policy belongs to %+v", owner)
	}
	d.mu.Lock()
	d.refuse = func(_, _ string) *meta.Status { // for this controller the cluster is away
		return &meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure,
			Code: http.StatusServiceUnavailable, Reason: meta.StatusReasonServiceUnavailable, Message: "starting"}
	}
	d.mu.Unlock()
	d.node.cut("agentsh-gone-1")
	d.node.mu.Lock()
	r := d.node.pods["agentsh-gone-1"]
	d.node.mu.Unlock()
	<-r.ended // its process 1
	d.mu.Lock()
	d.refuse = nil
	d.mu.Unlock()
	<-box.Gone()
	if err := box.Delete(context.Background()); err != nil {
		t.Error(err)
	}
	d.waitLeft()
}

// TestAnAPIServerThatStartsDeniesForAMoment has an API server answer as one that has just started and does not know yet who may do
// what. The sandbox goes on, and is removed.
func TestAnAPIServerThatStartsDeniesForAMoment(t *testing.T) {
	for _, reason := range []meta.StatusReason{meta.StatusReasonForbidden, meta.StatusReasonUnauthorized} {
		t.Run(string(reason), func(t *testing.T) {
			d, b := open(t, 0)
			box, err := b.Create(t.Context(), spec("starts-1"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := box.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			denies := func(verb string, times int) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.refuse = func(v, _ string) *meta.Status {
					if v != verb || times == 0 {
						return nil
					}
					times--
					code := map[meta.StatusReason]int32{meta.StatusReasonForbidden: 403, meta.StatusReasonUnauthorized: 401}[reason]
					return &meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure,
						Code: code, Reason: reason, Message: `User "test" cannot ` + verb}
				}
			}
			denies("get", 4) // execs as well
			d.node.cut("agentsh-starts-1")
			if err := box.WriteFile(t.Context(), "/sandbox/x", []byte("x"), 0o644); err != nil {
				t.Error(err)
			}
			denies("delete", 2)
			if err := box.Delete(context.Background()); err != nil {
				t.Error(err)
			}
			d.waitLeft()
		})
	}
}
