// Package mcpcmd has the command that pins the tools of a harness's MCP servers.
package mcpcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/harness"
	"agentsh/controller/mcpfilter"
	"agentsh/controller/servers"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// pinning is one call of the command.
type pinning struct {
	run   settings.Run
	check bool
}

// NewPins is agentctl mcp-pins.
func NewPins() *cobra.Command {
	var p pinning
	cmd := &cobra.Command{
		Use:   "mcp-pins FILE [--check]",
		Short: "Pin the tools of a harness's MCP servers",
		Long: `mcp-pins starts each server of mcp_servers that has pins, in a sandbox under the policy
of the harness, as a run does. It writes the definitions of the server's tools with their
digests to the file that pins names, and prints what differs from the file that was there.
Read the definitions before you commit the file: the model reads them too.

With --check it writes nothing, and ends with status 1 if there is a difference.`,
		Example: "  agentctl mcp-pins harness/review.yaml --check",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.pin(cmd, args[0]) },

		ValidArgsFunction: settings.CompleteYAML,
	}
	cmd.Flags().StringVar(&p.run.Repo, "repo", ".", "git repository that the servers find in the sandbox: its top `DIR`, or one below it")
	p.run.AddPlace(cmd)
	cmd.Flags().BoolVar(&p.check, "check", false, "write nothing; status 1 if a definition differs from its pin")
	p.run.Load.Add(cmd)
	return cmd
}

// pin lists the tools of all servers in one sandbox.
func (p *pinning) pin(cmd *cobra.Command, file string) error {
	stderr := cmd.ErrOrStderr()
	o, err := p.run.Options(file)
	if err != nil {
		return err
	}
	h, problems := harness.Load(file, o.Load)
	if problems.HasErrors() {
		return fmt.Errorf("%s has problems: 'agentctl lint %s' lists them", file, file)
	}
	pinned := slices.DeleteFunc(slices.Clone(h.MCPServers), func(s harness.MCPServer) bool { return !s.Pins.IsSet() })
	if len(pinned) == 0 {
		return fmt.Errorf("%s has no mcp_servers with pins: write pins: FILE below a server", file)
	}
	scratch, err := o.State.Temporary(filepath.Join(os.TempDir(), "agentctl-mcp-pins-"))
	if err == nil {
		err = os.Mkdir(scratch.Path, 0o700)
	}
	if err != nil {
		return err
	}
	defer func() { _ = scratch.Remove() }() // results of a run without an agent; they are swept otherwise
	o.Out = filepath.Join(scratch.Path, "out")
	listed := map[string][]byte{}
	progress := output.NewProgress(stderr, stderr, true)
	ctx, force, stop := settings.Interruptible(cmd.Context(), settings.AbandonRun(stderr))
	defer stop()
	o.Progress, o.Force, o.Agent.Unpinned = progress.Update, force, true
	o.AllowDirty = true // no agent works here, and the files of pins may lie in the repository
	o.Agent.Outside = func(limited context.Context, w controller.Workplace) error {
		for _, s := range pinned {
			data, err := list(limited, w, s.Name.V)
			if err != nil {
				return fmt.Errorf("server %s: %w", s.Name.V, err)
			}
			listed[s.Name.V] = data
		}
		return nil
	}
	_, err = controller.Run(ctx, o)
	progress.End()
	if err := settings.RunFailure(stderr, err); err != nil {
		return err
	}
	return p.store(cmd.OutOrStdout(), h, pinned, listed)
}

// Bounds of a list of tools.
const (
	listTime  = 3 * time.Minute
	maxList   = 64 << 20 // bytes
	maxErrors = 64 << 10 // bytes
	maxLine   = 400      // characters
)

// list lists the tools of a server in a sandbox.
func list(ctx context.Context, w controller.Workplace, server string) ([]byte, error) {
	out, errs := &bounded{most: maxList}, &bounded{most: maxErrors}
	exit, err := w.Sandbox.Run(ctx, wire.ExecRequest{
		ID: "mcp-list-" + server, Argv: servers.Filter(mcpfilter.CommandList, server), Cwd: w.Dir, Env: w.Env, Run: w.Run,
		DeadlineMS: listTime.Milliseconds(),
	}, wire.Streams{Stdout: out, Stderr: errs})
	switch {
	case err != nil:
		return nil, err
	case exit.Kind != wire.ExitExited || exit.Code != 0:
		return nil, fmt.Errorf("%s %d %s: %s", exit.Kind, exit.Code, exit.Message, text.Short(strings.TrimSpace(errs.data.String()), maxLine))
	}
	return out.data.Bytes(), nil
}

// bounded keeps the first bytes of an output.
type bounded struct {
	data bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.data.Write(p[:min(len(p), max(b.most-b.data.Len(), 0))])
	return len(p), nil
}

// store compares and writes the files of pins.
func (p *pinning) store(to io.Writer, h *harness.Harness, pinned []harness.MCPServer, listed map[string][]byte) error {
	differs := false
	for _, s := range pinned {
		name := h.Path(s.Pins)
		seen, err := mcpfilter.ReadPins(listed[s.Name.V], s.Name.V)
		if err != nil {
			return fmt.Errorf("server %s: %w", s.Name.V, err)
		}
		var before mcpfilter.Pins
		old, err := os.ReadFile(name)
		if err == nil {
			before, err = mcpfilter.ReadPins(old, s.Name.V)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: pins: %s: %w", s.Pins.At, name, err)
		}
		if changed := compare(to, s.Name.V, before, seen); !changed {
			continue
		}
		differs = true
		if p.check {
			continue
		}
		data, err := json.MarshalIndent(seen, "", "  ")
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, append(data, '\n'), 0o644)); err != nil {
			return err
		}
		fmt.Fprintf(to, "%s: %s of server %s\n", name, text.Count(len(seen.Tools), "tool"), s.Name.V)
	}
	if differs && p.check {
		return &output.Failure{Code: controller.ExitAgentFailed, Err: errors.New("definitions of tools differ from their pins"),
			Hint: "read the differences; without --check mcp-pins writes the new definitions"}
	}
	return nil
}

// compare prints how the definitions of a server differ from its pins, and reports whether they do.
func compare(to io.Writer, server string, before, seen mcpfilter.Pins) bool {
	differs := before.Tools == nil
	names := maps.Clone(seen.Tools)
	maps.Copy(names, before.Tools)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, had := before.Tools[name]
		now, has := seen.Tools[name]
		switch {
		case had && !has:
			fmt.Fprintf(to, "%s: tool %s is gone\n", server, name)
		case has && !had:
			fmt.Fprintf(to, "%s: tool %s is new\n%s\n", server, name, servers.Difference(nil, now.Definition))
		case old.SHA256 != now.SHA256:
			fmt.Fprintf(to, "%s: tool %s has changed\n%s\n", server, name, servers.Difference(old.Definition, now.Definition))
		default:
			continue
		}
		differs = true
	}
	return differs
}
