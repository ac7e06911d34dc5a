package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
)

// NewConnect is agentctl connect.
func NewConnect() *cobra.Command {
	return &cobra.Command{
		Use:   "connect RUN",
		Short: "Connect an ssh client to the sandbox of a run",
		Long: `connect is a ProxyCommand of ssh: its standard input and output are a connection to
the SSH server of a sandbox. 'agentctl ssh-config' prints the settings of ssh for it.`,
		Example: "  agentctl ssh-config latest --host box >box.config\n  ssh -F box.config box git status",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := findSandbox(args[0])
			if err != nil {
				return err
			}
			err = connect(cmd, one)
			if by := (controller.Interrupted{}); errors.As(context.Cause(cmd.Context()), &by) {
				return &output.Failure{Code: 128 + int(by.Signal)} // ssh ends its ProxyCommand by SIGHUP, and shows what that prints
			}
			if by := attach.DeletedBy(one); by != "" && one.Live {
				return endedBy(one, by) // ssh itself knows only that the connection has ended
			}
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
}

// newSandboxConnectCommand is agentctl sandbox connect: [NewConnect] beside the other verbs of sandboxes.
func newSandboxConnectCommand() *cobra.Command {
	cmd := NewConnect()
	cmd.Use = "connect SANDBOX"
	cmd.Short = "Connect an ssh client to a sandbox"
	return cmd
}

func connect(cmd *cobra.Command, one record.Run) error {
	client := struct {
		io.Reader
		io.Writer
	}{cmd.InOrStdin(), cmd.OutOrStdout()}
	if one.Live {
		return attach.Connect(cmd.Context(), one, client)
	}
	kept, err := keptSandbox(one)
	if err != nil {
		return err
	}
	state, err := settings.RunsState()
	if err != nil {
		return err
	}
	return attach.ConnectKept(cmd.Context(), state, one, kept, client)
}

// NewSSHConfig is agentctl ssh-config.
func NewSSHConfig() *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use:   "ssh-config RUN [--host NAME]",
		Short: "Print the settings with which ssh enters the sandbox of a run",
		Long: `ssh-config prints a Host block for ssh_config(5). With it ssh, scp, sftp, rsync and
git work in the sandbox of a run, if its policy has 'ssh: {sessions: true}'. Forwarded
connections (-L and -D) need 'ssh: {forwarding: true}'. Each command, file and connection
is judged by the policy. The name of the host is the id of the run, unless --host gives
another one.`,
		Example: "  agentctl ssh-config latest --host box >box.config\n  scp -F box.config notes.txt box:",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := findSandbox(args[0])
			if err != nil {
				return err
			}
			state, err := settings.RunsState()
			if err != nil {
				return err
			}
			files, err := attach.SSHOf(state, one)
			if err == nil {
				err = printSSHConfig(cmd.OutOrStdout(), host, one, files)
			}
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().StringVar(&host, "host", "", "`NAME` of the host (default: the id of the run)")
	return cmd
}

// sshConfig is a block of ssh_config(5).
var sshConfig = template.Must(template.New("ssh").Parse(`Host {{.Host}}
  HostName {{.Host}}
  User agent
  ProxyCommand {{.Proxy}}
  HostKeyAlias {{.Alias}}
  HostKeyAlgorithms ssh-ed25519
  UserKnownHostsFile {{.KnownHosts}}
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  UpdateHostKeys no
  IdentityFile {{.Identity}}
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  ForwardAgent no
  ForwardX11 no
`))

// printSSHConfig prints the Host block of a run.
func printSSHConfig(out io.Writer, host string, one record.Run, files attach.SSH) error {
	if host == "" {
		host = one.Sandbox
	}
	if strings.ContainsAny(host, " \t\r\n\"'*?!,#=%/") || strings.HasPrefix(host, "-") {
		return fmt.Errorf("--host %.60q is no name of a host", host)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := []string{program, "connect", one.Sandbox}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		command = append([]string{"env", "XDG_STATE_HOME=" + state}, command...)
	}
	for i, word := range command {
		if command[i], err = syntax.Quote(word, syntax.LangPOSIX); err != nil {
			return err
		}
	}
	var quoted [2]string
	for i, file := range []string{files.KnownHosts, files.Identity} {
		if strings.ContainsAny(file, "\"\r\n") || strings.Contains(file, "${") {
			return errors.New("the state directory has a name that ssh cannot read: set XDG_STATE_HOME to another one")
		}
		quoted[i] = `"` + strings.ReplaceAll(file, "%", "%%") + `"`
	}
	return sshConfig.Execute(out, map[string]string{
		"Host": host, "Proxy": strings.ReplaceAll(strings.Join(command, " "), "%", "%%"), "Alias": files.Alias, "KnownHosts": quoted[0],
		"Identity": quoted[1],
	})
}
