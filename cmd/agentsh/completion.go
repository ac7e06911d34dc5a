package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// completions sets the completions of a command and those below it: running
// sessions, and policy files.
func completions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completions(c)
	}
	takes := strings.Contains(cmd.Use, "SESSION") || strings.HasSuffix(cmd.CommandPath(), "session destroy")
	if takes && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completeSessions
	}
	flag := func(name string, complete cobra.CompletionFunc) {
		if cmd.LocalFlags().Lookup(name) == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic("agentsh: " + cmd.CommandPath() + ": flag " + name + ": " + err.Error())
		}
	}
	switch cmd.Name() {
	case "install": // a kind of session
	case "report":
		flag("session", completeLogged(func(e wire.Event) (string, string) { return e.Session, e.Time.Format(time.DateTime) }))
		flag("output", cobra.FixedCompletions([]cobra.Completion{"markdown", "html"}, cobra.ShellCompDirectiveNoFileComp))
	default:
		flag("session", completeSessions)
	}
	flag("policy", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
	})
	flag("rule", completeLogged(func(e wire.Event) (string, string) {
		if e.Rule == nil {
			return "", ""
		}
		return e.Rule.Name, e.Rule.Position()
	}))
}

// completeSessions completes the names of running sessions.
func completeSessions(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	registry, err := host.OpenRegistry()
	if err != nil || len(args) > 0 && !strings.Contains(cmd.Use, "...") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, _ := registry.List() // without those that cannot be read
	var out []cobra.Completion
	for _, one := range list {
		if !slices.Contains(args, one.Name) {
			out = append(out, cobra.CompletionWithDesc(one.Name, text.Short(one.Policy+" "+one.Workspace, 60)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// maxCompleted is how many events are read for a completion.
const maxCompleted = 20_000

// completeLogged completes what the events of a log name, each with a description.
func completeLogged(named func(wire.Event) (name, description string)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		path, err := logFile(args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		r, err := audit.OpenReader(path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = r.Close() }() // opened for reading
		seen := map[string]string{}
		for range maxCompleted {
			e, err := r.Next()
			if err != nil {
				break
			}
			if name, description := named(e); name != "" && seen[name] == "" {
				seen[name] = description
			}
		}
		var out []cobra.Completion
		for name, at := range seen {
			out = append(out, cobra.CompletionWithDesc(text.Short(name, 128), text.Short(at, 60)))
		}
		slices.Sort(out)
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
