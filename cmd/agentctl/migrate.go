package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/settings"
	"agentsh/controller/harness"
)

func newMigrateCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:     "migrate FILE",
		Example: "  agentctl migrate harness/fix.yaml",
		Short:   "Rewrite deprecated settings of a harness in place",
		Long: `migrate moves runner_env to env.runner, also in forge and overlay blocks. It
keeps comments and spelling, and writes nothing unless the new text means what
the old one meant. Keys that env.runner has as well are dropped, since there
env.runner wins.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			changed, err := migrateFile(args[0], check)
			switch {
			case err != nil:
				return migrateError(cmd, err)
			case !changed:
				fmt.Fprintf(cmd.OutOrStdout(), "%s: nothing to do\n", args[0])
			case check:
				return fmt.Errorf("%s has deprecated settings", args[0])
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "%s: migrated\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; exit code 2 when there is something to do")
	return cmd
}

// migrateError prints the problems of a file that does not load.
func migrateError(cmd *cobra.Command, err error) error {
	var ps harness.Problems
	if errors.As(err, &ps) {
		return stderrProblems(cmd, ps)
	}
	return err
}

// migrateFile rewrites one file in one step, and preserves its mode. It follows
// a symbolic link, so that the link remains.
func migrateFile(name string, check bool) (changed bool, err error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return false, fmt.Errorf("migrate: %w", err)
	}
	info, err := os.Stat(real)
	if err != nil {
		return false, fmt.Errorf("migrate: %w", err)
	}
	data, err := harness.ReadFile(real)
	if err != nil {
		return false, fmt.Errorf("migrate %s: %w", name, err)
	}
	out, changed, err := harness.Migrate(name, data)
	if err != nil || !changed || check {
		return changed, err
	}
	f, err := os.CreateTemp(filepath.Dir(real), ".migrate-*")
	if err != nil {
		return false, fmt.Errorf("migrate %s: %w", name, err)
	}
	_, err = f.Write(out)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), real)
	}
	if err != nil {
		return false, fmt.Errorf("migrate %s: %w", name, errors.Join(err, os.Remove(f.Name())))
	}
	return true, nil
}
