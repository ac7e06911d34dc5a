// Package host starts processes of the operator on this machine: pre and post
// scripts, validators and git. It never starts a program that an agent wrote.
//
// Every command runs below a guard, which is this program started again (see
// guard.go). The guard kills all processes of the command when the command
// ends, is cancelled, or the controller dies by any signal.
package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/selfexec"
)

// Command is one process on the host.
type Command struct {
	Argv      []string      // Argv[0] is an absolute path, or a name looked up on the PATH of Env
	Dir       string        // absolute; empty: /
	Env       []string      // the whole environment; nothing is inherited
	Stdin     io.Reader     // nil: /dev/null
	Stdout    io.Writer     // receives the whole output, besides the part in Result; may be nil
	Stderr    io.Writer     // like Stdout
	MaxOutput int           // bytes of each stream in Result; beyond it the middle is dropped; 0: 1 MiB
	Timeout   time.Duration // 0: no limit besides the context
	Grace     time.Duration // time between SIGTERM to the process group and SIGKILL to the whole tree; 0: 2 s
}

// Result describes how a command ended.
type Result struct {
	Code     int            // exit status, if Signal is 0
	Signal   syscall.Signal // the signal that killed the command, or 0
	Leftover int            // processes that the command left behind; they were killed
	Stdout   []byte
	Stderr   []byte
}

// ErrTimeout reports that Command.Timeout passed.
var ErrTimeout = errors.New("time limit reached")

// Err is nil if the command exited with status 0. Otherwise it describes the
// end, with the last line of standard error.
func (r Result) Err() error {
	how := ""
	switch {
	case r.Signal != 0:
		how = fmt.Sprintf("killed by signal %d (%s)", int(r.Signal), unix.SignalName(r.Signal))
	case r.Code != 0:
		how = fmt.Sprintf("exit status %d", r.Code)
	default:
		return nil
	}
	if last := lastLine(r.Stderr); last != "" {
		how += ": " + last
	}
	return errors.New(how)
}

func lastLine(b []byte) string {
	text := strings.TrimSpace(string(b))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = strings.TrimSpace(text[i+1:])
	}
	const longest = 300
	if len(text) > longest {
		text = text[:longest]
	}
	return text
}

const (
	defaultOutput = 1 << 20
	defaultGrace  = 2 * time.Second
	// answerWait is the time limit for the answer of a guard after the order to
	// kill.
	answerWait = 10 * time.Second
)

// Run starts c, waits for it and for all its children, and returns how it
// ended. The error is not nil if the command could not be started, its time
// limit passed ([ErrTimeout]) or ctx ended. The result then contains the output
// so far. An exit status other than 0 is no error here: see [Result.Err]. Safe
// for concurrent use.
func Run(ctx context.Context, c Command) (Result, error) {
	if len(c.Argv) == 0 {
		return Result{}, errors.New("start host command: no program given")
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	program, err := LookPath(c.Argv[0], c.Env)
	if err != nil {
		return Result{}, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	g, err := startGuard(c)
	if err != nil {
		return Result{}, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	spec := guardSpec{Path: program, Argv: c.Argv, Dir: c.Dir, Env: c.Env}
	res, err := g.supervise(ctx, c, spec)
	if err != nil {
		return res, fmt.Errorf("%s: %w", c.Argv[0], err)
	}
	return res, nil
}

// ErrNotFound is the error of a program that is not on the PATH.
var ErrNotFound = exec.ErrNotFound

// LookPath finds a program on the PATH of env, never on the controller's own.
func LookPath(name string, env []string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	if strings.Contains(name, "/") {
		return "", errors.New("a relative path names no program; give an absolute one")
	}
	for _, v := range env {
		dirs, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range strings.Split(dirs, ":") {
			p := dir + "/" + name
			if info, err := os.Stat(p); strings.HasPrefix(dir, "/") && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", ErrNotFound
}

// guarded is the controller's view of a running guard process.
type guarded struct {
	cmd            *exec.Cmd
	control        net.Conn
	stdout, stderr *bounded
}

func startGuard(c Command) (*guarded, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "guard control")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "guard control")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	limit := c.MaxOutput
	if limit <= 0 {
		limit = defaultOutput
	}
	g := &guarded{control: conn, stdout: newBounded(limit), stderr: newBounded(limit)}
	g.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{guardName}, Env: selfexec.Environment(), Dir: "/",
		Stdin: c.Stdin, Stdout: io.Writer(g.stdout), Stderr: io.Writer(g.stderr),
		ExtraFiles: []*os.File{theirs},
		// A session of its own: there is no terminal for password prompts, and Ctrl-C
		// reaches only the controller, which then decides.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		WaitDelay:   answerWait, // a Stdin that never ends must not block Run
	}
	if c.Stdout != nil {
		g.cmd.Stdout = io.MultiWriter(g.stdout, c.Stdout)
	}
	if c.Stderr != nil {
		g.cmd.Stderr = io.MultiWriter(g.stderr, c.Stderr)
	}
	if err := g.cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return g, nil
}

// supervise sends the spec and waits for the guard's answer. It ends the
// command if ctx ends or the time limit passes. It closes the control socket
// and waits for the guard.
func (g *guarded) supervise(ctx context.Context, c Command, spec guardSpec) (Result, error) {
	answer := make(chan guardAnswer, 1)
	go func() { answer <- g.exchange(spec) }()
	var limit <-chan time.Time
	if c.Timeout > 0 {
		t := time.NewTimer(c.Timeout)
		defer t.Stop()
		limit = t.C
	}
	var ended error
	var a guardAnswer
	select {
	case a = <-answer:
	case <-ctx.Done():
		ended = context.Cause(ctx)
		a = g.end(answer, c.Grace)
	case <-limit:
		ended = fmt.Errorf("%w (%s)", ErrTimeout, c.Timeout)
		a = g.end(answer, c.Grace)
	}
	_ = g.control.Close() // the guard ends with it, even after an error
	waitErr := g.cmd.Wait()
	res := Result{Code: a.Code, Signal: syscall.Signal(a.Signal), Leftover: a.Leftover, Stdout: g.stdout.Bytes(), Stderr: g.stderr.Bytes()}
	switch {
	case ended != nil:
		return res, ended
	case a.Error != "":
		return res, errors.New(a.Error)
	case waitErr != nil:
		return res, fmt.Errorf("copy its output: %w", waitErr)
	}
	return res, nil
}

// end terminates the command, then kills its process tree.
func (g *guarded) end(answer <-chan guardAnswer, grace time.Duration) guardAnswer {
	if grace <= 0 {
		grace = defaultGrace
	}
	for _, step := range []struct {
		order byte
		wait  time.Duration
	}{{orderTerminate, grace}, {orderKill, answerWait}} {
		// If the guard is gone, exchange has its answer or an error instead.
		_, _ = g.control.Write([]byte{step.order})
		t := time.NewTimer(step.wait)
		select {
		case a := <-answer:
			t.Stop()
			return a
		case <-t.C:
		}
	}
	_ = g.cmd.Process.Kill()
	return <-answer
}

// exchange sends the spec and reads the answer. A guard that ends without an
// answer is an error.
func (g *guarded) exchange(spec guardSpec) guardAnswer {
	data, err := json.Marshal(spec)
	if err != nil {
		return guardAnswer{Error: "describe command: " + err.Error()}
	}
	if _, err := g.control.Write(append(data, '\n')); err != nil {
		return guardAnswer{Error: "send command to guard: " + err.Error()}
	}
	var a guardAnswer
	if err := json.NewDecoder(io.LimitReader(g.control, maxAnswer)).Decode(&a); err != nil {
		return guardAnswer{Error: "guard ended without an answer: " + err.Error()}
	}
	return a
}

// bounded stores the beginning and the end of its input.
type bounded struct {
	head, tail []byte
	half       int
	dropped    int64
}

func newBounded(limit int) *bounded { return &bounded{half: max(limit/2, 1)} }

// Write never fails. Bytes that do not fit are counted and dropped.
func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.half - len(b.head); room > 0 {
		take := min(room, len(p))
		b.head = append(b.head, p[:take]...)
		p = p[take:]
	}
	b.tail = append(b.tail, p...)
	if over := len(b.tail) - b.half; over > b.half || (over > 0 && len(p) == 0) {
		b.dropped += int64(over)
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	return n, nil
}

// Bytes is the stored data, with a line that gives the number of dropped bytes.
func (b *bounded) Bytes() []byte {
	tail, dropped := b.tail, b.dropped
	if over := len(tail) - b.half; over > 0 {
		tail, dropped = tail[over:], dropped+int64(over)
	}
	var gap []byte
	if dropped > 0 {
		gap = fmt.Appendf(nil, "\n[%d bytes dropped]\n", dropped)
	}
	return bytes.Join([][]byte{b.head, gap, tail}, nil)
}
