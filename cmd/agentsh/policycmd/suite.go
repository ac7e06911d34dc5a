package policycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/cli"
	"agentsh/internal/project"
	"agentsh/policy"
	"agentsh/policy/policytest"
)

// testOptions are the flags of policy test.
type testOptions struct {
	output   string
	coverage bool
	minimum  int
	mutate   bool
	live     bool
}

func newTestCommand() *cobra.Command {
	var o testOptions
	formats := []string{"text", "tap", "junit", "json"}
	cmd := &cobra.Command{
		Use: "test DIR|FILE...",
		Example: "  agentsh policy test strict.yaml\n" +
			"  agentsh policy test --coverage --output junit policies",
		Short: "Run the *_test.yaml files beside policies",
		Long: "Run the tests of policies. FILE is a policy with its tests beside it in NAME_test.yaml, or\n" +
			"a file of tests. Of a directory all *_test.yaml files below it are run.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(formats, o.output) {
				return failure.Usagef("-o %s is not text, tap, junit or json", o.output)
			}
			return runTests(cmd.Context(), cmd.OutOrStdout(), args, o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "text", "text, tap, junit or json")
	cli.AddJSON(cmd, &o.output)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	f.BoolVar(&o.coverage, "coverage", false, "name the rules that no test reaches")
	f.IntVar(&o.minimum, "min", 0, "fail when less than this percentage of the rules is reached; implies --coverage")
	f.BoolVar(&o.mutate, "mutate", false, "delete, invert and reorder each rule and name the changes that no test notices")
	f.BoolVar(&o.live, "live", false, "also run each command in a scratch sandbox and compare what happens")
	return cmd
}

// tested is the outcome of all test files of one policy.
type tested struct {
	policy   *policy.Policy
	reports  []policytest.Report
	live     []liveResult
	coverage *policytest.Coverage
	mutation *policytest.Mutation

	notMutated error // why no mutant was tried
}

// failures counts the failures that make the exit code 1.
func (t *tested) failures(o testOptions) int {
	n := 0
	for _, r := range t.reports {
		n += r.Failed()
	}
	for _, l := range t.live {
		if l.problem != "" {
			n++
		}
	}
	if t.coverage != nil && t.coverage.Percent() < o.minimum {
		n++
	}
	if t.mutation != nil {
		n += len(t.mutation.Survivors)
	}
	return n
}

// runTests runs every suite found, groups them by policy and prints.
func runTests(ctx context.Context, out io.Writer, args []string, o testOptions) error {
	files, err := findSuites(args)
	if err != nil {
		return err
	}
	suites, err := loadSuites(files)
	if err != nil {
		return err
	}
	var all []*tested
	failures := 0
	for _, key := range slices.Sorted(maps.Keys(suites)) {
		t, err := runGroup(ctx, suites[key], o)
		if err != nil {
			return failure.New(failure.Found, err, "")
		}
		failures += t.failures(o)
		all = append(all, t)
	}
	if err := printTests(out, all, o); err != nil {
		return err
	}
	if failures > 0 {
		return failure.New(failure.Found, nil, "")
	}
	return nil
}

// findSuites lists the test files that args name or contain.
func findSuites(args []string) ([]string, error) {
	var files []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			if arg, err = project.Named(arg); err == nil {
				info, err = os.Stat(arg)
			}
		}
		if err != nil {
			return nil, failure.New(failure.Usage, err, project.MissingHint(arg, err))
		}
		if !info.IsDir() {
			files = append(files, testsOf(arg))
			continue
		}
		err = filepath.WalkDir(arg, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.HasSuffix(name, "_test.yaml") {
				files = append(files, name)
			}
			return err
		})
		if err != nil {
			return nil, failure.New(failure.Found, err, "")
		}
	}
	if len(files) == 0 {
		return nil, failure.New(
			failure.Usage,
			fmt.Errorf("no *_test.yaml in %s", strings.Join(args, ", ")),
			"a test file names its policy and lists requests with what is expected",
		)
	}
	return files, nil
}

// testsOf returns the test file beside a policy. Another file, or a policy without
// tests, stands for itself.
func testsOf(file string) string {
	ext := filepath.Ext(file)
	beside := strings.TrimSuffix(file, ext) + "_test.yaml"
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return file
}

// loadSuites parses test files and groups those of one policy with the same
// variables.
func loadSuites(files []string) (map[string][]*policytest.Suite, error) {
	suites := map[string][]*policytest.Suite{}
	var errs []error
	for _, file := range files {
		data, err := readBounded(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s, err := policytest.ParseSuite(file, data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := path.Join(path.Dir(file), s.Policy)
		key := name + fmt.Sprint(s.Vars)
		suites[key] = append(suites[key], s)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, failure.New(failure.Found, err, "")
	}
	return suites, nil
}

// runGroup runs the suites of one policy.
func runGroup(ctx context.Context, suites []*policytest.Suite, o testOptions) (*tested, error) {
	p, err := policytest.LoadPolicy(suites[0], readBounded)
	if err != nil {
		return nil, err
	}
	programs, err := openPrograms(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = programs.Close() }()
	t := &tested{policy: p}
	for _, s := range suites {
		s.ResolveCommands(resolveTests(programs))
		t.reports = append(t.reports, policytest.Run(s, p))
	}
	if o.coverage || o.minimum > 0 {
		c := policytest.Cover(t.reports...)
		t.coverage = &c
	}
	if o.live {
		if t.live, err = runLive(ctx, p, suites); err != nil {
			return nil, err
		}
	}
	if !o.mutate {
		return t, nil
	}
	m, err := policytest.Mutate(p, suites)
	switch {
	case errors.Is(err, policytest.ErrFailing):
		t.notMutated = err
	case err != nil:
		return nil, err
	default:
		t.mutation = &m
	}
	return t, nil
}
