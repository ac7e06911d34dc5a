package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/harness"
	"agentsh/controller/scan"
	"agentsh/internal/cli"
	"agentsh/internal/rootfs"
	"agentsh/internal/text"
)

// scanFlags are the flags of every scan.
type scanFlags struct {
	output   string
	failOn   string
	canaries []string
	noun     string // name of a scanned item; empty: file
}

func (f *scanFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.output, "output", "o", output.FormatText, "text, json, github or sarif")
	cli.AddJSON(cmd, &f.output)
	cmd.Flags().StringVar(
		&f.failOn,
		"fail-on",
		"critical",
		"least `SEVERITY` of a finding that makes the exit code 3: low, medium, high or critical",
	)
	settings.Complete(cmd, "output", output.ProblemFormats)
	settings.Complete(cmd, "fail-on", []string{"low", "medium", "high", "critical"})
}

func newScanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scan",
		Short: "Look for what would lead an agent astray, or must not leave",
		Long: `scan looks for hidden characters, injected instructions, encoded text, settings
that start programs, internal URLs, secrets and canaries.

Exit code 3 when a finding is at least as grave as --fail-on, 4 when something
could not be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newScanContextCommand(), newScanOutputCommand(), newScanURLCommand())
	return cmd
}

func newScanContextCommand() *cobra.Command {
	var f scanFlags
	var m modelFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "context [DIR|FILE]...",
		Short: "Scan what an agent would take in",
		Long: `context scans the files of a directory that agents read without being told to:
AGENTS.md, CLAUDE.md, SKILL.md and their like, settings of tools, READMEs. A
file that is named is always scanned. Without an argument the current directory
is scanned.

With --scanner a program scores the text too. It reads one JSON object a line,
{"text": "..."}, and answers each with {"score": 0.5} on one line, from 0 to 1.
One that ends, answers anything else or takes over a minute makes the exit code
4.`,
		Example: "  agentctl scan context .\n  agentctl scan context --all --output sarif src > findings.sarif",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			return f.run(cmd, func(ctx context.Context, add func([]scan.Finding)) (int, error) {
				return m.scan(ctx, scan.All(), func(s *scan.Scanner) (int, error) {
					return scanPaths(ctx, s, args, pathScan{all: all}, add)
				})
			})
		},
	}
	f.add(cmd)
	m.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "scan every file of a directory")
	return cmd
}

// modelFlags are the flags of a model-based scanner.
type modelFlags struct {
	program   string
	threshold float64
	match     string
}

func (m *modelFlags) add(cmd *cobra.Command) {
	words := []string{harness.MatchSentence, "full"}
	cmd.Flags().StringVar(&m.program, "scanner", "", "`FILE` of a program that scores texts")
	cmd.Flags().Float64Var(&m.threshold, "scanner-threshold", controller.DefaultThreshold, "least `SCORE` that is a finding, 0 to 1")
	cmd.Flags().StringVar(&m.match, "scanner-match", controller.DefaultMatch, "what is scored at a time: "+strings.Join(words, " or "))
	settings.Complete(cmd, "scanner-match", words)
}

// scan calls do with a scanner that uses the operator's program, if one is set.
func (m *modelFlags) scan(ctx context.Context, o scan.Options, do func(*scan.Scanner) (int, error)) (int, error) {
	if m.match != harness.MatchSentence && m.match != "full" {
		return 0, fmt.Errorf("--scanner-match %q: sentence or full", m.match)
	}
	if !(m.threshold >= 0 && m.threshold <= 1) {
		return 0, fmt.Errorf("--scanner-threshold %g: 0 to 1", m.threshold)
	}
	program, err := settings.Absolute(m.program)
	if err != nil {
		return 0, err
	}
	if program == "" {
		return do(scan.New(o))
	}
	model, err := controller.StartModel(ctx, program, os.Environ())
	if err != nil {
		return 0, err
	}
	o.Model, o.Threshold, o.Sentences = model, m.threshold, m.match == harness.MatchSentence
	files, err := do(scan.New(o))
	if closeErr := model.Close(); err == nil && closeErr != nil {
		err = &output.Failure{Code: controller.ExitSandbox, Err: closeErr}
	}
	return files, err
}

func newScanOutputCommand() *cobra.Command {
	var f scanFlags
	cmd := &cobra.Command{
		Use:   "output [DIR|FILE|-]...",
		Short: "Scan what leaves a sandbox for secrets and canaries",
		Long: `output scans every file of a directory, or standard input (-), for what must not
leave: secrets are critical here. A canary is a value that was planted where
nobody has a reason to read; it is found encoded too.`,
		Example: "  agentctl scan output out/fix-bug\n  git log -p | agentctl scan output -",
		RunE: func(cmd *cobra.Command, args []string) error {
			o := scan.All()
			o.Canaries = f.canaries
			if len(args) == 0 {
				args = []string{"-"}
			}
			return f.run(cmd, func(ctx context.Context, add func([]scan.Finding)) (int, error) {
				return scanPaths(ctx, scan.New(o), args, pathScan{all: true, output: true, stdin: cmd.InOrStdin()}, add)
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringArrayVar(&f.canaries, "canary", nil, "a planted `VALUE`, at least 8 bytes; may be given again")
	return cmd
}

func newScanURLCommand() *cobra.Command {
	var f scanFlags
	cmd := &cobra.Command{
		Use:   "url URL...",
		Short: "Tell whether a URL leads to an internal service",
		Long: `url reads a URL as clients do and reports hosts that are not of the public
network, in whatever spelling, and schemes that reach into other services. No
name is resolved: what a public name resolves to is for the proxy to judge.`,
		Example: "  agentctl scan url http://2852039166/latest/meta-data/",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.noun = "URL"
			return f.run(cmd, func(_ context.Context, add func([]scan.Finding)) (int, error) {
				for i, raw := range args {
					found := scan.URL(raw)
					for k := range found {
						found[k].Line = i + 1
					}
					add(found)
				}
				return len(args), nil
			})
		},
	}
	f.add(cmd)
	return cmd
}

// pathScan configures a scan of paths.
type pathScan struct {
	all    bool
	output bool // scan as files that leave a sandbox
	stdin  io.Reader
}

// scanPaths scans files and directories and returns the number of files.
func scanPaths(ctx context.Context, s *scan.Scanner, paths []string, how pathScan, add func([]scan.Finding)) (int, error) {
	files := 0
	for _, name := range paths {
		n, err := scanPath(ctx, s, name, how, add)
		files += n
		if err != nil {
			return files, &output.Failure{Code: controller.ExitSandbox, Err: err}
		}
	}
	return files, nil
}

func scanPath(ctx context.Context, s *scan.Scanner, name string, how pathScan, add func([]scan.Finding)) (int, error) {
	if name == "-" && how.stdin != nil {
		found, err := s.Text(ctx, "stdin", scan.Output, how.stdin)
		add(found)
		return 1, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		root, err := os.OpenRoot(name)
		if err != nil {
			return 0, err
		}
		defer func() { _ = root.Close() }()
		each := func(found []scan.Finding) {
			for i := range found {
				found[i].File = filepath.Join(name, found[i].File)
			}
			add(found)
		}
		if how.output {
			return s.OutputTree(ctx, rootfs.New(root), each)
		}
		return s.Tree(ctx, rootfs.New(root), how.all, each)
	}
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	kind, _ := scan.Classify(filepath.ToSlash(name))
	if how.output {
		kind = scan.Output
	}
	found, err := s.Text(ctx, name, kind, f)
	add(found)
	return 1, err
}

// run scans, prints the findings and returns a failure if one has at least the
// severity of --fail-on.
func (f *scanFlags) run(cmd *cobra.Command, scanAll func(context.Context, func([]scan.Finding)) (int, error)) error {
	if !slices.Contains(output.ProblemFormats, f.output) {
		return fmt.Errorf("unknown output format %q: one of %s", f.output, strings.Join(output.ProblemFormats, ", "))
	}
	var least scan.Severity
	if err := least.UnmarshalText([]byte(f.failOn)); err != nil {
		return fmt.Errorf("--fail-on: %w", err)
	}
	found := []scan.Finding{}
	files, err := scanAll(cmd.Context(), func(more []scan.Finding) { found = append(found, more...) })
	if printErr := f.print(cmd.OutOrStdout(), found, files); printErr != nil {
		return printErr
	}
	if err != nil {
		return err
	}
	if worst, any := scan.Worst(found); any && worst >= least {
		return &output.Failure{Code: controller.ExitScan}
	}
	return nil
}

func (f *scanFlags) print(w io.Writer, found []scan.Finding, files int) error {
	switch f.output {
	case output.FormatJSON:
		counts := map[string]int{}
		for _, x := range found {
			counts[x.Severity.String()]++
		}
		return output.WriteJSON(w, struct {
			Files    int            `json:"files"`
			Findings []scan.Finding `json:"findings"`
			Counts   map[string]int `json:"counts"`
		}{files, found, counts})
	case output.FormatText:
		for _, x := range found {
			if _, err := fmt.Fprintln(w, findingLine(x)); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintf(w, "%s, %s\n", text.Count(files, cmp.Or(f.noun, "file")), text.Count(len(found), "finding"))
		return err
	}
	return output.PrintProblems(w, findingProblems(found), f.output)
}

func findingLine(x scan.Finding) string {
	line := x.String()
	if x.Hint != "" {
		line += "\n  hint: " + x.Hint
	}
	return line
}

// findingProblems converts findings for formats that have only errors, warnings
// and notes.
func findingProblems(found []scan.Finding) harness.Problems {
	var ps harness.Problems
	for _, x := range found {
		p := harness.Problem{
			At:       harness.Origin{File: x.File, Line: x.Line, Column: x.Column},
			Severity: harness.Warning,
			Rule:     x.Rule,
			Message:  x.Message,
			Hint:     x.Hint,
		}
		switch x.Severity {
		case scan.Critical:
			p.Severity = harness.Error
		case scan.Low:
			p.Severity = harness.Note
		}
		if x.Excerpt != "" {
			p.Message += ": " + text.Visible(x.Excerpt)
		}
		ps = append(ps, p)
	}
	return ps
}
