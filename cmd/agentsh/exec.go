package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
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
}

func newExecCommand() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG ...]",
		Short: "Run one command under a policy",
		Long: `Run one command under a policy, in a session of its own that ends with it.

The command sees the workspace and what the policy's file_rules allow; every
program it starts is judged. The exit status is the command's own; 124 means the
timeout, 125 that agentsh could not run it, 126 denied, 127 not found.`,
		Example: "  agentsh exec --policy examples/policies/demo.yaml -- git status",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.policy, "policy", "p", "", "policy `FILE` (default: the configuration's)")
	f.StringVar(&o.config, "config", "", "configuration `FILE` (default "+supervisor.DefaultConfigPath+" where it exists)")
	f.StringVarP(&o.workspace, "workspace", "w", "", "`DIR` the command works in, under file policy (default: the current directory)")
	f.StringVar(&o.cwd, "cwd", "", "`DIR` to start in (default: the current directory, else the workspace)")
	f.StringVar(&o.audit, "audit", "", "audit log `FILE` (default: a new one in the state directory)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "set `NAME=VALUE` for the command, subject to env_policy; NAME alone passes it on")
	f.DurationVar(&o.timeout, "timeout", 0, "end the command after this long")
	f.BoolVar(&o.network, "share-network", false, "share this machine's network instead of having none; not governed by the policy")
	return cmd
}

func (o *execOptions) run(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	environment, err := o.environment()
	if err != nil {
		return err
	}
	place, err := o.place()
	if err != nil {
		return err
	}
	before := place.audit.Head().Seq
	session, err := supervisor.Open(ctx, place.config)
	if err != nil {
		return fail(exitOurs, errors.Join(err, place.audit.Close()), "")
	}
	request := wire.ExecRequest{ID: "exec", Argv: argv, Cwd: place.cwd, Env: environment, DeadlineMS: o.timeout.Milliseconds()}
	exit, _, err := session.Exec(ctx, request, channel.Streams{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	err = errors.Join(err, session.Close())
	refused, auditErr := refusals(ctx, place.audit, before+1)
	refused.print(stderr, place.auditPath)
	err = errors.Join(err, auditErr, place.audit.Close())
	if err != nil {
		return fail(exitOurs, err, "")
	}
	return exitFailure(argv[0], exit)
}

// exitFailure turns the end of a command into the exit of this one. A denial was
// already told with the other refusals.
func exitFailure(name string, exit wire.Exit) error {
	code := exit.ExitCode()
	switch exit.Kind {
	case wire.ExitDeadline:
		return fail(code, fmt.Errorf("%s: ended by its timeout", name), "")
	case wire.ExitSpawnFailed, wire.ExitLost:
		return fail(code, errors.New(exit.Message), exit.Hint)
	}
	if code == 0 {
		return nil
	}
	return fail(code, nil, "")
}

// place is where a one-shot command runs.
type place struct {
	config    supervisor.Config
	cwd       string
	audit     *audit.Log
	auditPath string
}

// place reads the configuration and the policy and opens the audit log.
func (o *execOptions) place() (*place, error) {
	operator, err := supervisor.ReadConfig(orDefault(o.config, supervisor.DefaultConfigPath), o.config == "")
	if err != nil {
		return nil, fail(exitOurs, err, "")
	}
	here, workspace, err := o.directories()
	if err != nil {
		return nil, fail(exitOurs, err, "")
	}
	p, err := readPolicy(orDefault(o.policy, operator.Policy), policyVars(workspace, operator.Vars))
	if err != nil {
		return nil, err
	}
	path := orDefault(o.audit, operator.Audit)
	if path == "" {
		path = defaultAuditPath()
	}
	log, err := openAudit(path)
	if err != nil {
		return nil, fail(exitOurs, err, "name a writable file with --audit")
	}
	return &place{
		audit: log, auditPath: path, cwd: here,
		config: supervisor.Config{
			Policy: p, Governed: []wire.Governed{{Backing: workspace, Path: workspace}}, Inject: operator.EnvInject,
			Home: sandboxHome, Cwd: here, Path: operator.Path, User: operator.User, Network: o.network, Audit: log,
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		},
	}, nil
}

// sandboxHome is HOME inside a one-shot session.
const sandboxHome = "/home/sandbox"

// directories are where the command starts and its workspace, links resolved.
func (o *execOptions) directories() (cwd, workspace string, err error) {
	if workspace, err = filepath.Abs(orDefault(o.workspace, ".")); err != nil {
		return "", "", err
	}
	if workspace, err = filepath.EvalSymlinks(workspace); err != nil {
		return "", "", fmt.Errorf("workspace: %w", err)
	}
	if o.cwd != "" {
		return o.cwd, workspace, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	if here != workspace && !strings.HasPrefix(here, workspace+"/") {
		here = workspace
	}
	return here, workspace, nil
}

// environment is what the flags ask for; NAME alone takes this process's value.
func (o *execOptions) environment() ([]string, error) {
	var out []string
	for _, e := range o.env {
		if !strings.Contains(e, "=") {
			value, set := os.LookupEnv(e)
			if !set {
				return nil, fail(exitUsage, fmt.Errorf("--env %s: not set here", e), "write --env "+e+"=VALUE")
			}
			e += "=" + value
		}
		out = append(out, e)
	}
	return out, nil
}

// policyVars are the variables of policies for a workspace.
func policyVars(workspace string, more map[string]string) map[string]string {
	vars := map[string]string{"WORKSPACE": workspace, "PROJECT_ROOT": workspace, "GIT_ROOT": workspace, "HOME": sandboxHome, "TMPDIR": "/tmp"}
	for name, value := range more {
		vars[name] = value
	}
	return vars
}

// readPolicy loads a policy file and what it extends.
func readPolicy(path string, vars map[string]string) (*policy.Policy, error) {
	if path == "" {
		return nil, fail(exitOurs, errors.New("no policy"), "name one with --policy FILE or in "+supervisor.DefaultConfigPath)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fail(exitOurs, fmt.Errorf("policy: %w", err), "")
	}
	p, err := policy.Load(policy.Source{Name: path, Data: data}, policy.Options{Vars: vars, ReadFile: os.ReadFile})
	if err != nil {
		return nil, fail(exitOurs, err, "run 'agentsh policy check "+path+"'")
	}
	return p, nil
}

// openAudit opens an audit log and makes its directory, for the owner only. The
// key of its anchor lies in the state directory, which no session shows.
func openAudit(path string) (*audit.Log, error) {
	key := filepath.Join(stateDir(), "audit.key")
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(key)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return audit.Open(path, audit.Options{KeyFile: key})
}

// stateDir is where agentsh keeps what outlives a session.
func stateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/agentsh"
	}
	dir := os.Getenv("XDG_STATE_HOME")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "agentsh")
}

func defaultAuditPath() string {
	return filepath.Join(stateDir(), "audit", fmt.Sprintf("%s-%d.jsonl", time.Now().UTC().Format("20060102T150405Z"), os.Getpid()))
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

// maxDenials is how many refusals are printed after a command.
const maxDenials = 20

// denials collects the refusals of a session for the person at the terminal.
type denials struct{ lines []string }

// refusals reads what was refused since event from.
func refusals(ctx context.Context, log *audit.Log, from uint64) (*denials, error) {
	var d denials
	last := log.Head().Seq
	if last < from {
		return &d, nil
	}
	follower, err := log.Subscribe(from)
	if err != nil {
		return &d, err
	}
	for err == nil {
		var e wire.Event
		if e, err = follower.Next(context.WithoutCancel(ctx)); err != nil {
			break
		}
		d.note(e)
		if e.Seq >= last {
			break
		}
	}
	return &d, errors.Join(err, follower.Close())
}

// note takes one audit event.
func (d *denials) note(e wire.Event) {
	if e.Decision != policy.Deny.String() {
		return
	}
	what := strings.Join(e.Argv, " ")
	if what == "" {
		what = strings.TrimSpace(e.Op + " " + e.Path + " " + e.Target)
	}
	line := "agentsh: denied: " + printable(what)
	if e.Rule != nil {
		line += fmt.Sprintf(" (rule %s, %s)", e.Rule.Name, orDefault(e.Rule.At, "the policy's default"))
	}
	if e.Message != "" {
		line += ": " + printable(e.Message)
	}
	if e.Hint != "" {
		line += "\nagentsh: hint: " + printable(e.Hint)
	}
	if !slices.Contains(d.lines, line) {
		d.lines = append(d.lines, line)
	}
}

func (d *denials) print(w io.Writer, auditPath string) {
	for _, line := range d.lines[:min(len(d.lines), maxDenials)] {
		fmt.Fprintln(w, line)
	}
	if more := len(d.lines) - maxDenials; more > 0 {
		fmt.Fprintf(w, "agentsh: %d more refusals in %s\n", more, auditPath)
	}
}

// printable removes control characters: an agent chooses these texts.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '?'
		}
		return r
	}, s)
}
