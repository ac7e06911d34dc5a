package kubernetes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	codes "k8s.io/utils/exec"
)

// image is the only one that the node has: the root of this machine.
const image = "registry.invalid/this:1"

// node runs pods as processes in namespaces of their own, whose root is a copy of that of this
// machine. Streams to them are those of a container runtime.
type node struct {
	t       *testing.T
	dir     string
	streams streaming.Server
	http    *http.Server
	api     *double

	mu   sync.Mutex
	pods map[string]*running
	all  sync.WaitGroup
}

// running is a pod on the node.
type running struct {
	cmd   *exec.Cmd
	init  int // process 1; 0: not started of the pod, as this machine numbers it
	user  string
	ended chan struct{}
	execs []context.CancelFunc // under the lock of the node
}

// enter makes the root of a pod and starts its process 1. Distributions let everybody open
// /dev/fuse.
const enter = `
set -e
dir=$1 user=$2
shift 2
ip link set lo up
mount -t tmpfs tmpfs "$dir"
mkdir "$dir/up" "$dir/work" "$dir/root"
mknod -m 666 "$dir/fuse" c 10 229
mount -t overlay overlay -o lowerdir=/,upperdir="$dir/up",workdir="$dir/work" "$dir/root"
cd "$dir/root"
mkdir -p .agentsh
for tree in dev sys; do mount --rbind "/$tree" "$tree"; done
mount -t proc proc proc
mount --bind "$dir/fuse" dev/fuse
for files in tmp var/tmp .agentsh; do mount -t tmpfs -o mode=1777 tmpfs "$files"; done
pivot_root . .
umount -l .
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
	env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
`

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), pods: map[string]*running{}}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: "node.invalid", Path: "/cri/"}
	var err error
	if n.streams, err = streaming.NewServer(config, n); err != nil {
		t.Fatal(err)
	}
	n.http = listen(t, n.streams)
	t.Cleanup(func() {
		n.mu.Lock()
		for _, r := range n.pods {
			r.kill()
		}
		n.mu.Unlock()
		n.all.Wait()
	})
	return n
}

// admit starts a pod, or says why it cannot run.
func (n *node) admit(p *core.Pod) {
	c := p.Spec.Containers[0]
	if c.Image != image {
		n.api.update(p.Name, func(p *core.Pod) {
			p.Status.ContainerStatuses = []core.ContainerStatus{{Name: c.Name, Image: c.Image, State: core.ContainerState{
				Waiting: &core.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"},
			}}}
		})
		return
	}
	dir := filepath.Join(n.dir, p.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.t.Error(err)
		return
	}
	r := &running{user: strconv.FormatInt(*c.SecurityContext.RunAsUser, 10), ended: make(chan struct{})}
	argv := append([]string{"--pid", "--fork", "--kill-child", "--net", "--mount", "bash", "-c", enter, "pod", dir, r.user}, c.Command...)
	r.cmd = exec.Command("unshare", argv...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	r.cmd.Stderr = os.Stderr
	if err := r.cmd.Start(); err != nil {
		n.t.Error(err)
		return
	}
	n.mu.Lock()
	n.pods[p.Name] = r
	n.mu.Unlock()
	n.all.Go(func() { n.follow(p.Name, r) })
}

// follow reports the life of a pod.
func (n *node) follow(name string, r *running) {
	exited := make(chan error, 1)
	n.all.Go(func() { exited <- r.cmd.Wait() })
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for r.init == 0 {
		select {
		case err := <-exited:
			n.over(name, r, err)
			return
		case <-look.C:
			r.init = initOf(r.cmd.Process.Pid)
		}
	}
	n.api.update(name, func(p *core.Pod) {
		p.Status.Phase, p.Spec.NodeName = core.PodRunning, "node"
		p.Status.ContainerStatuses = []core.ContainerStatus{{
			Name: p.Spec.Containers[0].Name, ImageID: "registry.invalid/this@sha256:" + strings.Repeat("1", 64),
			State: core.ContainerState{Running: &core.ContainerStateRunning{}},
		}}
	})
	n.over(name, r, <-exited)
}

// initOf returns the child of unshare once it has become what the pod runs; 0: not yet.
func initOf(pid int) int {
	children, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		return 0
	}
	line, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/cmdline")
	switch first, _, _ := strings.Cut(string(line), "\x00"); first {
	case "bash", "unshare", "setpriv", "env", "":
		return 0
	}
	return child
}

func (n *node) over(name string, r *running, err error) {
	close(r.ended)
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	n.api.update(name, func(p *core.Pod) {
		if p.Status.Phase == core.PodRunning || p.Status.Phase == core.PodPending {
			p.Status.Phase = core.PodSucceeded
			if code != 0 {
				p.Status.Phase = core.PodFailed
			}
			p.Status.ContainerStatuses = []core.ContainerStatus{{Name: p.Spec.Containers[0].Name, State: core.ContainerState{
				Terminated: &core.ContainerStateTerminated{ExitCode: int32(code), Reason: "Completed"},
			}}}
		}
	})
}

// delete ends a pod that is deleted.
func (n *node) delete(name string) {
	n.mu.Lock()
	r := n.pods[name]
	delete(n.pods, name)
	n.mu.Unlock()
	if r != nil {
		if r.init > 0 {
			_ = syscall.Kill(r.init, syscall.SIGTERM) // as a kubelet; unshare passes nothing on
		}
		limit := time.NewTimer(5 * time.Second)
		defer limit.Stop()
		select {
		case <-r.ended:
		case <-limit.C:
			r.kill()
		}
	}
	n.api.removed(name)
}

// kill ends the processes of a pod as a node does, and says why.
func (n *node) kill(name string, why func(*core.Pod)) {
	n.api.update(name, why)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[name].kill()
}

// cut ends the streams to a pod.
func (n *node) cut(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, end := range n.pods[name].execs {
		end()
	}
}

// kill ends all processes of a pod. A process that changed its user does not end with its parent.
func (r *running) kill() {
	if r.init > 0 {
		_ = syscall.Kill(r.init, syscall.SIGKILL)
	}
	_ = r.cmd.Process.Kill()
}

// Exec implements [streaming.Runtime].
func (n *node) Exec(
	ctx context.Context, name string, argv []string, in io.Reader, out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.mu.Lock()
	r := n.pods[name]
	if r != nil {
		r.execs = append(r.execs, cancel)
	}
	n.mu.Unlock()
	if r == nil {
		return errors.New("container not found")
	}
	enter := []string{"-t", strconv.Itoa(r.init), "-m", "-p", "-n", "--", "setpriv", "--reuid", r.user, "--regid", r.user, "--clear-groups",
		"--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, errs, time.Second
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	go func() { // ends with the stream
		_, _ = io.Copy(stdin, in)
		_ = stdin.Close()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return codes.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// Attach implements [streaming.Runtime]. The backend does not use it.
func (n *node) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	n.t.Error("attach")
	return errors.ErrUnsupported
}

// PortForward implements [streaming.Runtime]. The backend does not use it.
func (n *node) PortForward(context.Context, string, int32, io.ReadWriteCloser) error {
	n.t.Error("port forward")
	return errors.ErrUnsupported
}

// exec answers a stream to a pod as API servers do: a WebSocket becomes SPDY on its way to the
// node.
func (d *double) exec(w http.ResponseWriter, r *http.Request, name string) {
	d.mu.Lock()
	p, _ := d.objects["pods"][name].(*core.Pod)
	spdy := d.spdy
	d.mu.Unlock()
	q := r.URL.Query()
	if p == nil {
		fail(w, http.StatusNotFound, meta.StatusReasonNotFound, "pods %q not found", name)
		return
	}
	if q.Get("container") != p.Spec.Containers[0].Name || q.Get("stdin") != "true" || q.Get("stdout") != "true" || q.Get("stderr") != "true" {
		d.t.Errorf("exec: %s", r.URL)
	}
	if p.Status.Phase != core.PodRunning {
		fail(w, http.StatusInternalServerError, meta.StatusReasonInternalError, "cannot exec in a stopped container")
		return
	}
	got, err := d.node.streams.GetExec(&cri.ExecRequest{ContainerId: name, Cmd: q["command"], Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		fail(w, http.StatusInternalServerError, meta.StatusReasonInternalError, "%v", err)
		return
	}
	to, err := url.Parse(got.Url)
	if err != nil {
		d.t.Error(err)
	}
	to.Host = d.node.http.Addr
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		if spdy {
			fail(w, http.StatusBadRequest, meta.StatusReasonBadRequest, "unable to upgrade: no WebSockets here")
			return
		}
		options := translator.Options{Stdin: true, Stdout: true, Stderr: true}
		translator.NewStreamTranslatorHandler(to, http.DefaultTransport, 0, options).ServeHTTP(w, r)
		return
	}
	h := proxy.NewUpgradeAwareHandler(to, nil, false, true, d)
	h.ServeHTTP(w, r)
}

// Error implements [proxy.ErrorResponder].
func (d *double) Error(w http.ResponseWriter, _ *http.Request, err error) {
	fail(w, http.StatusInternalServerError, meta.StatusReasonInternalError, "error dialing backend: %v", err)
}
