package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/internal/text"
)

// loadFlags are the common flags of the commands that load a harness.
type loadFlags struct {
	forge  string
	forges []string
	root   string
	event  string
}

func (f *loadFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.forge, "forge", "", "merge the blocks of this forge (github, gitlab, forgejo, jira)")
	cmd.Flags().StringSliceVar(&f.forges, "known-forge", nil, "further names of forges that blocks may have")
	cmd.Flags().StringVar(&f.root, "root", "", "directory that paths start from (default: of the file, or its parent when named harness)")
	cmd.Flags().StringVar(&f.event, "event", "", "JSON file that overlay guards see as event")
	complete(cmd, "forge", []string{"github", "gitlab", "forgejo", "jira"})
}

// complete sets the completions of a flag.
func complete(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("agentctl: flag " + flag + ": " + err.Error())
	}
}

// maxEvent is the largest event file, in bytes.
const maxEvent = 4 << 20

// options makes the options of a loader.
func (f *loadFlags) options() (harness.Options, error) {
	o := harness.Options{Forge: f.forge, Forges: f.forges, Root: f.root}
	if dir, err := os.UserCacheDir(); err == nil {
		o.Cache = filepath.Join(dir, "agentctl", "bases")
	}
	if f.event == "" {
		return o, nil
	}
	info, err := os.Stat(f.event)
	if err != nil {
		return o, fmt.Errorf("read the event: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxEvent {
		return o, fmt.Errorf("read the event: %s is not a file of at most %d bytes", f.event, maxEvent)
	}
	data, err := os.ReadFile(f.event)
	if err != nil {
		return o, fmt.Errorf("read the event: %w", err)
	}
	if err := json.Unmarshal(data, &o.Event); err != nil {
		return o, fmt.Errorf("read the event %s: %w", f.event, err)
	}
	return o, nil
}

func newLintCommand() *cobra.Command {
	var flags runFlags
	var output string
	var strict bool
	cmd := &cobra.Command{
		Use: "lint [FILE|DIR]...",
		Example: "  agentctl lint\n" +
			"  agentctl lint --strict --output sarif harness/fix.yaml\n" +
			"  agentctl lint --repo . harness/fix.yaml",
		Short: "Check harness files",
		Long: `lint checks harness files with their bases and reports every problem with its
place. A directory stands for the harness files in it or in its directory
harness: all YAML files but the policies that they name. Without an argument the
current directory is checked, without --forge the blocks of all forges in turn.

With --repo, what 'agentctl run FILE --repo DIR' would refuse here is a problem too,
up to the start of the agent: variables, images, the supervisor and its
configuration, what the sandbox needs, and scans. A sandbox is made for it and
deleted. No script of the harness runs; a shell in the sandbox reads .env files. --output
json lists what only a run can know as notes of the rule only-run.

Exit code 2 when a problem is an error.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(problemFormats, output) {
				return fmt.Errorf("unknown output format %q: one of %s", output, strings.Join(problemFormats, ", "))
			}
			o, err := flags.load.options()
			if err != nil {
				return err
			}
			ps, files, err := lintAll(args, o, func(name string) (harness.Problems, error) {
				return flags.check(cmd.Context(), cmd.ErrOrStderr(), name)
			})
			if err != nil {
				return err
			}
			if output != formatJSON {
				ps = slices.DeleteFunc(ps, func(p harness.Problem) bool { return p.Rule == harness.RuleOnlyRun })
			}
			if strict {
				ps = ps.Strict()
			}
			if err := printProblems(cmd.OutOrStdout(), ps, output); err != nil {
				return err
			}
			if ps.HasErrors() {
				return &failure{code: controller.ExitConfiguration}
			}
			if output == formatText && len(ps) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: no problems\n", text.Count(files, "file"))
			}
			return nil
		},
	}
	flags.load.add(cmd)
	flags.addInputs(cmd, "", "check also what 'run --repo `DIR`' would refuse on this machine")
	cmd.Flags().StringVarP(&output, "output", "o", formatText, "text, json, github or sarif")
	cmd.Flags().BoolVar(&strict, "strict", false, "deprecations are errors")
	complete(cmd, "output", problemFormats)
	return cmd
}

// completeYAML completes YAML files and directories.
func completeYAML(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// lintAll checks files and the harness files of directories. It returns the
// problems and the number of files.
func lintAll(args []string, o harness.Options, check func(name string) (harness.Problems, error)) (harness.Problems, int, error) {
	if len(args) == 0 {
		args = []string{"."}
	}
	var named, found []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			named = append(named, arg) // the loader reports the problem
			continue
		}
		files, err := harnessFiles(arg)
		if err != nil {
			return nil, 0, err
		}
		found = append(found, files...)
	}
	l := harness.NewLoader(o)
	found = withoutPolicies(l, found)
	var ps harness.Problems
	var whole []string // those that a run can start with
	for _, name := range named {
		ps = append(ps, lintFile(l, name, o.Forge)...)
		whole = append(whole, name)
	}
	bases := map[string]bool{}
	for _, name := range found {
		for _, base := range l.Bases(name) {
			bases[filepath.Clean(base)] = true
		}
	}
	for _, name := range found {
		if !bases[filepath.Clean(name)] {
			whole = append(whole, name)
		}
		for _, p := range lintFile(l, name, o.Forge) {
			if !bases[filepath.Clean(name)] || !withoutPosition(p, name) {
				ps = append(ps, p)
			}
		}
	}
	for _, name := range whole {
		if ps.HasErrors() {
			break // a run refuses these first
		}
		more, err := check(name)
		if err != nil {
			return nil, 0, err
		}
		ps = append(ps, more...)
	}
	return ps.Sorted(), len(named) + len(found), nil
}

// withoutPosition reports a problem of what a file does not write. A base need
// not be whole: those that build on it are checked.
func withoutPosition(p harness.Problem, name string) bool {
	start := p.At == harness.Origin{File: name, Line: 1, Column: 1}
	return start && (p.Rule == harness.RuleRequired || p.Rule == harness.RuleUnsupport)
}

// withoutPolicies leaves out the files that another one names as its policy.
func withoutPolicies(l *harness.Loader, files []string) []string {
	policies := map[string]bool{}
	for _, name := range files {
		h, _ := l.Load(name)
		if h == nil || !h.Policy.IsSet() {
			continue
		}
		policy := h.Policy.V
		if !filepath.IsAbs(policy) {
			policy = filepath.Join(h.Root, policy)
		}
		policies[policy] = true
	}
	return slices.DeleteFunc(files, func(name string) bool {
		full, err := filepath.Abs(name)
		if err == nil {
			full, err = filepath.EvalSymlinks(full)
		}
		return err == nil && policies[full]
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

// lintFile checks one file for one forge. Without a forge, it checks the file
// alone and with each of its forges.
func lintFile(l *harness.Loader, name, forge string) harness.Problems {
	forges := []string{forge}
	if forge == "" {
		forges = append(forges, l.Forges(name)...)
	}
	var ps harness.Problems
	for _, forge := range forges {
		h, problems := l.With(forge).Load(name)
		ps = append(ps, problems...)
		if h != nil {
			ps = append(ps, provider.Lint(h)...)
		}
		if h != nil && !problems.HasErrors() {
			ps = append(ps, controller.Lint(name, h)...)
		}
	}
	return ps.Sorted()
}
