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

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
	"agentsh/internal/layout"
	"agentsh/internal/shim"
	"agentsh/policy"
	"agentsh/policy/syntax"
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
	if !slices.ContainsFunc(shells, func(s shim.Shell) bool { return "/"+s.Path == executable }) {
		return failure.New(
			failure.Ours,
			fmt.Errorf("%s was started as the shell %s, for which it does not stand in", executable, argv[0]),
			"run 'agentsh shim install'",
		)
	}
	o := execOptions{config: layout.Config, program: executable, inherit: true}
	o.tty = foreground.IsTerminal(os.Stdin) && foreground.IsTerminal(os.Stdout)
	p, err := o.openOneShot()
	if err != nil {
		return err
	}
	return o.runWith(ctx, p, argv, std)
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
	var root, policyFile string
	var asJSON bool
	cmd.PersistentFlags().StringVar(&root, "root", "/", "`DIR` of the image")
	install := &cobra.Command{
		Use: "install [--root DIR] [--policy FILE]", Short: "Replace /bin/sh and /bin/bash", Args: cobra.NoArgs,
		Example: "  agentsh shim install\n" +
			"  agentsh shim install --root /srv/image --policy /etc/agentsh/policies/ci-strict.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return installShim(cmd.OutOrStdout(), root, policyFile)
		},
	}
	install.Flags().StringVarP(
		&policyFile,
		"policy",
		"p",
		"",
		"write the configuration of an image that has none, with a copy of this policy `FILE`",
	)
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

// installShim replaces the shells of an image whose configuration holds: with
// any other, nothing would run in it any more.
func installShim(w io.Writer, root, policyFile string) error {
	if policyFile != "" {
		if err := configureImage(root, policyFile); err != nil {
			return failure.New(failure.Ours, err, "")
		}
	}
	if err := checkImage(root); err != nil {
		return failure.New(failure.Ours, err, "name a policy in "+filepath.Join(root, layout.Config)+", or install with --policy FILE")
	}
	states, err := shim.Install(root, "/proc/self/exe")
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	return printStates(w, states, false)
}

// imagePolicy is where --policy puts a policy.
const imagePolicy = "etc/agentsh/policy.yaml"

// configureImage writes the configuration of an image that has none.
func configureImage(root, policyFile string) error {
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
	return r.WriteFile(config, []byte("version: 1\npolicy: /"+imagePolicy+"\n"), 0o644)
}

// checkImage reads the configuration and the policy of an image as the shim will.
func checkImage(root string) error {
	operator, err := host.ReadConfig(filepath.Join(root, layout.Config), false)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(operator.Policy) {
		return fmt.Errorf("%s names no policy by an absolute path", filepath.Join(root, layout.Config))
	}
	read := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(root, name)) }
	data, err := read(operator.Policy)
	if err != nil {
		return err
	}
	_, err = syntax.Load(policy.Source{Name: operator.Policy, Data: data},
		syntax.Options{Vars: host.PolicyVars(orDefault(operator.Workspace, "/workspace"), operator.Vars), OutsideWorkspace: true, ReadFile: read})
	return err
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
