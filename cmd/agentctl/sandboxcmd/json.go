package sandboxcmd

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/boxes"
	"agentsh/controller/sandbox"
	"agentsh/controller/tools"
	"agentsh/internal/channel"
	"agentsh/internal/foreground"
	"agentsh/internal/wire"
)

// runJSON runs a command in a sandbox and prints its result as JSON.
func (e *sandboxExec) runJSON(cmd *cobra.Command, args []string) error {
	wrong := func(err error) error { return &output.Failure{Code: controller.ExitConfiguration, Err: err} }
	one, streams, err := e.command(cmd, args[1:])
	if err != nil {
		return wrong(err)
	}
	client, run, err := attachTo(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	runner := boxes.Runner{Box: client, Dir: e.dir(cmd.Context(), client, run.Workdir), ID: channel.OperatorCommand}
	var res boxes.Result
	if runner.Refused, err = tools.NewRefused(cmd.Context(), client); err == nil {
		res, err = runner.Run(cmd.Context(), one, streams)
	}
	if err = errors.Join(err, client.Close()); err != nil {
		return endOf(run, wire.Exit{Cause: res.Cause}, &output.Failure{Code: controller.ExitSandbox, Err: err})
	}
	return output.WriteJSON(cmd.OutOrStdout(), res)
}

// command is the command of a command line, or of --request.
func (e *sandboxExec) command(cmd *cobra.Command, argv []string) (c boxes.Command, s sandbox.Streams, err error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if e.request == "" {
		if e.timeout < 0 {
			return c, s, fmt.Errorf("--timeout %s: a time from now on", e.timeout)
		}
		c = boxes.Command{Argv: argv, TimeoutSeconds: e.timeout.Seconds()}
		if c.Env, err = pairs("--env", e.env); err == nil && len(argv) == 0 {
			err = errNoCommand
		}
		if !foreground.IsTerminal(cmd.InOrStdin()) {
			s.Stdin = cmd.InOrStdin()
		}
		return c, s, err
	}
	if len(argv) > 0 {
		return c, s, errors.New("--request has the command: leave it out")
	}
	in := cmd.InOrStdin()
	if e.request != "-" {
		f, err := os.Open(e.request)
		if err != nil {
			return c, s, err
		}
		defer f.Close()
		in = f
	}
	c, err = boxes.ReadCommand(in)
	return c, s, err
}
