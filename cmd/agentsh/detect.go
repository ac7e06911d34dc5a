package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/supervisor"
	"agentsh/supervisor/host"
	"agentsh/supervisor/probe"
)

// detectOptions are the flags of agentsh detect.
type detectOptions struct {
	json     bool
	policy   string
	config   string
	degraded []string
}

// newDetectCommand reports what this machine can enforce.
func newDetectCommand() *cobra.Command {
	var o detectOptions
	cmd := &cobra.Command{
		Use: "detect [--json] [--policy FILE]",
		Example: "  agentsh detect\n" +
			"  agentsh detect --policy strict.yaml --json",
		Short: "Report what enforces the rules on this machine",
		Long: `Report what enforces the rules on this machine.

Every mechanism of the kernel that sessions use is tried, in processes that end
with the trial; no version is compared. Then rules are tried in a scratch session.
Nothing is left behind. With --policy a session under that policy is opened too.

The report ends with the engine that stops the calls of commands:

  listener  seccomp notification
  trace     seccomp and ptrace, where there is no listener
  none      only with --degraded nested_commands: nothing stops programs that a command starts

Names of --degraded:

  ` + strings.Join(append(probe.Mechanisms(), probe.AnyMechanism), "\n  ") + `

The exit status is 0 when a session can be opened here, 1 when not.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	f.StringSliceVar(&o.degraded, "degraded", nil, "as 'agentsh exec --degraded' would: without the mechanisms `NAME,...`")
	discovery.PolicyFlag(f, &o.policy, "also open a session under the policy `FILE`, with the current directory as workspace")
	f.StringVar(&o.config, "config", "", "configuration `FILE` (default "+layout.Config+" where it exists)")
	return cmd
}

// detected is the report, with the trial of a policy if one was named.
type detected struct {
	*host.Report
	Policy *policyTrial `json:"policy,omitempty"`
}

// policyTrial is the outcome of opening a session under a policy.
type policyTrial struct {
	Name  string   `json:"name"`
	Opens bool     `json:"opens"`
	Why   []string `json:"why,omitempty"`
}

func (o *detectOptions) run(ctx context.Context, w io.Writer) error {
	operator, err := host.ReadConfig(orDefault(o.config, layout.Config), o.config == "")
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	if operator, _, err = host.InContainer(operator); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	report, err := host.Detect(ctx, operator.WithDegraded(o.degraded))
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	d := detected{Report: report}
	if o.policy != "" {
		if d.Policy, err = o.tryPolicy(ctx); err != nil {
			return err
		}
	}
	if o.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		err = e.Encode(d)
	} else {
		_, err = io.WriteString(w, d.text())
	}
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	if !report.Session.Opens || d.Policy != nil && !d.Policy.Opens {
		return failure.New(1, nil, "")
	}
	return nil
}

// tryPolicy opens a session as exec would, runs nothing in it and closes it.
func (o *detectOptions) tryPolicy(ctx context.Context) (_ *policyTrial, err error) {
	dir, err := os.MkdirTemp("", "agentsh-detect-")
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	exec := execOptions{policy: o.policy, config: o.config, degraded: o.degraded, audit: filepath.Join(dir, "audit.jsonl")}
	place, err := exec.openOneShot()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.audit.Close()) }()
	held := &policyTrial{Name: place.config.Policy.Name()}
	session, err := supervisor.Open(ctx, place.config)
	if err != nil {
		held.Why = strings.Split(err.Error(), "\n")
		return held, nil
	}
	held.Opens = true
	return held, session.Close()
}

// text is the report for a person.
func (d *detected) text() string {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"Linux %s, %s, uid %d, capabilities: %s\n\n",
		d.Kernel,
		d.Architecture,
		d.User,
		orDefault(strings.Join(d.Capabilities, " "), "none that matter"),
	)
	for _, p := range d.Primitives {
		fmt.Fprintf(&b, "%-4s %-46s %s\n", yes(p.Works), p.What, printable(p.Detail))
		if !p.Works {
			fmt.Fprintf(&b, "     why:    %s\n     change: %s\n", indented(p.Why), p.Change)
			if p.Fallback != "" {
				fmt.Fprintf(&b, "     fallback: degraded: [%s]\n", p.Fallback)
			}
		}
	}
	for _, s := range d.Shells {
		fmt.Fprintf(&b, "%-4s %s reads BASH_ENV\n", yes(s.BashEnv), s.Path)
	}
	b.WriteString("\nHow rules are enforced here:\n\n")
	for _, g := range d.Groups {
		fmt.Fprintf(&b, "%-28s %-11s %s\n", g.Group, g.EnforcedBy, g.How)
		if g.HeldBy == host.NotHeld {
			fmt.Fprintf(&b, "%-40s not held by agentsh\n", "")
		}
		if len(g.Missing) > 0 {
			fmt.Fprintf(&b, "%-40s missing: %s\n", "", strings.Join(g.Missing, ", "))
		}
		if g.WithFallbacks != "" {
			fmt.Fprintf(&b, "%-40s with degraded: [%s]: %s\n", "", strings.Join(g.Fallbacks, ", "), g.WithFallbacks)
		}
		if len(g.Taken) > 0 {
			fmt.Fprintf(&b, "%-40s taken by another listener: %s; rules about them need degraded: [call_rules]\n", "", strings.Join(g.Taken, ", "))
		}
		if g.Failed != "" {
			fmt.Fprintf(&b, "%-40s tried: %s\n", "", indented(g.Failed))
		}
		if len(g.Refused) > 0 {
			fmt.Fprintf(&b, "%-40s refused in a policy: %s\n", "", strings.Join(g.Refused, ", "))
		}
	}
	fmt.Fprintf(&b, "\nWhat others edit in the current directory is seen by %s: %s\n", d.HostEdits.Mechanism, d.HostEdits.How)
	if d.HostEdits.Why != "" {
		fmt.Fprintf(&b, "     why:    %s\n", indented(d.HostEdits.Why))
	}
	b.WriteString("\n" + d.verdict())
	return b.String()
}

// verdict is the end of the report: the outcome of the scratch session.
func (d *detected) verdict() string {
	switch {
	case d.Session.Opens:
	case len(d.Session.Fallbacks) > 0:
		return "A session opens here only with degraded: [" + strings.Join(
			d.Session.Fallbacks,
			", ",
		) + "] in the configuration, or the same names after --degraded:\n  " + indented(
			d.Session.Why,
		) + "\n"
	default:
		return "No session can be opened here, and nothing runs without one:\n  " + indented(d.Session.Why) + "\n"
	}
	text := "A session can be opened here; its first process could not: " + strings.Join(d.Session.Proofs, ", ") +
		"\nCalls of commands stop by the engine " + d.Session.Engine + ".\n"
	if beside := d.Session.Beside.String(); beside != "" {
		text += "Beside it " + beside + "\n"
	}
	switch {
	case d.Policy == nil:
		return text
	case d.Policy.Opens:
		return text + "Policy " + printable(d.Policy.Name) + " can be enforced here as a whole.\n"
	}
	text += "Policy " + printable(d.Policy.Name) + " cannot be enforced here, and no session is opened with it:\n"
	for _, line := range d.Policy.Why {
		text += "  " + printable(line) + "\n"
	}
	return text
}

func yes(works bool) string {
	if works {
		return "yes"
	}
	return "no"
}

// indented is a text of several lines beneath its first.
func indented(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n          ")
}
