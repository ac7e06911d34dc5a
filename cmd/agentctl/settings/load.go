package settings

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentsh/controller/harness"
)

// Load are the common flags of the commands that load a harness.
type Load struct {
	forge  string
	forges []string
	root   string
	event  string
}

// Add adds the flags to a command.
func (f *Load) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.forge, "forge", "", "merge the blocks of this forge (github, gitlab, forgejo, jira)")
	cmd.Flags().StringSliceVar(&f.forges, "known-forge", nil, "further names of forges that blocks may have")
	cmd.Flags().StringVar(&f.root, "root", "", "directory that paths start from (default: of the file, or its parent when named harness)")
	cmd.Flags().StringVar(&f.event, "event", "", "JSON file that overlay guards see as event")
	Complete(cmd, "forge", []string{"github", "gitlab", "forgejo", "jira"})
}

// Complete sets the completions of a flag.
func Complete(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("agentctl: flag " + flag + ": " + err.Error())
	}
}

// maxEvent is the largest event file, in bytes.
const maxEvent = 4 << 20

// Options makes the options of a loader.
func (f *Load) Options() (harness.Options, error) {
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

// CompleteYAML completes YAML files and directories.
func CompleteYAML(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
