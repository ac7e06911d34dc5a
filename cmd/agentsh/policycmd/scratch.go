package policycmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// maxTrialOutput bounds the stored output of a trial, in bytes.
const maxTrialOutput = 1 << 20

// trialTime is how long one trial may take, also on a busy machine.
const trialTime = 2 * time.Minute

// scratch is a session for trials, with a workspace of its own. Nothing of it
// outlives it.
type scratch struct {
	session *supervisor.Session
	log     *audit.Log
	state   string // outside: the audit log
	dir     string // outside: the workspace
	tried   atomic.Int64
}

// outcome is how a trial ended.
type outcome struct {
	exit   wire.Exit
	output []byte // standard output and error
}

// denied reports whether the policy refused the trial's own program.
func (o outcome) denied() bool { return o.exit.Kind == wire.ExitDenied }

// openScratch opens a session under p whose workspace, at the path that
// ${WORKSPACE} names, is an empty directory that prepare may fill first. The
// caller closes it.
func openScratch(ctx context.Context, p *policy.Policy, prepare func(*scratch) error) (*scratch, error) {
	s := &scratch{}
	if err := s.open(ctx, p, prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("scratch sandbox: %w", err), s.Close())
	}
	return s, nil
}

func (s *scratch) open(ctx context.Context, p *policy.Policy, prepare func(*scratch) error) error {
	var err error
	if s.state, err = os.MkdirTemp("", "agentsh-scratch-"); err != nil {
		return err
	}
	s.dir = filepath.Join(s.state, "workspace")
	if err := os.Mkdir(s.dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o777); err != nil { // the commands' user is another one
		return err
	}
	if s.log, err = audit.Open(filepath.Join(s.state, "audit.jsonl"), audit.Options{KeyFile: filepath.Join(s.state,
		"audit.key")}); err != nil {
		return err
	}
	if prepare != nil {
		if err := prepare(s); err != nil {
			return err
		}
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return err
	}
	vars := p.Vars()
	boot := wire.Bootstrap{
		Governed: []wire.Governed{{Backing: s.dir, Path: vars["WORKSPACE"]}}, Home: vars["HOME"],
		StoreDir: filepath.Join(s.state, "store"), // soft_delete needs one
	}
	limited := supervisor.OperatorConfig{Path: operator.Path, User: operator.User, Degraded: operator.Degraded} // commands need no more
	cfg := supervisor.SessionConfig(limited, supervisor.Request{Boot: boot, Policy: p, Audit: s.log})
	cfg.Log = slog.New(slog.DiscardHandler)
	s.session, err = supervisor.Open(ctx, cfg)
	return err
}

// Close ends the session and removes everything of it.
func (s *scratch) Close() error {
	var errs []error
	if s.session != nil {
		errs = append(errs, s.session.Close())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.state != "" {
		errs = append(errs, os.RemoveAll(s.state))
	}
	return errors.Join(errs...)
}

// run runs one command and waits for it.
func (s *scratch) run(ctx context.Context, argv ...string) (outcome, error) {
	var output limited
	exit, _, err := s.session.Exec(ctx, wire.ExecRequest{
		ID: fmt.Sprintf("trial-%d", s.tried.Add(1)), Argv: argv, DeadlineMS: trialTime.Milliseconds(),
	}, wire.Streams{Stdout: &output, Stderr: &output})
	return outcome{exit: exit, output: output.bytes()}, err
}

// limited stores the first bytes written to it and drops the rest.
type limited struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept.Write(p[:min(len(p), maxTrialOutput-l.kept.Len())])
	return len(p), nil
}

func (l *limited) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.kept.Bytes())
}
