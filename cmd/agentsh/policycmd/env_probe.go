package policycmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/wire"
	"agentsh/policy/policytest"
)

// shellStart is one way a shell is started.
type shellStart struct {
	name string
	argv []string
	// must: an operator who injects a startup script counts on this one.
	must bool
}

// askBuiltin is the script for each shell: is kill still one of its builtins?
const askBuiltin = "type kill"

// shellStarts are the ways env probe tries. See bash(1), INVOCATION, for those
// that read no startup file.
var shellStarts = []shellStart{
	{"bash -c", []string{"bash", "-c", askBuiltin}, true},
	{"bash script", []string{"bash", "-c", "echo '" + askBuiltin + "' > probe.sh && bash probe.sh"}, true},
	{"bash, script on standard input", []string{"sh", "-c", "echo '" + askBuiltin + "' | bash"}, true},
	{"bash below env -i", []string{"env", "-i", "/bin/bash", "-c", askBuiltin}, true},
	{"bash below python", []string{"python3", "-c", "import os; os.execve('/bin/bash', ['bash', '-c', '" + askBuiltin + "'], {})"}, true},
	{"bash -l -c", []string{"bash", "-l", "-c", askBuiltin}, true},
	{"bash -i -c", []string{"bash", "-i", "-c", askBuiltin}, false},
	{"bash -p -c", []string{"bash", "-p", "-c", askBuiltin}, false},
	{"bash --posix -c", []string{"bash", "--posix", "-c", askBuiltin}, false},
	{"bash called as sh", []string{"bash", "-c", "exec -a sh bash -c '" + askBuiltin + "'"}, false},
	{"sh -c", []string{"sh", "-c", askBuiltin}, false},
	{"dash -c", []string{"dash", "-c", askBuiltin}, false},
	{"busybox sh -c", []string{"busybox", "sh", "-c", askBuiltin}, false},
	{"zsh -c", []string{"zsh", "-c", askBuiltin}, false},
	{"ksh -c", []string{"ksh", "-c", askBuiltin}, false},
	{"mksh -c", []string{"mksh", "-c", askBuiltin}, false},
	{"fish -c", []string{"fish", "-c", askBuiltin}, false},
}

func newEnvProbeCommand() *cobra.Command {
	var at variables
	var file string
	cmd := &cobra.Command{
		Use:     "probe -p FILE",
		Example: "  agentsh env probe -p strict.yaml",
		Short:   "Start every shell in a scratch sandbox and say where the startup script acts",
		Long: "Start every shell that is present in a scratch sandbox and say in which the injected\n" +
			"startup script acts, found by whether kill is still a builtin. The exit code is 1 when it\n" +
			"does not act in a bash that reads BASH_ENV.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return failure.Usagef("name the policy with -p FILE")
			}
			return probeShells(cmd.Context(), cmd.OutOrStdout(), file, &at)
		},
	}
	at.flags(cmd)
	discovery.PolicyFlag(cmd.Flags(), &file, "the policy `FILE`")
	return cmd
}

func probeShells(ctx context.Context, out io.Writer, file string, at *variables) (err error) {
	at.inSandbox()
	p, err := at.load(file)
	if err != nil {
		return err
	}
	s, err := openScratch(ctx, p, nil)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	missed := 0
	for _, shell := range shellStarts {
		o, err := s.run(ctx, shell.argv...)
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		word := shellVerdict(o)
		if word == startupSilent && shell.must {
			missed++
		}
		fmt.Fprintf(out, "%-32s %s\n", shell.name, word)
	}
	if missed > 0 {
		return failure.New(failure.Found, fmt.Errorf("the startup script does not act in %d ways that read BASH_ENV", missed),
			"env_inject must set BASH_ENV to a file that the sandbox shows")
	}
	return nil
}

const (
	startupActs   = "acts: kill is a program"
	startupSilent = "does not act: kill is a builtin"
	startupAbsent = "not here"
)

// shellVerdict interprets the answer of a shell.
func shellVerdict(o outcome) string {
	text := string(o.output)
	switch {
	case o.denied():
		return "denied by rule " + ruleOf(o.exit)
	case o.exit.Kind == wire.ExitSpawnFailed, strings.Contains(text, "not found") && !strings.Contains(text, "kill: not found"):
		return startupAbsent
	case strings.Contains(text, "builtin"):
		return startupSilent
	case strings.Contains(text, "kill"):
		return startupActs
	}
	return "unknown: " + oneLine(firstBytes(o))
}

func ruleOf(e wire.Exit) string {
	if e.Rule == nil {
		return "default"
	}
	return e.Rule.Name
}

// inSandbox makes the variables those of a scratch sandbox, where not given.
func (p *variables) inSandbox() {
	if p.workspace == "" {
		p.workspace = policytest.Vars()["WORKSPACE"]
	}
	if p.home == "" {
		p.home = policytest.Vars()["HOME"]
	}
}
