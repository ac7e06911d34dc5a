package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/notify/tracer"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// Trial is the outcome of a scratch session. A field without a value was not
// tried.
type Trial struct {
	Opens  bool   `json:"opens"`
	Engine string `json:"engine,omitempty"` // what stops the calls of commands
	// Beside is what the listener of another supervisor takes.
	Beside    *supervisor.Beside `json:"beside,omitempty"`
	Fallbacks []string           `json:"fallbacks,omitempty"` // mechanisms that degraded must name for a session to open here
	Why       string             `json:"why,omitempty"`       // it does not open
	Proofs    []string           `json:"proofs,omitempty"`    // operations that were refused to its first process
	// Checks are the outcomes by name: empty when the rule was enforced, else what
	// happened instead.
	Checks map[string]string `json:"checks,omitempty"`

	missing probe.Missing // mechanisms that the session did without
}

// Shell is a shell of this machine.
type Shell struct {
	Path    string `json:"path"`
	BashEnv bool   `json:"reads_bash_env"`
}

// trialClosed is a rule of the scratch session that only a file server enforces.
const trialClosed = "  - {name: closed, paths: ['${WORKSPACE}/closed', '${WORKSPACE}/closed/**'], operations: [write, create, delete, " +
	"rename], decision: deny}\n"

// trialPolicy is the policy of the scratch session.
const trialPolicy = `version: 1
name: detect
command_rules:
  - {name: refused, commands: ['${WORKSPACE}/refused'], decision: deny}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
` + trialClosed + `  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/sbin/**', '/lib/**', '/lib64/**', '/nix/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_inject: {BASH_ENV: ` + layout.Library + `/bash_startup.sh, DETECTED: injected}
`

// checks are scripts for /bin/sh in the workspace of the scratch session. Each
// prints "ok", or what happened instead.
var checks = map[string]string{
	"command":    `if ./refused; then echo a denied program ran; elif ./allowed; then echo ok; else echo an allowed program did not run; fi`,
	"file":       `if (echo x > closed/file); then echo a denied file was written; elif echo x > open; then echo ok; else echo an allowed file was not written; fi`,
	"outside":    `if [ -e "$1" ] && (: <"$1") 2>/dev/null; then echo a file that no rule shows can be read; else echo ok; fi`,
	"env_nested": `[ "$(env -i sh -c 'echo $DETECTED')" = injected ] && echo ok || echo a nested program started without env_inject`,
	"network":    `{ read -r head; if read -r line; then echo there is a route out; else echo ok; fi; } </proc/net/route`,
}

// checkTimeout bounds one check of the scratch session.
const checkTimeout = 60 * time.Second

// trialShells are looked for on this machine.
var trialShells = []string{"/bin/sh", "/bin/bash", "/bin/dash", "/bin/ash", "/bin/zsh", "/bin/ksh"}

// trySession opens a session like any other and runs the checks in it.
func (r *Report) trySession(ctx context.Context, operator supervisor.OperatorConfig) (err error) {
	dir, err := os.MkdirTemp("", "agentsh-detect-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workspace, err := trialWorkspace(dir)
	defer func() { _ = os.Chown(workspace, os.Geteuid(), os.Getegid()) }() // root may lack the capability to remove files of others
	if err != nil {
		return err
	}
	log, err := audit.Open(filepath.Join(dir, "audit.jsonl"), audit.Options{KeyFile: filepath.Join(dir, "audit.key")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cfg := supervisor.SessionConfig(
		supervisor.OperatorConfig{ // no requirement may refuse it
			Path: operator.Path, User: operator.User, Degraded: operator.Degraded, ForbidEngine: operator.ForbidEngine,
		},
		supervisor.Request{
			Boot:  wire.Bootstrap{Governed: []wire.Governed{{Backing: workspace, Path: workspace}}, Home: layout.CommandHome},
			Audit: log,
		},
	)
	cfg.Log = slog.New(slog.DiscardHandler)
	session, err := openTrial(ctx, cfg, workspace)
	if err != nil {
		r.Session.Why = err.Error()
		cfg.Degraded = probe.WithFallbacks(nil, []string{probe.AnyMechanism})
		if session, err = openTrial(ctx, cfg, workspace); err != nil {
			if again := err.Error(); again != r.Session.Why {
				r.Session.Why += "\nwith every fallback of degraded: " + again
			}
			return nil
		}
		r.Session.missing = session.Missing()
		r.Session.Fallbacks = slices.DeleteFunc(probe.Shortest(session.Missing().Names()), func(mechanism string) bool {
			return probe.Allowed(mechanism, operator.Degraded) || mechanism == probe.Cgroup
		})
		return session.Close()
	}
	r.Session.Engine = session.Engine()
	if session.Engine() == tracer.Name {
		if r.Session.Beside, err = supervisor.SurveyBeside(); err != nil {
			return errors.Join(err, session.Close())
		}
	}
	r.Session.Opens, r.Session.Proofs, r.Session.missing = true, session.Refused(), session.Missing()
	r.runChecks(ctx, session, dir)
	return session.Close()
}

// openTrial opens the scratch session under a policy that this machine can
// enforce.
func openTrial(ctx context.Context, cfg supervisor.Config, workspace string) (*supervisor.Session, error) {
	missing, err := probe.Survey(cfg.Degraded, probe.Session{Governed: true})
	if err != nil {
		return nil, err
	}
	text := trialPolicy
	if missing.Has(probe.Namespaces) { // the machine's own, with the files of this trial
		text = strings.Replace(text, ", /tmp, '/tmp/**'", "", 1)
	}
	if missing.Has(probe.FileServer) {
		text = strings.Replace(text, trialClosed, "", 1)
		user, err := view.CommandUser(cfg.User, false)
		if err != nil {
			return nil, err
		}
		if err := os.Chown(workspace, user.UID, user.GID); err != nil {
			return nil, err
		}
	}
	cfg.Policy, err = syntax.Load(
		policy.Source{Name: "detect.yaml", Data: []byte(text)},
		syntax.Options{Vars: map[string]string{"WORKSPACE": workspace}},
	)
	if err != nil {
		return nil, err
	}
	return supervisor.Open(ctx, cfg)
}

// trialWorkspace makes the workspace of a scratch session, for everybody.
func trialWorkspace(dir string) (string, error) {
	workspace := filepath.Join(dir, "work")
	for _, d := range []string{workspace, filepath.Join(workspace, "closed")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"refused", "allowed"} { // a copy of a denied program would be denied as well
		if err := os.WriteFile(filepath.Join(workspace, name), []byte("#!/bin/sh\n# "+name+"\n"), 0o755); err != nil {
			return "", err
		}
	}
	return workspace, os.Chmod(dir, 0o755)
}

// runChecks runs the checks and looks at every shell.
func (r *Report) runChecks(ctx context.Context, s *supervisor.Session, dir string) {
	run := func(argv ...string) string {
		var out bytes.Buffer
		exit, _, err := s.Exec(
			ctx,
			wire.ExecRequest{ID: "detect", Argv: argv, DeadlineMS: checkTimeout.Milliseconds()},
			wire.Streams{Stdout: &out},
		)
		switch {
		case err != nil:
			return err.Error()
		case exit.Message != "":
			return exit.Message
		}
		return strings.TrimSpace(out.String())
	}
	r.Session.Checks = map[string]string{}
	for name, script := range checks {
		if !claims(s, name) {
			continue
		}
		if s.Missing().Has(probe.MappedFiles) && name == "command" {
			script = "cp refused allowed /tmp && cd /tmp && " + script
		}
		got := run("/bin/sh", "-c", script, "sh", filepath.Join(dir, "audit.key"))
		switch got {
		case "ok":
			got = ""
		case "":
			got = "no result"
		}
		r.Session.Checks[name] = got
	}
	for _, shell := range trialShells {
		if _, err := os.Stat(shell); err == nil {
			kind := run(shell, "-c", "type kill")
			r.Shells = append(r.Shells, Shell{Path: shell, BashEnv: kind != "" && !strings.Contains(kind, "builtin")})
		}
	}
}

// claims reports whether a session promises what a check looks at.
func claims(s *supervisor.Session, check string) bool {
	switch check {
	case "file":
		return !s.Missing().Has(probe.FileServer)
	case "env_nested":
		return !s.Missing().Has(probe.ExecVerify)
	case "network":
		return !s.SharesNetwork() // routes of the machine can be read, but no socket can be made
	}
	return true
}

// check is the outcome of one check; nil: the rule was enforced, or not claimed.
func (t *Trial) check(name string) error {
	got, tried := t.Checks[name]
	if !tried {
		return nil
	}
	if got != "" {
		return errors.New(got)
	}
	return nil
}
