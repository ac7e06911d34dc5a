package settings

import (
	"errors"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// RunsState opens the state directory.
func RunsState() (statedir.Dir, error) {
	state, _, err := Placement{}.OpenState("", "")
	return state, err
}

// FindRun finds a run, or returns an error with a hint.
func FindRun(name string) (record.Run, error) {
	state, err := RunsState()
	if err != nil {
		return record.Run{}, err
	}
	one, err := record.Find(state, name)
	switch {
	case errors.Is(err, record.ErrNoRun):
		return one, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "'agentctl runs list' names them"}
	case err != nil:
		return one, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	return one, nil
}

// CompleteRuns completes the first argument with the ids of those runs for
// which keep returns true.
func CompleteRuns(keep func(record.Run) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := RunsState()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := record.List(state) // ignores unreadable records
		var out []cobra.Completion
		for _, one := range all {
			if keep(one) {
				out = append(out, cobra.CompletionWithDesc(one.RunID, text.Short(one.Agent+" "+one.Status, 60)))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// AnyRun accepts every run, see [CompleteRuns].
func AnyRun(record.Run) bool { return true }

// HasSandbox reports whether a run may have a sandbox that accepts connections.
func HasSandbox(one record.Run) bool { return one.Sandbox != "" && (one.Live || one.KeptUntil != nil) }
