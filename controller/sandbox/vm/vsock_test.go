package vm

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/sandboxtest"
	"agentsh/internal/layout"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
)

// hybrid is qemu with an AF_VSOCK device like that of Firecracker and Cloud Hypervisor: the program
// vhost-device-vsock offers the guest's ports at a Unix socket. It needs no /dev/vhost-vsock.
type hybrid struct {
	qemu
	device string // path of vhost-device-vsock
}

// serial finds the values of the options for virtio-serial.
var serial = regexp.MustCompile(`^(socket,id=port|virtserialport,|virtio-serial-pci$)`)

func (hybrid) modules() []string { return []string{"virtio_pci", "vmw_vsock_virtio_transport"} }
func (hybrid) listen() string    { return fmt.Sprintf("vsock:%d", vsockPort) }

func (d hybrid) prepare(h hardware) ([]string, map[string][]byte, error) {
	argv, files, err := d.qemu.prepare(h)
	if err != nil {
		return nil, nil, err
	}
	// qemu connects to the device at its start. The device ends with qemu, which replaces the shell.
	const script = `setpriv --pdeathsig KILL "$0" --guest-cid 42 --socket vhost.sock --uds-path ` + vsockFile + ` &
		until [ -S vhost.sock ]; do kill -0 $! || exit; done
		exec "$@"`
	words := []string{"/bin/sh", "-c", script, d.device}
	for i := 0; i < len(argv); i++ {
		if i+1 < len(argv) && serial.MatchString(argv[i+1]) {
			i++ // an option and its value
			continue
		}
		words = append(words, argv[i])
	}
	return append(words,
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", h.MemoryMB), "-machine", "memory-backend=memory",
		"-chardev", "socket,id=vsock,path=vhost.sock", "-device", "vhost-user-vsock-pci,chardev=vsock"), files, nil
}

func (hybrid) dial(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error) {
	return dialHybrid(ctx, dir, key, messages)
}

// openHybrid makes a backend whose machines have a hybrid socket. The second variable has the path of
// vhost-device-vsock.
func openHybrid(t *testing.T) *Backend {
	t.Helper()
	image := testenv.Asked(t, "AGENTSH_VM_IMAGE", "vm")
	device := testenv.Asked(t, "AGENTSH_VM_VSOCK", "vm VM_KERNELS=6.12-vsock")
	dir, err := os.MkdirTemp("", "vm") // names of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statedir.RemoveTree(dir) })
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{
		Machine: Machine{Driver: "qemu", Emulate: true, MemoryMB: hybridMB}, Images: map[string]string{"app": image},
		State: state, Agentsh: testenv.Agentsh(t), Operator: os.Getenv("AGENTSH_VM_CONFIG"), Lease: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.driver = hybrid{qemu{emulate: true}, device}
	return b
}

// TestAMachineWithAHybridSocket runs the suite with a real kernel, whose streams are AF_VSOCK.
func TestAMachineWithAHybridSocket(t *testing.T) {
	sandboxtest.Run(t, openHybrid(t), sandbox.Container{Image: sandbox.Image{Name: "app"}, DiskMB: hybridMB})
}

// hybridMB is the memory of a machine and the size of its disk, in MiB. The memory is a file of the VMM, and
// the size of the disk limits its files.
const hybridMB = 1024

// TestAgentctlRunsInAMachineWithAHybridSocket connects agentctl to the socket of a machine by its address. The
// third variable has the path of agentctl.
func TestAgentctlRunsInAMachineWithAHybridSocket(t *testing.T) {
	agentctl := testenv.Asked(t, "AGENTSH_VM_AGENTCTL", "vm VM_KERNELS=6.12-vsock")
	b := openHybrid(t)
	image, err := b.Pull(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{b: b, dir: filepath.Join(b.cfg.State.Machines(), "m"), spec: sandbox.Spec{
		RunID: "m", Container: sandbox.Container{Image: image, DiskMB: hybridMB},
	}}
	defer func() {
		if err := m.remove(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := m.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	policies, err := filepath.Abs("../../../packaging/policies/agent-sandbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string]string{
		"key":             base64.StdEncoding.EncodeToString(m.made.Key),
		"policy.yaml":     fmt.Sprintf("version: 1\nname: p\nextends: [%s]\n", policies),
		"agents/agent.md": "# agent\n",
		"harness.yaml": "agent: agents/agent.md\nrole: agent\nruntime: command\n" +
			"command: [sh, -c, 'uname -r; echo made > made']\npolicy: policy.yaml\nsecurity: {enabled: false}\n",
		"repo/file": "file\n",
	} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const commit = "git init -q -b main && git add -A && git -c user.name=a -c user.email=a@example.com commit -q -m file"
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "cd repo && "+commit)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd = exec.CommandContext(t.Context(), agentctl, "run", "harness.yaml", "--repo", "repo", "--out", "out", "--backend", "socket",
		"--connect", fmt.Sprintf("vsock+unix://%s/%s:%d", m.dir, vsockFile, vsockPort), "--connect-key", "key")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(dir, "state"), "HOME="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("cloud-amd64")) {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}
