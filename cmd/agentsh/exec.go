package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/internal/shim"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// execOptions are the flags of agentsh exec.
type execOptions struct {
	policy    string
	config    string
	workspace string
	cwd       string
	audit     string
	env       []string
	timeout   time.Duration
	network   bool
	degraded  []string // mechanisms
	program   string   // the file to execute; empty: what the command names
	shim      bool     // of a shell: its caller's variables name no directory
	inherit   bool     // ask for all of this process's environment
	tty       bool
	json      bool
	session   string
	agent     *project.Agent // that the command line starts; nil: another program
}

func newExecCommand() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG ...]",
		Short: "Run one command under a policy",
		Long: `Run one command under a policy, in a session of its own that ends with it, or in
a running one.

The command sees the workspace and what the policy's file_rules allow; every
program it starts is evaluated. claude, codex, gemini and opencode, called by these
names, keep a home between their sessions, and get a placeholder of the key that is
set here.

The exit status is the command's own; 124 means the timeout, 125 that agentsh could
not run it, 126 denied, 127 not found, and 128 and its number that a signal ended it.
The command gets SIGINT, SIGTERM, SIGHUP and SIGQUIT that are sent to agentsh; the
second of a kind ends all that it started.

An output of agentsh that cannot be written ends the command and all that it
started, with 125 and a message that names the output. An output whose reader has
gone is a closed pipe for the command: it gets SIGPIPE, and one that exits with 0
all the same makes 141. After a signal or the timeout has ended the command, output
that nobody reads is given up after two seconds. An audit log that cannot be
written refuses what it cannot record: 125, with the cause.

With --json nothing but one JSON object is printed, when the command has ended:
  exit_code  the exit status of agentsh, as above
  exit       how it ended: kind (exited, signaled, deadline, denied, spawn_failed,
             lost), code, signal, message, hint, rule, rusage
  stdout     text (base64 when it is not UTF-8), bytes (how many it wrote) and
  stderr     truncated; at most the first 1 MiB of each is kept
  denials    what was refused, each with what, rule, at (file:line:column), message,
             hint and count; denials_dropped counts those beyond 1000
  audit      path of the audit log
In a running session denials list everything that was refused in it meanwhile.`,
		Example: "  agentsh exec --policy examples/policies/demo.yaml -- git status",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, stdio{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()})
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	o.sessionFlags(f)
	o.commandFlags(f)
	f.BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal, and pass this one's size and keys on")
	f.BoolVar(&o.json, "json", false, "print one JSON object at the end")
	f.StringVarP(&o.session, "session", "s", "", "run in the running session `NAME` of 'agentsh session create'")
	cmd.MarkFlagsMutuallyExclusive("tty", "json")
	for _, made := range []string{"policy", "config", "workspace", "audit", "share-network", "degraded"} {
		cmd.MarkFlagsMutuallyExclusive("session", made) // fixed since the session was opened
	}
	return cmd
}

// sessionFlags are the flags that make a session.
func (o *execOptions) sessionFlags(f *pflag.FlagSet) {
	discovery.PolicyFlag(f, &o.policy, "policy `FILE` (default: the project's, the user's, the configuration's)")
	f.StringVar(&o.config, "config", "", "configuration `FILE` (default "+layout.Config+" where it exists)")
	f.StringVarP(&o.workspace, "workspace", "w", "",
		"`DIR` the command works in, under file policy (default: the root of the git repository, else the current directory)")
	f.StringVar(&o.audit, "audit", "", "audit log `FILE` (default: a new one in the state directory)")
	f.StringSliceVar(&o.degraded, "degraded", nil,
		"start without mechanisms `NAME,...` (any: all of them) where this machine lacks them; see 'agentsh detect'")
	f.BoolVar(
		&o.network,
		"share-network",
		false,
		"share this machine's network; network_rules apply to TCP connections there, and without them the policy does not govern it",
	)
}

// commandFlags are the flags of one command.
func (o *execOptions) commandFlags(f *pflag.FlagSet) {
	f.StringVar(&o.cwd, "cwd", "", "`DIR` to start in (default: the current directory, else the workspace)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "set `NAME=VALUE` for the command, subject to env_policy; NAME alone passes it on")
	f.DurationVar(&o.timeout, "timeout", 0, "end the command after this long")
}

// stdio are the streams of this process, or of a test.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

func (o *execOptions) run(ctx context.Context, argv []string, std stdio) error {
	o.forAgent(argv, std)
	if o.json {
		return o.runJSON(ctx, argv, std)
	}
	w, err := o.runner(ctx)
	if err != nil {
		return err
	}
	return o.runWith(ctx, w, argv, std)
}

// runner runs a command: in a session of its own, or in a running one.
type runner interface {
	// start is the directory in which a command starts by default.
	start() string
	// workspace is the first directory under file policy.
	workspace() string
	// execute runs it and closes the runner.
	execute(context.Context, wire.ExecRequest, wire.Streams) (result, error)
	close() error
}

func (o *execOptions) runner(ctx context.Context) (runner, error) {
	if o.session != "" {
		return o.attach(ctx)
	}
	return o.openOneShot()
}

// watched returns the streams of a command, and the refusals that it shows on them where a
// person who reads the standard error of this process sees them.
func watched(std stdio) (*foreground.Shown, wire.Streams) {
	shown := foreground.NewShown(text.DeniedPrefix)
	streams := wire.Streams{Stdin: std.in, Stdout: std.out, Stderr: shown.Watch(std.err)}
	if foreground.SameFile(std.out, std.err) {
		streams.Stdout = shown.Watch(std.out)
	}
	return shown, streams
}

// runWith runs one command on the caller's streams.
func (o *execOptions) runWith(ctx context.Context, w runner, argv []string, std stdio) error {
	request, err := o.request(argv, w)
	if err != nil {
		return errors.Join(err, w.close())
	}
	run := foreground.PassSignals(foreground.Connect(w.execute, unread), earlier)
	if o.tty {
		run = foreground.OnTerminal(std.in, run)
	}
	shown, streams := watched(std)
	r, err := run(ctx, request, streams)
	foreground.SignalsEnd()
	r.refused.Print(foreground.Messages(ctx, std.err), shown, r.auditPath)
	if failed := (*foreground.StreamError)(nil); errors.As(err, &failed) {
		return failure.New(failed.Code(r.exit.ExitCode()), failed, failed.Hint())
	}
	if err != nil && r.exit.Cause == "" {
		return failure.New(failure.Ours, err, auditHint(err))
	}
	return exitFailure(argv[0], r.exit)
}

// request is the command that the flags describe.
func (o *execOptions) request(argv []string, w runner) (wire.ExecRequest, error) {
	environment, err := o.environment()
	if err != nil {
		return wire.ExecRequest{}, err
	}
	if o.shim {
		environment = shim.Environment(environment, w.workspace())
	}
	return wire.ExecRequest{
		ID: "exec", Argv: argv, Program: o.program, Cwd: w.start(), Env: environment, DeadlineMS: o.timeout.Milliseconds(),
	}, nil
}

// noteAdvisory says before a command begins which rules nothing enforces.
func noteAdvisory(rules string) {
	if rules != "" {
		fmt.Fprintln(os.Stderr, "agentsh: note: "+rules)
	}
}

// oneShot runs one command in a session that ends with it.
type oneShot struct {
	config    supervisor.Config
	cwd       string
	audit     *audit.Log
	auditPath string
	shim      bool
}

func (p *oneShot) start() string { return p.cwd }

func (p *oneShot) workspace() string { return p.config.Files.Governed[0].Path }

func (p *oneShot) close() error { return p.audit.Close() }

// execute runs one command in a session that ends with it, and closes the audit
// log.
func (p *oneShot) execute(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (result, error) {
	r := result{exit: wire.Exit{Kind: wire.ExitLost}, auditPath: p.auditPath}
	before := p.audit.Head().Seq
	session, err := supervisor.Open(ctx, p.config)
	if err != nil {
		closed := p.audit.Close()
		if errors.Is(err, audit.ErrNotWritten) {
			closed = nil // a full disk is reported once
		}
		return r, errors.Join(err, closed)
	}
	if err := session.Confine(); err != nil {
		return r, errors.Join(err, session.Close(), p.audit.Close())
	}
	noteAdvisory(session.Missing().Advisory())
	caller := p.terminal(ctx, session.Approvals(), request.TTY, &streams)
	caller.tell(ctx, request.ID, eventsOf(p.audit, before+1))
	r.exit, _, err = session.Exec(ctx, request, streams)
	closed := session.Close()
	var auditErr error
	r.refused, auditErr = refusalsOf(ctx, p.audit, max(before, caller.leave(p.auditPath))+1)
	closed = errors.Join(closed, auditErr, p.audit.Close())
	if r.exit.Kind == wire.ExitLost && err == nil && r.exit.Hint == supervisor.AuditHint {
		closed = nil // a full disk is reported once
	}
	return r, errors.Join(err, closed)
}

// terminal takes the terminal of this process, where the policy has questions asked on it. A
// shell that stands in for another asks nobody: an agent may have started it on a
// terminal of its own.
func (p *oneShot) terminal(ctx context.Context, queue *approve.Queue, tty *wire.TTY, streams *wire.Streams) *callerTerminal {
	asks := p.config.Policy.Approvals().Via == "tty" && !p.shim
	caller, why := takeTerminal(ctx, asks, tty, streams)
	if p.shim {
		why = "a shell that stands in for another asks nobody"
	}
	queue.Absent(why + ": run 'agentsh exec' on a terminal, or make a session with 'agentsh session create' and answer with 'agentsh approve'")
	if asks {
		follow := func(ctx context.Context, fn func([]wire.Pending) error) error { return queue.Follow(ctx, "", fn) }
		caller.ask(ctx, follow, queue.Answer)
	}
	return caller
}

// plan is the session that the flags describe.
type plan struct {
	operator        supervisor.OperatorConfig
	policy          *policy.Policy
	here, workspace string
	auditPath       string
	state           layout.State
	told            string // what sessions do without in this container; empty: nothing
	tools           project.Tools
}

// plan reads the configuration and the policy.
func (o *execOptions) plan() (*plan, error) {
	operator, err := host.ReadConfig(orDefault(o.config, layout.Config), o.config == "")
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	operator, told, err := host.InContainer(operator)
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	// Also a shim makes it: the workspace is found by what is trusted there.
	state, err := host.MakeState(operator)
	if err != nil && !o.shim {
		return nil, failure.New(failure.Ours, err, "")
	}
	here, workspace, err := o.directories(operator.Workspace)
	if err == nil && workspace == "/" {
		if workspace, err = host.ContainerWorkspace(o.workspace+operator.Workspace != ""); err == nil {
			here, told = orDefault(o.cwd, workspace), noWorkdir(told, workspace)
		}
	}
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	if o.shim {
		if state, err = shimState(workspace); err != nil {
			return nil, err
		}
	}
	vars := host.PolicyVars(workspace, operator.Vars)
	if o.shim {
		delete(vars, "USER_HOME") // the caller's variables decide nothing for a shim
	}
	find := discovery.Request{
		File: o.policy, Alone: o.config != "", Operator: operator.Policy, Workspace: workspace, State: state, Vars: vars, Notes: os.Stderr,
		Open: operator.Container.WholeTrees,
	}
	p, err := find.Policy()
	if err != nil {
		return nil, err
	}
	if !o.shim && !find.Open && o.workspace+operator.Workspace == "" {
		noteHome(workspace)
	}
	path := orDefault(o.audit, operator.Audit)
	if path == "" {
		path = newAuditPath(state)
	}
	return &plan{operator, p, here, workspace, path, state, told, discovery.Tools(operator, p)}, nil
}

// openOneShot is the plan with its audit log open.
func (o *execOptions) openOneShot() (*oneShot, error) {
	plan, err := o.plan()
	if err != nil {
		return nil, err
	}
	log, err := openAudit(plan.auditPath, plan.state)
	if err != nil {
		return nil, failure.New(failure.Ours, err, "name a writable file with --audit")
	}
	o.tell(plan)
	boot := o.bootstrapOf(plan)
	if err := o.equip(plan, &boot); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	request := supervisor.Request{Boot: boot, Policy: plan.policy, Audit: log, Cwd: plan.here}
	config := supervisor.SessionConfig(plan.operator, request)
	return &oneShot{audit: log, auditPath: plan.auditPath, cwd: plan.here, shim: o.shim, config: config}, nil
}

// noWorkdir adds to what is told that commands start in another directory than /.
func noWorkdir(told, workspace string) string {
	text := "the image has no working directory, so the workspace is " + workspace + ": to have another, write WORKDIR in the Dockerfile or " +
		"use docker run --workdir DIR"
	if told != "" {
		text = told + "\n  " + text
	}
	return text
}

// noteHome says that rules about the workspace are about the user's home. A container whose
// sessions close nothing in a workspace says so by itself.
func noteHome(workspace string) {
	for _, home := range project.Homes() {
		if paths.Within(paths.Resolve(home), workspace) {
			fmt.Fprintf(os.Stderr, "agentsh: note: your home is in the workspace %s: rules about the workspace apply to all your files. "+
				"The shipped policies close keys and logins that they know, such as ~/.ssh. "+
				"Change to a project, or name one with --workspace DIR\n", workspace)
			return
		}
	}
}

// tell prints what sessions of this container do without, once in the container.
func (o *execOptions) tell(p *plan) {
	if p.told == "" {
		return
	}
	mark, err := os.OpenFile(p.state.Told(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	if err == nil {
		_ = mark.Close() // it is empty
	}
	fmt.Fprintf(os.Stderr, "agentsh: note: %s\n", p.told)
}

// bootstrapOf describes the workspace, the store and the network of a session.
func (o *execOptions) bootstrapOf(p *plan) wire.Bootstrap {
	boot := wire.Bootstrap{
		Version: wire.Current, Governed: []wire.Governed{{Backing: p.workspace, Path: p.workspace}},
		Home: layout.CommandHome, StoreDir: p.state.Store(), Network: o.network, Degraded: o.fallbacks(),
	}
	if len(p.tools.Path) > 0 {
		boot.Path = p.tools.Of(p.operator.Path)
	}
	boot.EnvInject = maps.Clone(p.tools.Env)
	boot.Identity = o.identity(p)
	maps.DeleteFunc(boot.EnvInject, func(name, _ string) bool { _, set := p.operator.EnvInject[name]; return set })
	return boot
}

// identity is what git has for the user who starts the session. The caller of a shim
// counts by the user database alone. Where commands could write to the home there is none.
func (o *execOptions) identity(p *plan) wire.Identity {
	home, getenv := project.Home(), os.Getenv
	if o.shim {
		home, getenv = project.HomeOf(os.Geteuid()), nil
	}
	if home == "" || p.operator.NoGitIdentity || project.UsersTrust().HomeOpened() {
		return wire.Identity{}
	}
	id, err := project.Identity(home, p.workspace, getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "agentsh: note: git has no identity in this session:", err)
	}
	return id
}

// fallbacks are the mechanisms of the flag --degraded.
func (o *execOptions) fallbacks() []wire.Setting {
	var out []wire.Setting
	for _, name := range o.degraded {
		out = append(out, wire.Setting{Name: strings.TrimSpace(name), At: "--degraded"})
	}
	return out
}

// environment is the requested environment; NAME alone takes this process's value.
func (o *execOptions) environment() ([]string, error) {
	var out []string
	if o.inherit {
		out = os.Environ()
	}
	for _, e := range o.env {
		if !strings.Contains(e, "=") {
			value, set := os.LookupEnv(e)
			if !set {
				return nil, failure.New(failure.Usage, fmt.Errorf("--env %s: not set here", e), "write --env "+e+"=VALUE")
			}
			e += "=" + value
		}
		out = append(out, e)
	}
	return out, nil
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
