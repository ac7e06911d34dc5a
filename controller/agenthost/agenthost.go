// Package agenthost runs an agent's program on this machine, beside the sandbox in which its
// tools work. The program has a session of its own: it reaches the tools and its model, and
// sees the files of this machine that programs need. Where this machine offers no session,
// it runs as any other program of the user, and [About] says so.
//
// policy.go has the rules of the session, bare.go runs programs without one, serve.go
// serves the tools.
package agenthost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/tarfs"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Options describe a [Side].
type Options struct {
	Runtime runtime.Outsider
	Argv    []string // program with its first arguments
	Search  string   // PATH in which the program is looked for
	RunID   string

	Env         map[string]string // of the program, besides those that its runtime sets
	Credentials []Credential      // of its model
	Hosts       []string          // that it reaches besides those of its model, as host:port

	Session sandbox.Backend // makes the session; nil: the program has none
	Must    bool            // the program does not run without a session
	Hooks   bool            // the session shows the supervisor's program, which hooks are
	Files   []runtime.File  // of the session, besides those of the runtime
	Scratch string          // directory of this machine for the files of a program without a session; made and removed
}

// Credential is a credential of the model. In a session the program has a placeholder.
type Credential struct {
	wire.Credential
	Variable string
}

// About says how the program runs.
type About struct {
	Program  string   `json:"program"`
	Session  bool     `json:"session"`            // it has a session of its own
	Why      string   `json:"why,omitempty"`      // it has none
	Degraded []string `json:"degraded,omitempty"` // mechanisms that the session runs without
	Hosts    []string `json:"hosts,omitempty"`    // that the session reaches
	Passed   []string `json:"passed,omitempty"`   // names of variables of the host that it has
	Refusals int      `json:"refusals"`           // what the policy of the session refused
	Audit    string   `json:"audit,omitempty"`    // audit log of the session, in the results
}

// Side is the host's side of an agent. The caller closes it. Its methods are called by one goroutine.
type Side struct {
	o        Options
	program  found
	about    About
	env      []string
	dir      string // of the program, as it sees it
	root     string // as dir, or what is above it: what the executor serves
	ex       sandbox.Executor
	box      sandbox.Sandbox // nil: there is no session
	bare     *bare           // nil: there is one
	listener net.Listener
	server   *server
	answer   []byte // of the program, to its runtime's question
}

// Renew replaces the values of credentials in the session. It may be called by any goroutine after Open.
func (s *Side) Renew(ctx context.Context, values []wire.CredentialValue) error {
	to, can := s.box.(interface {
		Renew(ctx context.Context, values []wire.CredentialValue) error
	})
	if !can {
		return errors.New("the session of the agent's program cannot renew credentials")
	}
	return to.Renew(ctx, values)
}

// SessionDir is the directory of the program in its session.
const SessionDir = layout.Sandbox + "/agent"

// idSuffix is what the id of the session has after that of the run.
const idSuffix = "-agent"

// Check reports what is missing for [Open] on this machine, and returns the path of the program.
func Check(o Options) (string, error) {
	program, err := find(o)
	return program.path, err
}

// Open prepares the host's side. The program does not run yet.
func Open(ctx context.Context, o Options) (_ *Side, err error) {
	s := &Side{o: o}
	if s.program, err = find(o); err != nil {
		return nil, err
	}
	s.about = About{Program: s.program.path, Passed: passed(o.Env)}
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen for the agent's program: %w", err)
	}
	s.server = newServer(s.listener)
	if err = s.open(ctx); err == nil {
		err = s.makeDirectories(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func passed(env map[string]string) []string {
	var names []string
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readyWait is the time limit for the first answer of the session.
const readyWait = time.Minute

// open opens the session, or says why there is none.
func (s *Side) open(ctx context.Context) error {
	why := "confine_agent: never"
	if s.o.Session != nil {
		err := s.openSession(ctx)
		if err == nil {
			return nil
		}
		// Only what this machine lacks lets a program run without.
		if s.o.Must || ctx.Err() != nil || !strings.Contains(err.Error(), "--degraded ") && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("session of the agent's program: %w", err)
		}
		why, _, _ = strings.Cut(err.Error(), "; degraded: ") // what follows is for sandboxes
	}
	s.about.Why, s.about.Hosts = why, nil
	var err error
	if s.bare, err = newBare(s.o.Scratch); err != nil {
		return err
	}
	s.ex, s.dir, s.root = s.bare, s.o.Scratch, s.o.Scratch
	s.env = []string{"PATH=" + s.o.Search, "HOME=" + s.place().Home(), "TMPDIR=" + path.Join(s.dir, "tmp"), "LANG=C.UTF-8"}
	for _, c := range s.o.Credentials {
		s.env = append(s.env, c.Variable+"="+c.Value)
	}
	s.addEnv()
	return nil
}

func (s *Side) addEnv() {
	for _, name := range passed(s.o.Env) {
		s.env = append(s.env, name+"="+s.o.Env[name])
	}
}

// openSession makes the session of the program.
func (s *Side) openSession(ctx context.Context) (err error) {
	p, hosts, err := s.policy(ctx)
	if err != nil {
		return err
	}
	s.about.Hosts = hosts
	spec := sandbox.Spec{
		RunID: s.o.RunID + idSuffix, Policy: p, EnvDir: path.Join(SessionDir, ".env.d"), Home: (runtime.Place{Dir: SessionDir}).Home(),
		Program: s.o.Hooks,
	}
	for _, c := range s.o.Credentials {
		spec.Credentials = append(spec.Credentials, c.Credential)
		s.env = append(s.env, c.Variable+"="+c.Placeholder)
	}
	if s.program.below("/tmp") {
		s.env = append(s.env, "TMPDIR="+path.Join(SessionDir, "tmp"))
	}
	s.addEnv()
	if err := s.o.Session.Check(ctx, spec); err != nil {
		return err
	}
	box, err := s.o.Session.Create(ctx, spec)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("it did not answer within %s", readyWait))
	defer cancel()
	hello, err := box.Ready(waiting)
	if err != nil {
		s.env = nil
		if cause := context.Cause(waiting); cause != nil {
			err = errors.Join(cause, err)
		}
		return errors.Join(err, box.Delete(context.WithoutCancel(ctx)))
	}
	s.box, s.ex, s.dir, s.root = box, box, SessionDir, layout.Sandbox
	s.about.Session, s.about.Degraded = true, hello.Degraded
	return nil
}

// About says how the program runs.
func (s *Side) About() About { return s.about }

// Cause is why the session has ended by itself; nil: it has not, or there is none.
func (s *Side) Cause() error {
	if s.box == nil {
		return nil
	}
	return s.box.Cause()
}

// Executor runs the program and has its files, and root is the directory that it serves.
func (s *Side) Executor() (ex sandbox.Executor, root string) { return s.ex, s.root }

func (s *Side) place() runtime.Place {
	return runtime.Place{Dir: s.dir, URL: s.server.url(), Token: s.server.token}
}

// makeDirectories makes the directories of the program.
func (s *Side) makeDirectories(ctx context.Context) error {
	p := s.place()
	var files []runtime.File
	if s.box != nil {
		files = s.o.Files
	}
	return s.put(ctx, files, p.Home(), p.Work(), path.Join(p.Dir, "tmp"))
}

// put sends files and directories of the program.
func (s *Side) put(ctx context.Context, files []runtime.File, dirs ...string) error {
	var archive bytes.Buffer
	w := tarfs.NewWriter(&archive, tarfs.Limits{})
	for _, dir := range dirs {
		if err := w.Dir(strings.TrimPrefix(dir, s.root+"/"), 0o755); err != nil {
			return err
		}
	}
	for _, f := range files {
		if _, err := w.File(strings.TrimPrefix(f.Dest, s.root+"/"), f.Mode, int64(len(f.Data)), bytes.NewReader(f.Data)); err != nil {
			return err
		}
	}
	if _, err := w.Close(); err != nil {
		return err
	}
	if err := s.ex.CopyIn(ctx, s.root, &archive, func(wire.ManifestEntry) error { return nil }); err != nil {
		return fmt.Errorf("files of the agent's program: %w", err)
	}
	return nil
}

// Prepare makes the program for one iteration: its files are in its directory then.
func (s *Side) Prepare(ctx context.Context, in runtime.Invocation) (runtime.Outside, error) {
	p := s.place()
	var err error
	if p.Answer, err = s.ask(ctx); err != nil {
		return runtime.Outside{}, err
	}
	out, err := s.o.Runtime.Outside(in, p)
	if err != nil {
		return out, fmt.Errorf("prepare runtime %s: %w", s.o.Runtime.Name(), err)
	}
	out.Command.Argv = append([]string{s.program.path}, out.Command.Argv[1:]...)
	out.Command.Env = append(slices.Clone(s.env), out.Command.Env...)
	return out, s.put(ctx, out.Files)
}

// Bounds of the answer of a program.
const (
	maxAnswer  = 16 << 20 // bytes
	answerWait = time.Minute
)

// ask asks the program what its runtime wants to know.
func (s *Side) ask(ctx context.Context) ([]byte, error) {
	q, asks := s.o.Runtime.(runtime.Questioner)
	if !asks || s.answer != nil {
		return s.answer, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	var out, said bytes.Buffer
	argv := append(append([]string{s.program.path}, s.o.Argv[1:]...), q.Question()...)
	exit, err := s.ex.Run(ctx, wire.ExecRequest{
		ID: s.o.RunID + "-question", Argv: argv, Cwd: s.place().Work(), Env: s.env, DeadlineMS: answerWait.Milliseconds(),
	}, wire.Streams{Stdout: atMost{&out, maxAnswer}, Stderr: atMost{&said, maxAnswer}})
	if err == nil && exit.ExitCode() != 0 {
		err = fmt.Errorf("exit status %d: %s%s", exit.ExitCode(), exit.Message, text.Short(said.String(), 300))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", s.program.path, strings.Join(q.Question(), " "), err)
	}
	s.answer = out.Bytes()
	return s.answer, nil
}

// atMost drops what is beyond a number of bytes.
type atMost struct {
	to    *bytes.Buffer
	limit int
}

func (a atMost) Write(p []byte) (int, error) {
	a.to.Write(p[:min(len(p), max(a.limit-a.to.Len(), 0))])
	return len(p), nil
}

// AuditLog opens the log of the session's events, after [Side.Stop]; nil: there is no session.
func (s *Side) AuditLog(ctx context.Context) (io.ReadCloser, error) {
	if s.box == nil {
		return nil, nil
	}
	return s.box.AuditLog(ctx)
}

// Stop ends the program and its session.
func (s *Side) Stop(ctx context.Context) error {
	err := s.server.close()
	if s.box != nil {
		err = errors.Join(err, s.box.Stop(ctx))
	}
	return err
}

// Close ends the program, and removes its files. A second call is no error.
func (s *Side) Close(ctx context.Context) error {
	err := s.Stop(ctx)
	if s.box != nil {
		err = errors.Join(err, s.box.Delete(ctx))
	}
	if s.bare != nil {
		err = errors.Join(err, s.bare.close())
	}
	return err
}
