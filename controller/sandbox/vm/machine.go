package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/vmimage"
	"agentsh/internal/lazy"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// machine is the virtual machine of one sandbox. It boots when the first stream is opened.
type machine struct {
	b    *Backend
	spec sandbox.Spec
	dir  string

	mu   sync.Mutex
	made *running // nil: it was not started
}

// running is a machine that was started.
type running struct {
	record
	key *socket.Key
	// ended is closed when the VMM has ended; how it ended is then in how, if this process started it.
	ended chan struct{}
	how   error
}

// record is the file that describes a machine to later controllers. It has its key.
type record struct {
	Process local.Process `json:"process"`
	Key     []byte        `json:"key"`
}

// keySize is the size of secrets, in bytes.
const keySize = 32

// String implements [remote.Carrier].
func (m *machine) String() string { return m.b.at() }

// Shell implements [remote.Carrier].
func (m *machine) Shell() bool { return false }

// Check implements [remote.Carrier].
func (m *machine) Check() error { return nil }

// Open implements [remote.Carrier].
func (m *machine) Open(ctx context.Context) (remote.Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made == nil {
		if err := m.start(ctx); err != nil {
			return nil, errors.Join(err, m.removeMade(ctx))
		}
	}
	s := &stream{m: m, made: m.made}
	// Names of sockets have at most 107 bytes, see unix(7).
	dir, err := os.Open(m.dir)
	if err != nil {
		return nil, m.cause(err)
	}
	defer dir.Close()
	s.Conn, err = m.b.driver.dial(ctx, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), m.made.key, &s.messages)
	if err != nil {
		return nil, m.cause(err)
	}
	return s, nil
}

// bootTime bounds the time from the start of a machine until it listens. An emulated one is slow.
const bootTime = 5 * time.Minute

// start makes the directory of the machine and boots it.
func (m *machine) start(ctx context.Context) error {
	i, err := m.b.image(m.spec.Container.Image.ID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return fmt.Errorf("directory of the machine: %w", err)
	}
	h, err := m.describe(i)
	if err != nil {
		return err
	}
	r := &running{record: record{Key: make([]byte, keySize)}, ended: make(chan struct{})}
	_, _ = rand.Read(r.Key) // never fails, see crypto/rand
	if r.key, err = socket.NewKey(r.Key); err != nil {
		return err
	}
	if err := m.writeInitrd(i, r.Key); err != nil {
		return err
	}
	if err := m.run(h, r); err != nil {
		return err
	}
	m.made = r
	ctx, cancel := context.WithTimeoutCause(ctx, bootTime, fmt.Errorf("it did not listen within %s", bootTime))
	defer cancel()
	if err := m.b.driver.boot(ctx, m.dir, h); err != nil {
		return m.cause(err)
	}
	return m.waitListening(ctx)
}

// describe describes the machine to its driver.
func (m *machine) describe(i vmimage.Image) (hardware, error) {
	c, of := m.spec.Container, m.b.cfg.Machine
	h := hardware{
		ID: m.spec.RunID, Arch: i.Kernel.Arch, Initrd: initrdFile, Command: commandLine, MemoryMB: of.MemoryMB, CPUs: of.CPUs,
		Card: m.b.hasCard(m.spec), Network: of.Network,
	}
	var err error
	if h.Kernel, err = filepath.Abs(i.Kernel.File); err != nil {
		return h, err
	}
	if c.MemoryMB > 0 {
		h.MemoryMB = c.MemoryMB
	}
	if c.CPUs > 0 {
		h.CPUs = max(int(c.CPUs), 1)
	}
	if _, is := m.b.driver.(qemu); !is && h.Card && h.Network == nil {
		return h, errors.New("the policy allows connections, and this driver needs an interface of this host for them: " +
			"write vm: {network: {tap: NAME, address: ADDRESS/BITS, gateway: ADDRESS}} in agentctl.yaml, " +
			"or container: {network: none} in the harness")
	}
	if i.Root != "" {
		root, err := filepath.Abs(i.Root)
		if err != nil {
			return h, err
		}
		h.Disks = append(h.Disks, disk{"root", root, true})
	}
	if c.DiskMB > 0 {
		h.Disks = append(h.Disks, disk{"changes", diskFile, false})
		return h, makeDisk(filepath.Join(m.dir, diskFile), c.DiskMB)
	}
	return h, nil
}

// checkDisk says what a disk for changed files needs on this host.
func checkDisk(s sandbox.Spec) error {
	if s.Container.DiskMB == 0 {
		return nil
	}
	if _, err := exec.LookPath(makeFS); err != nil {
		return fmt.Errorf("container.disk_mb: %w: install e2fsprogs, or leave it out: changed files are in the machine's memory then", err)
	}
	return nil
}

const makeFS = "mkfs.ext4"

// makeDisk makes a disk with an empty file system. It has holes: only what is written uses space.
func makeDisk(file string, size int64) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(f.Truncate(size<<20), f.Close()); err != nil {
		return fmt.Errorf("disk of the machine: %w", err)
	}
	cmd := exec.CommandContext(context.Background(), makeFS, "-q", "-F", "-m", "0", "-O", "^has_journal", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("disk of the machine: %w: %s", err, text.Short(string(bytes.TrimSpace(out)), 300))
	}
	return nil
}

// writeInitrd writes what the machine starts from.
func (m *machine) writeInitrd(i vmimage.Image, key []byte) error {
	d := wire.Machine{
		Version: wire.Current, Key: key, Listen: m.b.driver.listen(), LeaseSeconds: int(m.b.cfg.Lease / time.Second), Off: m.b.driver.off(),
		Time: time.Now(), Seed: make([]byte, keySize),
	}
	_, _ = rand.Read(d.Seed)
	disks := []string{"/dev/vda", "/dev/vdb"}
	if i.Root != "" {
		d.Root, disks = disks[0], disks[1:]
	}
	if m.spec.Container.DiskMB > 0 {
		d.Disk = disks[0]
	}
	if m.b.hasCard(m.spec) {
		d.Network = networkOf(m.b)
	}
	var err error
	if name := m.b.cfg.Operator; name != "" {
		if d.Config, err = os.ReadFile(name); err != nil {
			return fmt.Errorf("configuration of the supervisor: %w", err)
		}
	}
	program, err := m.b.agentsh(i.Kernel.Arch)
	if err != nil {
		return err
	}
	load, err := m.b.modules(i, m.spec)
	if err != nil {
		return err
	}
	return vmimage.Initramfs{Program: program, Modules: i.Modules, Load: load, Machine: d}.Write(filepath.Join(m.dir, initrdFile))
}

// networkOf is the network of the machine.
func networkOf(b *Backend) *wire.Network {
	if _, is := b.driver.(qemu); is {
		n := qemuNetwork
		return &n
	}
	n := b.cfg.Machine.Network
	if n == nil {
		return nil
	}
	return &wire.Network{Address: n.Address, Gateway: n.Gateway, DNS: n.DNS}
}

// maxLog bounds what a machine without a disk can make the VMM write to files, in bytes.
const maxLog = 4 << 20

// run starts the VMM. Its files are relative to the directory of the machine. It outlives this
// process: the machine ends with the lease.
func (m *machine) run(h hardware, r *running) error {
	argv, files, err := m.b.driver.prepare(h)
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(m.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	said, err := os.OpenFile(filepath.Join(m.dir, messageFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	console, err := os.OpenFile(filepath.Join(m.dir, consoleFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	cmd := exec.CommandContext(context.Background(), argv[0], argv[1:]...) // it outlives every context of this process
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = m.dir, console, said, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + m.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of a terminal are for agentctl
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() { // ends with the VMM
		r.how = cmd.Wait()
		close(r.ended)
	}()
	limit := uint64(max(maxLog, m.spec.Container.DiskMB<<20+maxLog))
	err = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}, nil)
	if err == nil || errors.Is(err, unix.ESRCH) {
		r.Process, err = local.ProcessOf(cmd.Process.Pid)
	}
	if err == nil {
		err = statedir.WriteJSON(filepath.Join(m.dir, machineFile), r.record)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
		<-r.ended
		return m.causeOf(r, fmt.Errorf("start %s: %w", argv[0], err))
	}
	return nil
}

// lookTime is how often the console is looked at.
const lookTime = 20 * time.Millisecond

// listening is in the line that process 1 prints when it listens.
var listening = []byte("agentsh: machine: listening at ")

// waitListening waits until the machine listens.
func (m *machine) waitListening(ctx context.Context) error {
	look := time.NewTicker(lookTime)
	defer look.Stop()
	for {
		data, err := os.ReadFile(filepath.Join(m.dir, consoleFile)) // maxLog bounds it
		if err == nil && bytes.Contains(data, listening) {
			return nil
		}
		if m.kvmFailed() != "" {
			return m.cause(errors.New("it stands still"))
		}
		select {
		case <-look.C:
		case <-m.made.ended:
			return m.cause(errors.New("it ended"))
		case <-ctx.Done():
			return m.cause(context.Cause(ctx))
		}
	}
}

// waitFile waits until a file is there.
func waitFile(ctx context.Context, name string) error {
	look := time.NewTicker(lookTime)
	defer look.Stop()
	for {
		if _, err := os.Lstat(name); err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", filepath.Base(name), context.Cause(ctx))
		}
	}
}

// kvmFailed is the line in which qemu says that KVM failed; empty: it did not. The machine stands still then.
// See kvm_handle_internal_error of qemu.
func (m *machine) kvmFailed() string {
	data, err := os.ReadFile(filepath.Join(m.dir, messageFile)) // maxLog bounds it
	_, line, found := bytes.Cut(data, []byte("KVM internal error"))
	if err != nil || !found {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return text.Short("KVM internal error"+string(line), 300)
}

const emulateHint = "if KVM does not work on this host, write vm: {emulate: true} in agentctl.yaml"

// cause is the end of the machine, or err if it runs.
func (m *machine) cause(err error) error { return m.causeOf(m.made, err) }

func (m *machine) causeOf(r *running, err error) error {
	if failed := m.kvmFailed(); failed != "" {
		return &sandbox.End{Kind: sandbox.EndDied, Text: "the virtual machine stopped: " + failed, Hint: emulateHint, Err: err}
	}
	last := m.lastLine()
	select {
	case <-r.ended:
	default:
		if last != "" {
			return fmt.Errorf("virtual machine: %w; the last line of its console: %s", err, last)
		}
		return fmt.Errorf("virtual machine: %w; its console is empty: does the kernel have the driver of the serial port?", err)
	}
	e := &sandbox.End{Kind: sandbox.EndDied, Text: "the virtual machine ended", Hint: "start the run again", Err: err}
	var exit *exec.ExitError
	if errors.As(r.how, &exit) {
		if status, is := exit.Sys().(syscall.WaitStatus); is && status.Signaled() {
			if q, is := m.b.driver.(qemu); is && !q.emulate && strings.Contains(last, "kvm") {
				e.Hint = emulateHint
			}
			e.Kind, e.Text = sandbox.EndKilled, fmt.Sprintf("the virtual machine was ended by signal %d (%s)", status.Signal(), status.Signal())
			if status.Signal() == unix.SIGXFSZ {
				e.Text, e.Hint = "the virtual machine wrote more than its disk and its console may have", "raise container.disk_mb of the harness"
			}
		} else {
			e.Text = "the VMM failed: " + exit.Error()
		}
	}
	if last != "" {
		e.Text += ": " + last
	}
	return e
}

// terminalCodes are what firmware writes to clear a terminal and to set colours.
var terminalCodes = lazy.Regexp(`\x1b(c|\[[0-9;?]*[A-Za-z])`)

// lastLine is what the VMM said last, or the line of the console that tells most: what process 1 said,
// why the kernel stopped, or the last one.
func (m *machine) lastLine() string {
	for _, name := range []string{messageFile, consoleFile} {
		data, err := os.ReadFile(filepath.Join(m.dir, name)) // maxLog bounds it
		if err != nil {
			continue
		}
		data = terminalCodes().ReplaceAll(data, nil)
		best := ""
		for _, mark := range []string{"agentsh: machine: ", "Kernel panic", ""} {
			for line := range bytes.Lines(data) {
				if line = bytes.TrimSpace(line); len(line) > 0 && bytes.Contains(line, []byte(mark)) && !bytes.Contains(line, listening) {
					best = string(line)
				}
			}
			if best != "" {
				return text.Short(best, 300)
			}
		}
	}
	return ""
}

// removeTime bounds the end of a machine.
const removeTime = 30 * time.Second

// remove ends the machine and removes its directory.
func (m *machine) remove(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removeMade(ctx)
}

func (m *machine) removeMade(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	err := removeMachine(ctx, m.dir)
	if err == nil && m.made != nil {
		<-m.made.ended
		m.made = nil
	}
	return err
}

// removeMachine ends the VMM of a machine and removes its directory. One that is gone is no error.
func removeMachine(ctx context.Context, dir string) error {
	r, err := readRecord(dir)
	if err == nil {
		if err := r.Process.End(ctx); err != nil {
			return fmt.Errorf("end virtual machine: %w", err)
		}
	}
	return statedir.RemoveTree(dir)
}

func readRecord(dir string) (r record, err error) {
	data, err := os.ReadFile(filepath.Join(dir, machineFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// find finds the machine of a run whose controller is gone.
func (b *Backend) find(runID string) (*machine, error) {
	m := &machine{b: b, spec: sandbox.Spec{RunID: runID}, dir: filepath.Join(b.cfg.State.Machines(), runID)}
	r := &running{ended: make(chan struct{})}
	var err error
	if r.record, err = readRecord(m.dir); err != nil || !r.Process.Alive() {
		return nil, errors.New("its virtual machine has ended")
	}
	if r.key, err = socket.NewKey(r.Key); err != nil {
		return nil, err
	}
	go func() { // ends with the VMM
		r.Process.Wait()
		close(r.ended)
	}()
	m.made = r
	return m, nil
}

// stream is a stream to a machine.
type stream struct {
	*socket.Conn
	m        *machine
	made     *running
	messages sandbox.Tail
}

// Cause implements [remote.Stream]. It is the end of the machine, or its last message.
func (s *stream) Cause() error {
	select {
	case <-s.made.ended:
		return s.m.causeOf(s.made, s.Err())
	default:
	}
	if last := s.messages.LastMessage(); last != "" {
		return errors.New(last)
	}
	return s.Err()
}

// Kill implements [remote.Stream].
func (s *stream) Kill() {
	_ = s.Close()
	<-s.Gone()
}
