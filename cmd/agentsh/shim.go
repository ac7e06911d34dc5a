package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/internal/shim"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
	"agentsh/supervisor/host"
)

// runShim is agentsh in place of a shell: it runs the shell that was there, with
// the same arguments, in a session under the operator's policy. Nothing makes
// it run anything else: what is missing or wrong is the end, with exit code 125.
func runShim(ctx context.Context, executable string, argv []string) int {
	std := stdio{os.Stdin, os.Stdout, os.Stderr}
	return failure.Report(foreground.Messages(ctx, os.Stderr), shimCommand(ctx, executable, argv, std))
}

func shimCommand(ctx context.Context, executable string, argv []string, std stdio) error {
	if len(argv) == 0 {
		return failure.New(failure.Ours, errors.New("started without a name"), "")
	}
	shells, err := shim.Shells("/")
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	at := slices.IndexFunc(shells, func(s shim.Shell) bool { return "/"+s.Path == executable })
	if at < 0 {
		return failure.New(
			failure.Ours,
			fmt.Errorf("%s was started as the shell %s, for which it does not stand in", executable, argv[0]),
			"run 'agentsh shim install'",
		)
	}
	if shim.ForPackage() {
		return failure.New(failure.Ours, shells[at].Become(argv), "")
	}
	o := execOptions{config: layout.Config, program: executable, shim: true, inherit: true}
	o.tty = foreground.IsTerminal(os.Stdin) && foreground.IsTerminal(os.Stdout)
	w, err := o.shimSession(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(std.err, shim.NoteDirectory(paths.Here(), w.workspace(), w.start()))
	return o.runWith(ctx, w, argv, std)
}

// newShimCommand replaces shells by agentsh.
func newShimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shim",
		Short: "Stand in for the shells of an image",
		Long: `Stand in for the shells of an image.

A platform that starts "sh -c ..." by itself then starts agentsh, which runs the
shell that was there in a session under the policy of ` + layout.Config + `.
Where that cannot be, nothing runs: the exit status is 125. Inside a session the
shells are themselves.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var root string
	var i installation
	var asJSON bool
	cmd.PersistentFlags().StringVar(&root, "root", "/", "`DIR` of the image")
	install := &cobra.Command{
		Use: "install [flags]", Short: "Replace /bin/sh and /bin/bash", Args: cobra.NoArgs,
		Example: "  agentsh shim install\n" +
			"  agentsh shim install --root /srv/image --policy /etc/agentsh/policies/ci-strict.yaml --workspace /work\n" +
			"  agentsh shim install --session shared",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return i.install(cmd.OutOrStdout(), root)
		},
	}
	discovery.PolicyFlag(install.Flags(), &i.policy, "write the configuration of an image that has none, with a copy of this policy `FILE`")
	install.Flags().StringVarP(&i.workspace, "workspace", "w", "", "with --policy: the workspace, an absolute `DIR` of the image")
	install.Flags().StringVar(&i.session, "session", "",
		"`KIND` of session: own (one for each shell) or shared (one for all shells of a user); default: what it was, else own")
	if err := install.RegisterFlagCompletionFunc("session",
		cobra.FixedCompletions([]string{shim.Own, shim.Shared}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("agentsh: shim install: " + err.Error())
	}
	status := &cobra.Command{
		Use: "status [--root DIR] [--json]", Short: "Tell what is in place, by digests", Args: cobra.NoArgs,
		Example: "  agentsh shim status --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := shim.Status(root)
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return printStates(cmd.OutOrStdout(), states, asJSON)
		},
	}
	status.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	uninstall := &cobra.Command{
		Use: "uninstall [--root DIR]", Short: "Put the shells back", Args: cobra.NoArgs,
		Example: "  agentsh shim uninstall --root /srv/image",
		RunE: func(*cobra.Command, []string) error {
			if err := shim.Uninstall(root); err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
	cmd.AddCommand(install, status, uninstall)
	return cmd
}

// installation are the flags of shim install.
type installation struct{ policy, workspace, session string }

// install replaces the shells of an image whose configuration holds: with any other,
// nothing would run in it any more.
func (i installation) install(w io.Writer, root string) error {
	switch {
	case !slices.Contains([]string{"", shim.Own, shim.Shared}, i.session):
		return failure.Usagef("--session %s: own or shared", i.session)
	case i.workspace != "" && (i.policy == "" || !filepath.IsAbs(i.workspace)):
		return failure.Usagef("--workspace %s: an absolute path, together with --policy", i.workspace)
	}
	if i.policy != "" {
		if err := configureImage(root, i.policy, i.workspace); err != nil {
			return failure.New(failure.Ours, err, project.MissingHint(i.policy, err))
		}
	}
	operator, err := checkImage(root)
	config := filepath.Join(root, layout.Config)
	if err != nil {
		return failure.New(failure.Ours, err, "name a policy in "+config+", or install with --policy FILE")
	}
	session := i.session
	if session == "" {
		if session, err = shim.Session(root); err != nil {
			return failure.New(failure.Ours, err, "")
		}
	}
	if session == shim.Shared && operator.Workspace == "" {
		return failure.New(failure.Ours, fmt.Errorf("%s names no workspace, and shells that share a session work in one", config),
			"add 'sandbox: {workspace: DIR}'")
	}
	states, err := shim.Install(root, "/proc/self/exe", i.session)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	return printStates(w, states, false)
}

// imagePolicy is where --policy puts a policy.
const imagePolicy = "etc/agentsh/policy.yaml"

// configureImage writes the configuration of an image that has none.
func configureImage(root, policyFile, workspace string) error {
	data, err := os.ReadFile(policyFile)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // a directory
	config := layout.Config[1:]
	if _, err := r.Lstat(config); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s is there: name the policy in it", filepath.Join(root, config)), err)
	}
	if err := r.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		return err
	}
	if err := r.WriteFile(imagePolicy, data, 0o644); err != nil {
		return err
	}
	text := "version: 1\npolicy: /" + imagePolicy + "\n"
	if workspace != "" {
		quoted, err := json.Marshal(workspace)
		if err != nil {
			return err
		}
		text += "sandbox: {workspace: " + string(quoted) + "}\n"
	}
	return r.WriteFile(config, []byte(text), 0o644)
}

// checkImage reads the configuration and the policy of an image as the shim will.
func checkImage(root string) (supervisor.OperatorConfig, error) {
	operator, err := host.ReadConfig(filepath.Join(root, layout.Config), false)
	if err != nil {
		return operator, err
	}
	if !filepath.IsAbs(operator.Policy) {
		return operator, fmt.Errorf("%s names no policy by an absolute path", filepath.Join(root, layout.Config))
	}
	read := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(root, name)) }
	data, err := read(operator.Policy)
	if err != nil {
		return operator, err
	}
	vars := host.PolicyVars(orDefault(operator.Workspace, "/workspace"), operator.Vars)
	delete(vars, "USER_HOME") // a shim has none
	_, err = syntax.Load(policy.Source{Name: operator.Policy, Data: data}, syntax.Options{Vars: vars, OutsideWorkspace: true, ReadFile: read})
	return operator, err
}

// printStates prints the state of each shell; an unsound one is a failure.
func printStates(w io.Writer, states []shim.State, asJSON bool) error {
	sound := true
	var b strings.Builder
	for _, s := range states {
		sound = sound && s.Sound
		fmt.Fprintf(&b, "%s: %s\n", s.Path, s.Text)
	}
	if asJSON {
		data, err := json.MarshalIndent(states, "", "  ")
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		b.Reset()
		fmt.Fprintf(&b, "%s\n", data)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	if !sound {
		return failure.New(1, nil, "")
	}
	return nil
}
