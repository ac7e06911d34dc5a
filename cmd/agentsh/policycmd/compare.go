package policycmd

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/policytest"
)

func newDiffCommand() *cobra.Command {
	var at variables
	cmd := &cobra.Command{
		Use:     "diff A B",
		Example: "  agentsh policy diff before.yaml after.yaml",
		Short:   "Say what policy B allows or denies otherwise than policy A",
		Long: "Say what policy B allows or denies otherwise than policy A. Requests are made from the\n" +
			"patterns of both, and decided by both. The exit code is 1 when they differ.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, files []string) error {
			a, err := at.load(files[0])
			if err != nil {
				return err
			}
			b, err := at.load(files[1])
			if err != nil {
				return err
			}
			return diff(cmd.OutOrStdout(), a, b)
		},
	}
	at.flags(cmd)
	return cmd
}

func diff(out io.Writer, a, b *policy.Policy) error {
	differences, err := policytest.Diff(a, b)
	if err != nil {
		return failure.New(failure.Found, err, "")
	}
	titles := []struct{ kind, title string }{
		{"allowed", "becomes allowed"}, {"denied", "becomes denied"}, {"changed", "is decided otherwise"},
	}
	for _, t := range titles {
		for _, d := range differences {
			if d.Kind() == t.kind {
				printDifference(out, t.title, d)
			}
		}
	}
	settings, err := policytest.DiffSettings(a, b)
	if err != nil {
		return failure.New(failure.Found, err, "")
	}
	for _, sentence := range settings {
		fmt.Fprintln(out, sentence)
	}
	if len(differences)+len(settings) == 0 {
		fmt.Fprintln(out, "both policies decide alike")
		return nil
	}
	return failure.New(failure.Found, nil, "")
}

func printDifference(out io.Writer, title string, d policytest.Difference) {
	fmt.Fprintf(out, "%s: %s: %s by %s, was %s by %s\n", title, d.Group, d.After, d.RuleAfter, d.Before, d.RuleBefore)
	for _, q := range d.Requests {
		fmt.Fprintf(out, "    %s\n", policytest.Describe(q))
	}
	if more := d.Count - len(d.Requests); more > 0 {
		fmt.Fprintf(out, "    and %d more like these\n", more)
	}
}

func newReplayCommand() *cobra.Command {
	var at variables
	var file string
	var every bool
	cmd := &cobra.Command{
		Use:     "replay -p FILE LOG",
		Example: "  agentsh policy replay -p strict.yaml audit.jsonl",
		Short:   "Judge a recorded session by another policy",
		Long: "Judge a recorded session by another policy and print what it decides otherwise.\nThe exit code is 1 when it decides anything " +
			"otherwise.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return failure.Usagef("name the policy with -p FILE")
			}
			p, err := at.load(file)
			if err != nil {
				return err
			}
			return replay(cmd.OutOrStdout(), p, args[0], every)
		},
	}
	at.flags(cmd)
	discovery.PolicyFlag(cmd.Flags(), &file, "the policy `FILE`")
	cmd.Flags().BoolVar(&every, "all", false, "also print what is decided alike")
	return cmd
}

func replay(out io.Writer, p *policy.Policy, file string, every bool) error {
	log, err := openLog(file)
	if err != nil {
		return err
	}
	defer log.Close()
	programs, err := openPrograms(p)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer func() { _ = programs.Close() }()
	w := bufio.NewWriter(out)
	count, err := policytest.Replay(p, log, resolveLog(programs), func(r policytest.Replayed) error {
		if !r.Changed() && !every {
			return nil
		}
		rule := "default"
		if r.Now.Rule != nil {
			rule = fmt.Sprintf("%s at %s", r.Now.Rule.Name, r.Now.Rule.Pos)
		}
		_, err := fmt.Fprintf(w, "event %d: %s: was %s, now %s by rule %s\n", r.Seq, policytest.Describe(r.Request), r.Was, r.Now.Effect, rule)
		return err
	})
	if err != nil {
		return failure.New(failure.Found, fmt.Errorf("%s: %w", file, err), "")
	}
	fmt.Fprintf(
		w,
		"%s evaluated, %d decided otherwise, %s without the data to be evaluated\n",
		text.Count(count.Judged, "request"),
		count.Changed,
		text.Count(count.Skipped, "event"),
	)
	if err := w.Flush(); err != nil {
		return err
	}
	if count.Changed > 0 {
		return failure.New(failure.Found, nil, "")
	}
	return nil
}

func openLog(file string) (io.ReadCloser, error) {
	if file == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	log, err := os.Open(file)
	if err != nil {
		return nil, failure.New(failure.Found, err, "")
	}
	return log, nil
}

func newLearnCommand(logFile func(args []string) (string, error)) *cobra.Command {
	var at variables
	var name string
	cmd := &cobra.Command{
		Use: "learn [LOG]",
		Example: "  agentsh policy learn > .agentsh/policy.yaml\n" +
			"  agentsh policy learn --name build audit.jsonl",
		Short: "Write a policy that allows what a recorded session did",
		Long: "Write a policy that allows what a recorded session did, and nothing else. LOG is by default\n" +
			"the audit log that was written to last.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := logFile(args)
			if err != nil {
				return err
			}
			vars, err := at.values()
			if err != nil {
				return err
			}
			log, err := openLog(file)
			if err != nil {
				return err
			}
			defer log.Close()
			if len(args) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentsh: learning from %s\n", file)
			}
			programs, err := openPrograms(&policy.Policy{})
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			defer func() { _ = programs.Close() }()
			lesson, err := policytest.Learn(log, name, vars, resolveLog(programs))
			if err != nil {
				return failure.New(failure.Found, fmt.Errorf("%s: %w", file, err), "")
			}
			for _, note := range lesson.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentsh: note: %s\n", note)
			}
			for _, q := range lesson.Widened {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentsh: was denied and is allowed by the written policy: %s\n", policytest.Describe(q))
			}
			_, err = cmd.OutOrStdout().Write(lesson.Policy)
			return err
		},
	}
	at.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "learned", "the name of the written policy")
	return cmd
}
