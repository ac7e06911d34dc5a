package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/controller/hook"
)

// exitRefused is the status by which a hook refuses the call of a tool. A
// Go program that crashes has the same.
const exitRefused = 2

// hookSettings is the flag that names the settings of hooks.
const hookSettings = "--settings"

// runHook is 'agentsh hook --settings FILE NAME...', apart from other commands:
// an agent waits for it before and after each use of a tool. is reports whether
// args are that; help and completion are not.
func runHook(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int, is bool) {
	if len(args) < 3 || args[1] != "hook" || !strings.HasPrefix(filepath.Base(args[0]), "agentsh") {
		return 0, false
	}
	if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		return 0, false
	}
	err := answerHook(args[2:], stdin, stdout)
	if err == nil {
		return 0, true
	}
	fmt.Fprintf(stderr, "agentsh: hook %v\n", err)
	if errors.As(err, new(hook.Refused)) {
		fmt.Fprintln(stderr, "agentsh: hint: do it another way, or say in the result why it is needed")
	}
	return exitRefused, true
}

func answerHook(args []string, stdin io.Reader, stdout io.Writer) error {
	var settings string
	var names []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == hookSettings && i+1 < len(args) && settings == "":
			i++
			settings = args[i]
		case strings.HasPrefix(args[i], "-"):
			return fmt.Errorf("unknown flag %.60q", args[i])
		default:
			names = append(names, args[i])
		}
	}
	if settings == "" {
		return errors.New("no settings: name them with " + hookSettings)
	}
	s, err := hook.ReadSettings(settings)
	if err != nil {
		return err
	}
	answer, err := hook.Run(names, s, stdin)
	if err != nil {
		return err
	}
	_, err = stdout.Write(answer)
	return err
}

// newHookCommand documents runHook, which runs before there are commands.
func newHookCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook --settings FILE NAME...",
		Short: "Judge an agent's use of a tool, as its hook",
		Long: `hook reads one use of a tool on standard input, as the agent program that the
settings name tells it to its hooks, and judges it. Before a tool is used: ` + listOf(false) + `.
After it: ` + listOf(true) + `.

Exit status 2 refuses the use, with the reason on standard error. What cannot be
judged is refused too. After a tool was used, what it answered is replaced where
it holds what the agent must not see.

Runs of agentctl start it by themselves, with the settings of the harness.`,
		Example: "  agentsh hook --settings hooks.json tirith ssrf_pretool <call.json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
				return cmd.Help()
			}
			code, _ := runHook(append([]string{"agentsh", "hook"}, args...), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if code != 0 {
				return failure.New(code, nil, "") // the reason is out
			}
			return nil
		},
		DisableFlagParsing: true, // as runHook, which comes first
		ValidArgs:          hook.Names(),
	}
	cmd.Flags().String("settings", "", "`FILE` with the settings of the run")
	return cmd
}

func listOf(after bool) string {
	var out []string
	for _, name := range hook.Names() {
		if hook.After(name) == after {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}
