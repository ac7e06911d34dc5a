package blaxeldouble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what stands for a virtual machine.
type machine struct {
	record map[string]any
	left   int      // looks until it is there
	states []string // that the next looks see, of a build
	init   *exec.Cmd

	previews map[string]*preview
	freezer  *freezer // nil: it never stands by
	ended    bool     // mu
	limited  bool     // see [Double.WithoutPtrace]

	mu        sync.Mutex
	processes []*process
	uploads   map[string]*upload
}

type upload struct {
	path, mode string
	parts      map[int][]byte
}

// process is a process of the sandbox API.
type process struct {
	name, pid, command string
	cmd                *exec.Cmd
	done               chan struct{}
	awake              bool // keepAlive
	killed             atomic.Bool

	mu           sync.Mutex
	out, err, al bytes.Buffer
}

// commandUser is the user of commands where no other is named.
const commandUser = 60700

// newMachine makes namespaces. Its files in /opt, /root and /var/lib are in a directory of the test.
func (d *Double) newMachine() (*machine, error) {
	dir, idle := d.t.TempDir(), d.idle
	if d.limited {
		own := filepath.Join(dir, "sandbox")
		if err := errors.Join(os.Mkdir(own, 0o755), os.Chown(own, commandUser, commandUser)); err != nil { //nolint:gosec // as everywhere
			return nil, err
		}
	}
	for _, name := range []string{"opt", "root", "lib"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"opt", "lib"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil { //nolint:gosec // as everywhere
			return nil, err
		}
	}
	m := &machine{limited: d.limited, record: map[string]any{}, previews: map[string]*preview{}, uploads: map[string]*upload{}}
	if idle > 0 {
		var err error
		if m.freezer, err = newFreezer(idle); err != nil {
			return nil, err
		}
	}
	const script = `mount --make-rprivate / && mount --bind "$0/opt" /opt && mount --bind "$0/root" /root &&
mount --bind "$0/lib" /var/lib &&
if [ -d "$0/sandbox" ]; then mount --bind "$0/sandbox" /sandbox; fi && ip link set lo up && ip address add ` + Address + `/32 dev lo && echo up && exec cat`
	argv := m.freezer.wrap([]string{"unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, dir})
	m.init = exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	// It ends with its standard input, and so with this process.
	_, err := m.init.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := m.init.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var errs bytes.Buffer
	m.init.Stderr = &errs
	if err := m.init.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		_ = m.init.Wait()
		return nil, fmt.Errorf("make namespaces: %w: %s", err, &errs)
	}
	return m, nil
}

// end kills everything in the machine.
func (m *machine) end() {
	m.mu.Lock()
	m.ended = true
	if m.freezer != nil {
		_ = m.freezer.goOn() // a frozen process does not end
	}
	m.mu.Unlock()
	_ = m.init.Process.Kill()
	_ = m.init.Wait()
	if m.freezer != nil {
		_ = m.freezer.remove()
	}
}

// inside is the number of the first process in the namespaces.
func (m *machine) inside() (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.init.Process.Pid))
	first, _, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if err == nil && first == "" {
		err = errors.New("the machine has ended")
	}
	return first, err
}

// command is a command in the machine.
func (m *machine) command(dir string, argv ...string) (*exec.Cmd, error) {
	pid, err := m.inside()
	if err != nil {
		return nil, err
	}
	argv = m.freezer.wrap(append([]string{"nsenter", "--target", pid, "--mount", "--net", "--pid", "--wdns=" + dir}, argv...))
	return exec.CommandContext(context.Background(), argv[0], argv[1:]...), nil
}

// start starts a process, as the sandbox API does: without an environment, by sh -c.
func (m *machine) start(w wantedProcess) (*process, error) {
	name, command := w.Name, w.Command
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != "" && slices.ContainsFunc(m.processes, func(p *process) bool { return p.name == name && !p.ended() }) {
		return nil, fmt.Errorf("process with name %q already exists and is running", name)
	}
	argv := []string{"sh", "-c", command}
	if m.limited {
		argv = append([]string{"setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"}, argv...)
	}
	cmd, err := m.command(w.Dir, argv...)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, command: command, cmd: cmd, done: make(chan struct{}), awake: w.Awake}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for key, value := range w.Env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Stdout, cmd.Stderr = p.to(&p.out), p.to(&p.err)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = fmt.Sprint(cmd.Process.Pid)
	if p.name == "" {
		p.name = "proc-" + p.pid
	}
	m.processes = append(m.processes, p)
	if after := w.timeout(); after > 0 {
		time.AfterFunc(after, p.kill)
	}
	go func() {
		_ = cmd.Wait() // its state says it
		close(p.done)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rest()
	}()
	return p, nil
}

func (m *machine) find(id string) *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range slices.Backward(m.processes) {
		if p.name == id || p.pid == id {
			return p
		}
	}
	return nil
}

// kill ends a process and what it started.
func (p *process) kill() {
	if !p.ended() {
		p.killed.Store(true)
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// to writes to an output and to all logs.
func (p *process) to(out *bytes.Buffer) io.Writer {
	return writer(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.al.Write(b)
		return out.Write(b)
	})
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// shown is a process as the sandbox API shows it.
func (p *process) shown() map[string]any {
	status, code := "running", 0
	if p.ended() {
		status = "completed"
		if code = p.cmd.ProcessState.ExitCode(); code != 0 {
			status = "failed"
		}
		if p.killed.Load() {
			status = "killed"
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return map[string]any{
		"name": p.name, "pid": p.pid, "command": p.command, "status": status, "exitCode": code,
		"stdout": p.out.String(), "stderr": p.err.String(), "logs": p.al.String(),
		"startedAt": "", "completedAt": "", "workingDir": "/",
	}
}

// write writes a file.
func (m *machine) write(path, mode string, data []byte) error {
	cmd, err := m.command("/", "sh", "-c", `mkdir -p "$(dirname "$0")" && cat >"$0" && chmod "$1" "$0"`, path, mode)
	if err != nil {
		return err
	}
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (m *machine) read(path string) ([]byte, error) {
	cmd, err := m.command("/", "cat", path)
	if err != nil {
		return nil, err
	}
	return cmd.Output()
}

// dial connects to a port in the machine.
func (m *machine) dial(port string) (conn net.Conn, err error) {
	pid, err := m.inside()
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() { // its thread ends with it, because it is in another network
		defer close(done)
		runtime.LockOSThread()
		var f *os.File
		if f, err = os.Open("/proc/" + pid + "/ns/net"); err != nil {
			return
		}
		defer f.Close()
		if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = (&net.Dialer{}).DialContext(context.Background(), "tcp4", "127.0.0.1:"+port)
		}
	}()
	<-done
	return conn, err
}
