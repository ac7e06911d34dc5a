package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/kubernetes"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
)

// real is a cluster of this machine: test/cluster/with.sh.
type real struct{ t *testing.T }

// kubectl runs kubectl as the administrator.
func (c real) kubectl(stdin string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command("kubectl", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// part starts or stops a part of the cluster.
func (c real) part(name, what string) {
	c.t.Helper()
	if err := os.WriteFile(os.Getenv("CLUSTER")+"/control", []byte(name+" "+what+"\n"), 0); err != nil {
		c.t.Fatal(err)
	}
	f, err := os.Open(os.Getenv("CLUSTER") + "/answer")
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadAll(f); err != nil {
		c.t.Fatal(err)
	}
}

// volumes are the programs of this machine, as claims.
const volumes = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  {capacity: {storage: 1Gi}, accessModes: [ReadOnlyMany], storageClassName: none, hostPath: {path: PATH},
   claimRef: {namespace: agentsh, name: NAME}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: agentsh}
spec: {resources: {requests: {storage: 1Gi}}, accessModes: [ReadOnlyMany], storageClassName: none, volumeName: NAME}
---
`

var thisMachine = map[string]string{"usr": "/usr", "alternatives": "/etc/alternatives"}

// newCluster prepares the cluster as doc/platforms/kubernetes.md says.
func newCluster(t *testing.T) real {
	t.Helper()
	testenv.Asked(t, "AGENTSH_CLUSTER", "cluster")
	c := real{t: t}
	overlay := filepath.Join(os.Getenv("CLUSTER"), "overlay")
	packaging, err := filepath.Rel(overlay, os.Getenv("CLUSTER_ROOT")+"/packaging/kubernetes")
	if err == nil {
		err = os.MkdirAll(overlay, 0o755)
	}
	if err == nil {
		err = os.WriteFile(overlay+"/kustomization.yaml", []byte(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [`+packaging+`]
images: [{name: registry.example.com/agentsh, newName: localhost/agentsh}, {name: registry.k8s.io/pause, newName: localhost/pause, newTag: "1"}]
`), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("", "apply", "-k", overlay)
	c.kubectl("", "-n", "agentsh", "create", "rolebinding", "runners", "--role=agentctl", "--group=runners")
	for name, path := range thisMachine {
		c.kubectl(strings.NewReplacer("NAME", name, "PATH", path).Replace(volumes), "apply", "-f", "-")
	}
	c.kubectl("", "-n", "agentsh-system", "rollout", "status", "daemonset/agentsh-profiles", "--timeout=120s")
	startPlugin(t)
	return c
}

// wants is a container with the programs of this machine.
func wants() sandbox.Container {
	c := sandbox.Container{Image: sandbox.Image{Name: "localhost/bare:1", ID: "localhost/bare:1"}}
	for name, path := range thisMachine {
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: name, Target: path})
	}
	c.Cluster.FUSEDevice = fuseResource
	c.Cluster.Account = "agentsh-sandbox"
	c.Cluster.Program.PullPolicy = "IfNotPresent"
	return c
}

func (c real) backend(t *testing.T, lease time.Duration) *kubernetes.Backend {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := kubernetes.Open(kubernetes.Config{
		Address: "context:runner", State: state, Agentsh: os.Getenv("CLUSTER_AGENTSH"), Lease: lease, Look: true, Getenv: os.Getenv,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// empty waits until the namespace has no pod. The deadline of the test bounds it.
func (c real) empty() {
	c.t.Helper()
	for look := time.Tick(500 * time.Millisecond); c.kubectl("", "-n", "agentsh", "get", "pods,networkpolicies", "-o", "name") != ""; {
		<-look
	}
}

func TestCluster(t *testing.T) {
	c := newCluster(t)
	for _, row := range []struct {
		name   string
		change func(s *sandbox.Container)
	}{
		{"the program is sent", func(*sandbox.Container) {}},
		{"the program is in an image", func(s *sandbox.Container) { s.Cluster.Program.Image = "localhost/agentsh:1" }},
		{"limits", func(s *sandbox.Container) { s.MemoryMB, s.CPUs, s.Network = 512, 1.5, "none" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := wants()
			row.change(&s)
			sandboxtest.Run(t, c.backend(t, 0), s)
			c.empty()
		})
	}
	t.Run("agent-sandbox", c.agentSandbox)
	t.Run("ends", c.ends)
	t.Run("the API server is started again", c.restarted)
	t.Run("the demo", c.demo)
	t.Run("a kubelet is killed", c.nodeGone)
	t.Run("a batch while a kubelet is killed", c.batchWithoutNode)
	t.Run("a batch as a Job whose agentctl is killed", c.batchJob)
	t.Run("the evasions", c.evasions)
}

// pool is a warm pool with the programs of this machine: packaging/kubernetes/warm-pool with
// other volumes and images.
const pool = `
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: agents, namespace: agentsh}
spec:
  networkPolicyManagement: Unmanaged
  podTemplate:
    spec:
      restartPolicy: Never
      hostUsers: false
      automountServiceAccountToken: false
      serviceAccountName: agentsh-sandbox
      initContainers:
        - name: agentsh
          image: localhost/agentsh:1
          command: [/usr/bin/agentsh, copy-self, /.agentsh/agentsh]
          securityContext: &rights
            runAsUser: 1000
            runAsGroup: 1000
            runAsNonRoot: true
            allowPrivilegeEscalation: false
            procMount: Unmasked
            capabilities: {drop: [ALL]}
            seccompProfile: {type: Localhost, localhostProfile: agentsh/seccomp-user.json}
          volumeMounts: [{name: agentsh, mountPath: /.agentsh}]
      containers:
        - name: sandbox
          image: localhost/bare:1
          command: [/.agentsh/agentsh, serve, --container, 8760h]
          workingDir: /
          securityContext: *rights
          resources: {limits: {agentsh.test/fuse: "1"}}
          volumeMounts:
            - {name: agentsh, mountPath: /.agentsh, readOnly: true}
            - {name: usr, mountPath: /usr, readOnly: true}
            - {name: alternatives, mountPath: /etc/alternatives, readOnly: true}
      volumes:
        - {name: agentsh, emptyDir: {}}
        - {name: usr, persistentVolumeClaim: {claimName: usr}}
        - {name: alternatives, persistentVolumeClaim: {claimName: alternatives}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: agents, namespace: agentsh}
spec: {replicas: 1, sandboxTemplateRef: {name: agents}}
`

// agentSandbox runs the suite in a Sandbox and in claims on a warm pool, by the controller of
// agent-sandbox.
func (c real) agentSandbox(t *testing.T) {
	c.kubectl("", "apply", "--server-side", "-f", os.Getenv("CLUSTER_CRDS"))
	// The controller ends if the API server does not serve them yet.
	c.kubectl("", "wait", "--for=condition=Established", "--timeout=120s", "-f", os.Getenv("CLUSTER_CRDS"))
	log, err := os.Create(os.Getenv("CLUSTER") + "/log/agent-sandbox")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	controller := exec.Command("agent-sandbox-controller", "--extensions", "--leader-elect=false", "--enable-webhook=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	controller.Stdout, controller.Stderr = log, log
	if err := controller.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = controller.Process.Kill()
		_ = controller.Wait()
	}()
	t.Run("a Sandbox", func(t *testing.T) {
		s := wants()
		s.Cluster.Managed.Sandbox = true
		sandboxtest.Run(t, c.backend(t, 0), s)
		c.empty()
	})
	t.Run("a claim on a warm pool", func(t *testing.T) {
		c.kubectl(pool, "apply", "-f", "-")
		c.kubectl("", "-n", "agentsh", "wait", "--for=jsonpath={.status.readyReplicas}=1", "sandboxwarmpool/agents", "--timeout=180s")
		var s sandbox.Container
		s.Cluster.Managed.WarmPool = "agents"
		sandboxtest.Run(t, c.backend(t, 0), s)
		c.kubectl("", "-n", "agentsh", "delete", "sandboxwarmpool/agents")
		c.empty()
	})
}

// begin makes a sandbox that is ready.
func (c real) begin(t *testing.T, b *kubernetes.Backend, id string, change func(s *sandbox.Container)) (sandbox.Sandbox, error) {
	t.Helper()
	s := spec(id)
	s.Container = wants()
	change(&s.Container)
	if err := b.Check(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	box, err := b.Create(t.Context(), s)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return box, nil
}

// urgent is a pod that needs more than what a sandbox of 1.5 processors leaves of a node of two.
const urgent = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000000
---
apiVersion: v1
kind: Pod
metadata: {name: urgent, namespace: agentsh-system}
spec:
  priorityClassName: urgent
  terminationGracePeriodSeconds: 0
  containers: [{name: urgent, image: "localhost/pause:1", resources: {requests: {cpu: "1"}}}]
`

// preempt starts the urgent pod.
func (c real) preempt() { c.kubectl(urgent, "apply", "-f", "-") }

func (c real) ends(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *sandbox.Container)
		end    func(pod string)
		want   sandbox.EndKind
	}{
		"deleted": {nil, func(pod string) { c.kubectl("", "-n", "agentsh", "delete", "pod", pod, "--wait=false") }, sandbox.EndKilled},
		"evicted": {nil, func(pod string) {
			c.kubectl(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "`+pod+`", "namespace": "agentsh"}}`,
				"create", "--raw", "/api/v1/namespaces/agentsh/pods/"+pod+"/eviction", "-f", "-")
		}, sandbox.EndEvicted},
		"preempted": {func(s *sandbox.Container) { s.Cluster.Requests.CPUs = 1.5 }, func(string) { c.preempt() },
			sandbox.EndPreempted},
		"image": {func(s *sandbox.Container) { s.Image.ID = "127.0.0.1:1/none:1" }, nil, sandbox.EndImage},
		"never pulled": {func(s *sandbox.Container) { s.Image.ID = "localhost/none:1"; s.Cluster.Program.PullPolicy = "Never" }, nil,
			sandbox.EndImage},
		"unschedulable": {func(s *sandbox.Container) {
			s.Cluster.Place.NodeSelector = map[string]string{"no": "node"}
			s.Cluster.Times.Start = 5 * time.Second
		}, nil, sandbox.EndNoRoom},
		"no profile":                      {func(s *sandbox.Container) { s.Cluster.Seccomp = "agentsh/none.json" }, nil, sandbox.EndRefused},
		"root is refused by pod security": {func(s *sandbox.Container) { s.User = "0" }, nil, sandbox.EndRefused},
		"expired": {func(s *sandbox.Container) { s.Cluster.Times.Most = 20 * time.Second }, func(string) {},
			sandbox.EndExpired},
	} {
		t.Run(name, func(t *testing.T) {
			change := tt.change
			if change == nil {
				change = func(*sandbox.Container) {}
			}
			box, err := c.begin(t, c.backend(t, 0), "ends-1", change)
			if err == nil && tt.end != nil {
				tt.end("agentsh-ends-1")
				<-box.Gone()
				err = box.Cause()
			}
			var end *sandbox.End
			if !errors.As(err, &end) || end.Kind != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
			t.Logf("%v", err)
		})
		c.empty()
	}
	c.kubectl("", "-n", "agentsh-system", "delete", "pod", "urgent")
	t.Run("quota", func(t *testing.T) {
		c.kubectl("", "-n", "agentsh", "create", "quota", "none", "--hard=pods=0")
		used := func() bool {
			return strings.Contains(c.kubectl("", "-n", "agentsh", "get", "quota", "none", "-o", "yaml"), "used:")
		}
		defer c.kubectl("", "-n", "agentsh", "delete", "quota", "none")
		for look := time.Tick(200 * time.Millisecond); !used(); {
			<-look
		}
		_, err := c.begin(t, c.backend(t, 0), "ends-2", func(*sandbox.Container) {})
		var end *sandbox.End
		if !errors.As(err, &end) || end.Kind != sandbox.EndQuota {
			t.Error(err)
		}
		t.Logf("%v", err)
	})
	t.Run("rights", func(t *testing.T) {
		c.kubectl("", "-n", "agentsh", "delete", "rolebinding", "runners")
		defer c.kubectl("", "-n", "agentsh", "create", "rolebinding", "runners", "--role=agentctl", "--group=runners")
		s := spec("ends-3")
		s.Container = wants()
		err := c.backend(t, 0).Check(t.Context(), s)
		var end *sandbox.End
		if !errors.As(err, &end) || end.Kind != sandbox.EndRefused {
			t.Error(err)
		}
		t.Logf("%v", err)
	})
}

// restarted checks that a sandbox outlives a restart of the API server.
func (c real) restarted(t *testing.T) {
	box, err := c.begin(t, c.backend(t, 0), "again-1", func(*sandbox.Container) {})
	if err != nil {
		t.Fatal(err)
	}
	c.part("apiserver", "stop")
	c.part("apiserver", "start")
	if data := []byte("still here"); box.WriteFile(t.Context(), "/sandbox/x", data, 0o644) != nil {
		t.Error("the sandbox is gone")
	}
	if got, err := box.ReadFile(t.Context(), "/sandbox/x", 100); err != nil || string(got) != "still here" {
		t.Errorf("%q, %v", got, err)
	}
}

// demo runs the demo of the README in a pod.
func (c real) demo(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir+"/examples", os.DirFS(os.Getenv("CLUSTER_ROOT")+"/examples")); err != nil {
		t.Fatal(err)
	}
	_ = os.RemoveAll(dir + "/examples/fix-bug/repo")
	for _, script := range []string{"prepare.sh", "skills/fix-bug/fix.sh"} {
		if err := os.Chmod(dir+"/examples/fix-bug/"+script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	harness := dir + "/examples/fix-bug/harness.yaml"
	minutes, err := os.ReadFile(harness) // the pod compiles the standard library of Go first
	if err == nil {
		err = os.WriteFile(harness, regexp.MustCompile(`(?m)^timeout_minutes: .*`).ReplaceAll(minutes, []byte("timeout_minutes: 60")), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(harness, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(f, `
image: localhost/bare:1
backend: kubernetes
connect: context:runner
container: {mounts: [{source: usr, target: /usr}, {source: alternatives, target: /etc/alternatives}]}
kubernetes: {agentsh_image: "localhost/agentsh:1", service_account: agentsh-sandbox, fuse_device: %s}
`, fuseResource)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(dir + "/examples/fix-bug/prepare.sh").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command(os.Getenv("CLUSTER_AGENTCTL"), "run", harness, "--repo", dir+"/examples/fix-bug/repo", "--out", dir+"/out")
	run.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+dir+"/state")
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	result, err := os.ReadFile(dir + "/out/result.json")
	if err != nil || !strings.Contains(string(result), `"backend": "kubernetes"`) || !strings.Contains(string(result), `"digest": "sha256:`) {
		t.Errorf("%s, %v", result, err)
	}
	c.empty()
}

// startKubelet starts the kubelet again, with its device plugin.
func (c real) startKubelet() {
	c.part("kubelet", "start")
	startPlugin(c.t)
}

// nodeGone checks the end of a sandbox whose node does not answer, and that a short absence is none.
func (c real) nodeGone(t *testing.T) {
	b := c.backend(t, 20*time.Second)
	box, err := c.begin(t, b, "node-1", func(*sandbox.Container) {})
	if err != nil {
		t.Fatal(err)
	}
	c.part("kubelet", "stop")
	<-box.Gone()
	c.startKubelet()
	var end *sandbox.End
	if err := box.Cause(); !errors.As(err, &end) || end.Kind != sandbox.EndNode {
		t.Errorf("%v, want %s", err, sandbox.EndNode)
	}
	t.Logf("%v", box.Cause())
}
