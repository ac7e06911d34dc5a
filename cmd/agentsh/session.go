package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/internal/shim"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/host"
)

func newSessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Keep sessions running for many commands",
		Long: `Keep sessions running for many commands.

A session has a supervisor in the background, which answers this user alone on a
socket below XDG_RUNTIME_DIR, or below /run for root. Commands inside cannot reach it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionCreateCommand(), newSessionListCommand(), newSessionReloadCommand(), newSessionDestroyCommand())
	return cmd
}

func newSessionCreateCommand() *cobra.Command {
	var o execOptions
	var name string
	cmd := &cobra.Command{
		Use:     "create [flags]",
		Short:   "Start a session in the background and print its name",
		Example: "  agentsh session create --policy examples/policies/demo.yaml --name work\n  agentsh exec --session work -- git status",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			one, err := o.create(cmd.Context(), orDefault(name, randomName("s")), nil)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), one.Name)
			return nil
		},
	}
	o.sessionFlags(cmd.Flags())
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the session (default: a random one)")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "end the session after this long, in whole seconds")
	return cmd
}

// randomName is the name of a session that nobody named.
func randomName(prefix string) string { return prefix + strings.ToLower(rand.Text()[:8]) }

// create starts the session that the flags describe. It ends with its owner; nil: it has none.
func (o *execOptions) create(ctx context.Context, name string, owner *os.File) (host.Running, error) {
	var none host.Running
	if o.timeout < 0 || o.timeout%time.Second != 0 {
		return none, failure.Usagef("--timeout %s: whole seconds", o.timeout)
	}
	plan, err := o.plan()
	if err != nil {
		return none, err
	}
	boot, err := o.bootstrap(plan)
	if err != nil {
		return none, failure.New(failure.Ours, err, "")
	}
	o.tell(plan)
	config := o.config
	if config != "" {
		if config, err = filepath.Abs(config); err != nil {
			return none, failure.New(failure.Ours, err, "")
		}
	}
	registry, err := host.OpenRegistry()
	if err != nil {
		return none, failure.New(failure.Ours, err, "")
	}
	one, err := registry.Create(ctx, name, host.Described{Config: config, Boot: boot, Owner: owner})
	if err != nil {
		return none, failure.New(failure.Ours, err, "")
	}
	return one, nil
}

// bootstrap describes a session to its supervisor.
func (o *execOptions) bootstrap(p *plan) (wire.Bootstrap, error) {
	path, err := filepath.Abs(p.auditPath)
	if err != nil {
		return wire.Bootstrap{}, err
	}
	if err := makeAuditDirectories(path, p.state); err != nil {
		return wire.Bootstrap{}, err
	}
	boot := o.bootstrapOf(p)
	for _, source := range p.policy.Sources() {
		boot.Policy = append(boot.Policy, wire.PolicySource(source))
	}
	boot.Vars, boot.AuditPath, boot.AuditKey = p.policy.Vars(), path, p.state.AuditKey()
	if boot.Origin, err = o.origin(p.policy); err != nil {
		return wire.Bootstrap{}, err
	}
	boot.LifetimeSeconds = int(o.timeout / time.Second)
	return boot, nil
}

// origin is where the policy of a session comes from.
func (o *execOptions) origin(p *policy.Policy) (out wire.Origin, err error) {
	if out.Policy, err = filepath.Abs(policy.MainFile(p)); err == nil && o.config != "" {
		out.Config, err = filepath.Abs(o.config)
	}
	out.Named = o.policy != "" || o.config != ""
	return out, err
}

func newSessionListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Example: "  agentsh session list --json",
		Short:   "List running sessions",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registry, err := host.OpenRegistry()
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			list, err := registry.List()
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(append([]host.Running{}, list...))
			}
			return printSessions(cmd.OutOrStdout(), list, time.Now())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// printSessions prints a table; without sessions, nothing.
func printSessions(out io.Writer, list []host.Running, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tPOLICY\tWORKSPACE\tSTARTED\tENDS\tAUDIT")
	for _, one := range list {
		ends := "-"
		if one.Ends != nil {
			ends = "in " + one.Ends.Sub(now).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", one.Name, printable(one.Policy), printable(one.Workspace),
			one.Started.Format(time.RFC3339), ends, printable(one.Audit))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, one := range list {
		if one.Advisory != "" {
			fmt.Fprintf(out, "note: %s: %s\n", one.Name, printable(one.Advisory))
		}
	}
	return nil
}

func newSessionDestroyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "destroy NAME ...",
		Example: "  agentsh session destroy work",
		Short:   "End sessions and wait until nothing of them is left",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			registry, err := host.OpenRegistry()
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			for _, name := range names {
				if err := registry.Destroy(cmd.Context(), name); err != nil {
					return sessionFailure(err)
				}
			}
			return nil
		},
	}
}

// directories are where the command starts and its workspace, links resolved.
// configured is the workspace of the configuration, if any.
func (o *execOptions) directories(configured string) (cwd, workspace string, err error) {
	named := orDefault(o.workspace, configured)
	if workspace, err = filepath.Abs(orDefault(named, ".")); err != nil {
		return "", "", err
	}
	if workspace, err = filepath.EvalSymlinks(workspace); err != nil {
		return "", "", fmt.Errorf("workspace: %w%s", err, o.instead(err))
	}
	if named == "" {
		workspace = project.Root(workspace, project.UsersTrust(), project.Homes()...)
	}
	if o.cwd != "" {
		return o.cwd, workspace, nil
	}
	return hereIn(workspace), workspace, nil
}

// instead says what to do about a workspace that is missing.
func (o *execOptions) instead(err error) string {
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return ""
	case o.workspace != "":
		return ": make the directory, or name another with --workspace"
	}
	return ": make the directory, or name another with --workspace or sandbox.workspace in " + orDefault(o.config, layout.Config)
}

// hereIn is the current directory when it is in the workspace, else that.
func hereIn(workspace string) string {
	return shim.StartIn(paths.Here(), workspace)
}
