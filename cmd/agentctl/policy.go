package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/openshell"
	"agentsh/controller/record"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Write policies for places that enforce their own",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyRenderCommand())
	return cmd
}

// policyRenderFlags are the flags of policy render.
type policyRenderFlags struct {
	target, workspace string
	without           []string
	vars              map[string]string
}

func newPolicyRenderCommand() *cobra.Command {
	var f policyRenderFlags
	cmd := &cobra.Command{
		Use: "render FILE|NAME --for openshell",
		Example: "  agentctl policy render policy.yaml --for openshell > openshell.yaml\n" +
			"  agentctl policy render plain --for openshell --without commands,env,file_metadata",
		Short: "Print a policy in the language of another sandbox",
		Long: `render prints a policy as one of OpenShell 0.1: a file, or the policy of the packages
with this name, which is in ` + layout.Policies + `. It begins with a table that
says who holds each rule. A rule that OpenShell does not hold is an error with
its line, unless --without names the guarantee that is given up:

` + guarantees(),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := f.render(args[0])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.target, "for", "", "the `SANDBOX` that enforces the policy: openshell")
	flags.StringSliceVar(&f.without, "without", nil, "`GUARANTEES` to give up, separated by commas")
	flags.StringVar(&f.workspace, "workspace", "/sandbox/workspace", "`DIRECTORY` of WORKSPACE, PROJECT_ROOT and GIT_ROOT in the sandbox")
	flags.StringToStringVar(&f.vars, "var", nil, "`NAME=VALUE` of a further variable; HOME is /sandbox and TMPDIR is /tmp")
	settings.Complete(cmd, "for", []string{"openshell"})
	var words []string
	for _, g := range openshell.Guarantees() {
		words = append(words, g.Word+"\t"+g.Meaning)
	}
	settings.Complete(cmd, "without", words)
	return cmd
}

// guarantees is the list of what may be given up.
func guarantees() string {
	var out strings.Builder
	for _, g := range openshell.Guarantees() {
		fmt.Fprintf(&out, "  %s: %s\n", g.Word, g.Meaning)
	}
	return out.String()
}

// maxPolicy is the largest policy file, in bytes.
const maxPolicy = 4 << 20

func (f *policyRenderFlags) render(name string) ([]byte, error) {
	switch f.target {
	case "openshell":
	case "":
		return nil, errors.New("--for is missing: write --for openshell")
	default:
		return nil, fmt.Errorf("--for %q is not known: write --for openshell", f.target)
	}
	for _, word := range f.without {
		if known := openshell.Words(); !slices.Contains(known, word) {
			return nil, fmt.Errorf("--without: %q is no guarantee (one of %s)", word, strings.Join(known, ", "))
		}
	}
	if !filepath.IsAbs(f.workspace) {
		return nil, fmt.Errorf("--workspace %s is not absolute: write it as in the sandbox, such as /sandbox/workspace", f.workspace)
	}
	vars := map[string]string{
		"WORKSPACE": f.workspace, "PROJECT_ROOT": f.workspace, "GIT_ROOT": f.workspace, "HOME": "/sandbox", "TMPDIR": "/tmp",
	}
	maps.Copy(vars, f.vars)
	read := func(name string) ([]byte, error) { return record.ReadFile(name, maxPolicy) }
	name, err := project.Named(name)
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	data, err := read(name)
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: project.MissingHint(name, err)}
	}
	p, err := syntax.Load(policy.Source{Name: name, Data: data}, syntax.Options{Vars: vars, ReadFile: read})
	if err != nil {
		return nil, &output.Failure{
			Code: controller.ExitConfiguration, Err: fmt.Errorf("policy:\n%w", err),
			Hint: "run 'agentsh policy check " + name + "'; variables come from --workspace and --var",
		}
	}
	r, problems := openshell.Render(p, f.without)
	if r == nil {
		hint := "change these rules: none of it can be given up"
		if words, whole := openshell.Needed(p, f.without); whole {
			hint = "this gives all of it up: --without " + strings.Join(words, ",")
		} else if len(words) > 0 {
			hint = "change the rules that name nothing to give up; this gives up the rest: --without " + strings.Join(words, ",")
		}
		return nil, &output.Failure{
			Code: controller.ExitConfiguration, Err: fmt.Errorf("OpenShell cannot hold the policy:\n%w", problems), Hint: hint,
		}
	}
	return r.Text()
}
