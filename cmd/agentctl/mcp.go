package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/tools"
	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// mcpFlags are the flags of agentctl mcp.
type mcpFlags struct {
	session int // descriptor
}

func newMCPCommand() *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:     "mcp",
		Short:   "Serve the tools of a session that agentsh hands over",
		Example: "  agentctl mcp --session-fd 5",
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.serveSession(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&f.session, "session-fd", 0, "descriptor `N` of the session of 'agentsh mcp'")
	return cmd
}

// maxHanded bounds the description of a session, in bytes.
const maxHanded = 1 << 20

// readHanded reads the session that agentsh handed over.
func readHanded(fd int) (wire.HandedSession, error) {
	var s wire.HandedSession
	if fd <= 2 {
		return s, errors.New("there is no session: 'agentsh mcp' starts this command")
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "session")
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxHanded))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("session of agentsh: %w", err)
	}
	if s.Version != wire.Current {
		return s, fmt.Errorf("agentsh and agentctl are of different versions (%v and %v): install both from one package", s.Version, wire.Current)
	}
	syscall.CloseOnExec(s.Stream)
	if s.Owner > 2 {
		syscall.CloseOnExec(s.Owner) // open until this process ends
	}
	return s, nil
}

// serveSession serves the tools of a session that agentsh handed over.
func (f *mcpFlags) serveSession(ctx context.Context, in io.Reader, out io.Writer) error {
	wrong := func(err error) error { return &failure{code: controller.ExitSandbox, err: err} }
	s, err := readHanded(f.session)
	if err != nil {
		return wrong(err)
	}
	stream := os.NewFile(uintptr(s.Stream), "stream")
	conn, err := channel.FromFile(stream)
	_ = stream.Close() // conn is a duplicate
	if err != nil {
		return wrong(err)
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{Key: s.Key, HostKey: s.HostKey, Server: s.Server, Build: "agentctl"})
	if err != nil {
		return wrong(err)
	}
	box, err := tools.New(ctx, tools.Config{Program: "agentsh", Version: version, Sandbox: client, Dir: s.Cwd, History: sessionHistory{s}})
	if err != nil {
		return wrong(errors.Join(err, client.Close()))
	}
	err = box.Serve(ctx, io.NopCloser(in), nopCloser{out})
	box.Close()
	err = errors.Join(err, client.Close())
	if err != nil && ctx.Err() == nil {
		return wrong(err)
	}
	return nil
}

// nopCloser is an output that stays open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
