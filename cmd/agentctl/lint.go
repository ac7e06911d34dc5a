package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/cli"
	"agentsh/internal/text"
)

func newLintCommand() *cobra.Command {
	var flags settings.Run
	var format string
	var strict bool
	cmd := &cobra.Command{
		Use: "lint [FILE|DIR]...",
		Example: "  agentctl lint\n" +
			"  agentctl lint --strict --output sarif harness/fix.yaml\n" +
			"  agentctl lint --repo . harness/fix.yaml",
		Short: "Check harness files and batches",
		Long: `lint checks harness files with their bases and reports every problem with its
place. Of a batch it checks the harnesses and repositories too that it names. A directory stands for the harness files in it or in its directory
harness: all YAML files but the policies, profiles and providers that they name.
Without an argument the current directory is checked, without --forge the blocks
of all forges in turn. A harness without a policy is an error. A base of another
file that is checked need not be whole.

With --repo, what 'agentctl run FILE --repo DIR' would refuse here is a problem too,
up to the start of the agent: variables, images, the supervisor and its
configuration, what the sandbox needs, and scans. A sandbox is made for it and
deleted. No script of the harness runs; a shell in the sandbox reads .env files. --json
lists what only a run can know as notes of the rule only-run.

Exit code 2 when a problem is an error.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(output.ProblemFormats, format) {
				return fmt.Errorf("unknown output format %q: one of %s", format, strings.Join(output.ProblemFormats, ", "))
			}
			o, err := flags.Load.Options()
			if err != nil {
				return err
			}
			ps, files, err := lintAll(args, o, flags.SpecCheck, func(name string) (harness.Problems, error) {
				return flags.Check(cmd.Context(), cmd.ErrOrStderr(), name)
			})
			if err != nil {
				return err
			}
			if format != output.FormatJSON {
				ps = slices.DeleteFunc(ps, func(p harness.Problem) bool { return p.Rule == harness.RuleOnlyRun })
			}
			if strict {
				ps = ps.Strict()
			}
			if err := output.PrintProblems(cmd.OutOrStdout(), ps, format); err != nil {
				return err
			}
			if ps.HasErrors() {
				return &output.Failure{Code: controller.ExitConfiguration}
			}
			if format == output.FormatText && len(ps) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: no problems\n", text.Count(files, "file"))
			}
			return nil
		},
	}
	flags.Load.Add(cmd)
	flags.AddInputs(cmd, "", "check also what 'run --repo `DIR`' would refuse on this machine")
	cmd.Flags().StringVarP(&format, "output", "o", output.FormatText, "text, json, github or sarif")
	cli.AddJSON(cmd, &format)
	cmd.Flags().BoolVar(&strict, "strict", false, "deprecations are errors")
	settings.Complete(cmd, "output", output.ProblemFormats)
	return cmd
}

// specCheck returns what the backend of a harness says of a sandbox without its place; nil: nothing.
type specCheck func(*harness.Harness) func(sandbox.Spec) error

// lintAll checks files and the harness files of directories. It returns the
// problems and the number of files.
func lintAll(
	args []string, o harness.Options, place specCheck, check func(name string) (harness.Problems, error),
) (harness.Problems, int, error) {
	l := harness.NewLoader(o)
	files, err := lintFiles(l, args)
	if err != nil {
		return nil, 0, err
	}
	files, batches, ps := lintBatches(l, files)
	builtOn := map[string]string{} // a file that builds on another, by the real name of that
	for _, name := range files {
		for _, base := range l.Bases(name) {
			builtOn[realName(base)] = name
		}
	}
	var whole []string // those that a run can start with
	for _, name := range files {
		if child, ok := builtOn[realName(name)]; ok {
			ps = append(ps, lintBase(l.AsBaseOf(child), name, o.Forge, place)...)
			continue
		}
		whole = append(whole, name)
		ps = append(ps, lintFile(l, name, o.Forge, place)...)
	}
	if ps.HasErrors() {
		return strongest(ps), len(files) + batches, nil // a run refuses these first
	}
	for _, name := range whole {
		more, err := check(name)
		if err != nil {
			return nil, 0, err
		}
		ps = append(ps, more...)
	}
	return strongest(ps), len(files) + batches, nil
}

// lintBatches checks the batches among files. It returns the harness files, with those that the batches
// name, and the number of batches.
func lintBatches(l *harness.Loader, files []string) (harnesses []string, batches int, ps harness.Problems) {
	known := map[string]bool{}
	add := func(name string) {
		if real := realName(name); !known[real] {
			known[real] = true
			harnesses = append(harnesses, name)
		}
	}
	var named []string
	for _, name := range files {
		if !batch.Is(name) {
			add(name)
			continue
		}
		batches++
		spec, _, more := batch.Load(name, nil)
		if spec != nil {
			more = append(more, spec.Check(func(file string) (d batch.Described, _ harness.Problems) {
				named = append(named, file)
				if h, _ := l.Load(file); h != nil { // its problems are reported once, below
					d = batch.Described{Backend: h.Backend.Or(local.Name), Provider: controller.ModelProvider(h)}
				}
				return d, nil
			})...)
		}
		ps = append(ps, more...)
	}
	for _, name := range named {
		add(name)
	}
	return harnesses, batches, ps
}

// lintFiles are the files of the command line and the harness files of its directories.
func lintFiles(l *harness.Loader, args []string) ([]string, error) {
	if len(args) == 0 {
		args = []string{"."}
	}
	var files, found []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			files = append(files, arg) // the loader reports the problem
			continue
		}
		more, err := harnessFiles(arg)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	named := map[string]bool{}
	for _, name := range found {
		for _, other := range l.Named(name) {
			named[other] = true
		}
	}
	found = slices.DeleteFunc(found, func(name string) bool { return named[realName(name)] })
	return append(files, found...), nil
}

// realName is the absolute name of a file without symbolic links, or the name itself.
func realName(name string) string {
	full, err := filepath.Abs(name)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return name
	}
	return full
}

// strongest sorts problems. Each is listed once, with its highest severity.
func strongest(ps harness.Problems) harness.Problems {
	return slices.DeleteFunc(ps.Sorted(), func(weak harness.Problem) bool {
		return slices.ContainsFunc(ps, func(p harness.Problem) bool {
			p.At.Layer = weak.At.Layer
			return p.Severity > weak.Severity && p.At == weak.At && p.Message == weak.Message
		})
	})
}

// harnessFiles are the YAML files of a directory, or of its subdirectory
// harness.
func harnessFiles(dir string) ([]string, error) {
	if info, err := os.Stat(filepath.Join(dir, "harness")); err == nil && info.IsDir() {
		dir = filepath.Join(dir, "harness")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list harness files: %w", err)
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no harness files in %s", dir)
	}
	sort.Strings(out)
	return out, nil
}

// lintBase checks a base of a file that is checked too. What the base leaves to
// that file is checked there, with its forges.
func lintBase(l *harness.Loader, name, forge string, place specCheck) harness.Problems {
	if !slices.Contains(l.Forges(name), forge) {
		forge = ""
	}
	ps := lintFile(l, name, forge, place)
	if slices.ContainsFunc(ps, func(p harness.Problem) bool { return p.Rule == harness.RuleRequired }) {
		return nil
	}
	return ps
}

// lintFile checks one file for one forge. Without a forge, it checks the file
// alone and with each of its forges.
func lintFile(l *harness.Loader, name, forge string, place specCheck) harness.Problems {
	forges := []string{forge}
	if forge == "" {
		forges = append(forges, l.Forges(name)...)
	}
	var ps harness.Problems
	for _, forge := range forges {
		ps = append(ps, lintForge(l.With(forge), name, place)...)
	}
	return ps.Sorted()
}

// lintForge checks one file for the forge of the loader.
func lintForge(l *harness.Loader, name string, place specCheck) harness.Problems {
	h, ps := l.Load(name)
	if h == nil {
		return ps
	}
	if !ps.HasErrors() {
		// What the loader only warns of, a run refuses.
		ps = slices.DeleteFunc(ps, func(p harness.Problem) bool { return p.Rule == harness.RuleRun })
		more := controller.Lint(name, h, place(h))
		if !h.Policy.IsSet() && l.MayWrite(name, "policy") {
			more = slices.DeleteFunc(more, func(p harness.Problem) bool { return p.Rule == harness.RuleRequired })
			more = append(more, settings.OnlyRun(name, "only a forge block or an overlay names the policy: give --forge and --event of the run")...)
		}
		ps = append(ps, more...)
	}
	return append(ps, provider.Lint(h)...)
}
