package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

func newMCPCommand() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve the tools of a session to an agent outside it",
		Long: `Serve the tools of a session over the Model Context Protocol (MCP) on standard input
and output. An agent program outside starts this command, and works in the session in
place of its own shell and file tools: it runs commands, reads, writes and edits files,
searches, applies patches, lists changes, and makes and restores checkpoints.

The session is a new one that ends with this command, or with --session a running
one, which goes on. The policy judges each tool as it judges commands.

agentctl serves the tools: it has to be installed beside agentsh. doc/mcp.md has the
settings of agent programs.`,
		Example: "  claude mcp add sandbox -- agentsh mcp --policy agent-sandbox --workspace ~/src/app",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.serveTools(cmd.Context()) },
	}
	f := cmd.Flags()
	o.sessionFlags(f)
	f.StringVar(&o.cwd, "cwd", "", "`DIR` in which commands start (default: the current directory, else the workspace)")
	f.DurationVar(&o.timeout, "timeout", 0, "end the session after this long, in whole seconds")
	f.StringVarP(&o.session, "session", "s", "", "use the running session `NAME` of 'agentsh session create'")
	for _, made := range []string{"policy", "config", "workspace", "audit", "share-network", "degraded", "timeout"} {
		cmd.MarkFlagsMutuallyExclusive("session", made) // fixed since the session was opened
	}
	return cmd
}

// serveTools replaces this program by agentctl, which serves the tools of a session.
func (o *execOptions) serveTools(ctx context.Context) error {
	program, err := findAgentctl()
	if err != nil {
		return failure.New(failure.Ours, err, "install agentctl in the directory of agentsh, or in /usr/bin or /usr/local/bin")
	}
	name := o.session
	var owner *os.File
	if name == "" {
		ends, keeps, err := os.Pipe()
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		defer ends.Close()
		defer keeps.Close()
		name, owner = randomName("mcp-"), keeps
		if _, err := o.create(ctx, name, ends); err != nil {
			return err
		}
	}
	registry, err := host.OpenRegistry()
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	endpoint, err := registry.Dial(ctx, name)
	if err != nil {
		return sessionFailure(err)
	}
	return failure.New(failure.Ours, errors.Join(o.handOver(program, endpoint, owner), endpoint.Stream.Close()), "")
}

// handOver executes agentctl with a session. It returns only an error.
func (o *execOptions) handOver(program string, to host.Endpoint, owner *os.File) error {
	one, cfg := to.Running, to.Client
	self, err := os.Executable()
	if err != nil {
		return err
	}
	socket, ok := to.Stream.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("session %s: its stream is no socket", one.Name)
	}
	stream, err := socket.File()
	if err != nil {
		return err
	}
	defer stream.Close()
	handed := wire.HandedSession{
		Version: wire.Current, Name: one.Name, Workspace: one.Workspace, Cwd: orDefault(o.cwd, hereIn(one.Workspace)),
		Stream: int(stream.Fd()), Key: cfg.Key, HostKey: cfg.HostKey, Server: cfg.Server, Program: self,
	}
	inherited := []*os.File{stream}
	if owner != nil {
		handed.Owner, inherited = int(owner.Fd()), append(inherited, owner)
	}
	data, err := json.Marshal(handed)
	if err != nil {
		return err
	}
	description, err := host.MemoryFile(data)
	if err != nil {
		return err
	}
	defer description.Close()
	for _, f := range append(inherited, description) {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("pass a descriptor on: %w", err)
		}
	}
	noteAdvisory(one.Advisory)
	argv := []string{"agentctl", "mcp", "--session-fd", fmt.Sprint(description.Fd())}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, argv, os.Environ()))
}

// findAgentctl finds the program that serves tools: beside this one, or where packages have it.
func findAgentctl() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	for _, dir := range []string{filepath.Dir(self), "/usr/bin", "/usr/local/bin"} {
		file := filepath.Join(dir, "agentctl")
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
	}
	return "", errors.New("agentctl serves the tools, and is not there")
}
