package mcpfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
)

// Commands of agentsh in a sandbox. CommandCall does nothing: the policy judges that it starts, and the audit
// log has it.
const (
	CommandFilter = "mcp-filter" // --settings FILE SERVER
	CommandList   = "mcp-list"   // --settings FILE SERVER
	CommandCall   = "mcp-call"   // SERVER TOOL [REASON]
)

// patience is how long a server has to end after its input was closed.
const patience = 2 * time.Second

// Streams are those of an agent that starts the filter.
type Streams struct {
	In       io.Reader
	Out      io.Writer
	Messages io.Writer
}

// Serve starts a server and filters it for an agent, until one of them ends.
func Serve(ctx context.Context, s Server, log string, agent Streams) error {
	messages := agent.Messages
	p, err := start(ctx, s, messages)
	if err != nil {
		return err
	}
	defer p.end()
	judge := func(tool, reason string) error { return ask(ctx, s.Name, tool, reason) }
	return Run(s, stream{agent.In, agent.Out}, stream{p.out, p.in}, judge, func(d Definition, reason string) {
		fmt.Fprintf(messages, "agentsh: server %s: tool %s is refused: %s\n", s.Name, d.Name, reason)
		record(log, Entry{Server: s.Name, Tool: d.Name, Reason: reason, SHA256: d.SHA256, Definition: d.Text})
	})
}

// stream joins the two directions of a side.
type stream struct {
	io.Reader
	io.Writer
}

// process is a started server.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

func start(ctx context.Context, s Server, messages io.Writer) (*process, error) {
	cmd := exec.CommandContext(ctx, s.Argv[0], s.Argv[1:]...) //nolint:gosec // the harness names it, and the policy judges it
	cmd.Stderr, cmd.SysProcAttr = messages, &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server %s: %w", s.Name, err)
	}
	return &process{cmd, in, out}, nil
}

// end closes the server's input and waits for its end. A server that goes on is killed with what it started.
func (p *process) end() {
	_ = p.in.Close() // a server that is gone has closed it
	kill := time.AfterFunc(patience, func() { _ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) })
	_ = p.cmd.Wait() // its status says nothing about the agent's work
	kill.Stop()
}

// ask starts the program that does nothing. Its start is an event of the audit log, and the policy decides.
func ask(ctx context.Context, server, tool, reason string) error {
	if !ToolName(tool) {
		tool = "?"
	}
	argv := []string{CommandCall, server, tool}
	if reason != "" {
		argv = append(argv, reason)
	}
	err := exec.CommandContext(ctx, layout.Program, argv...).Run() //nolint:gosec // this program
	switch {
	case err == nil && reason == "":
		return nil
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return errors.New("the policy denies it")
	case err == nil:
		return nil
	}
	return fmt.Errorf("the audit log cannot have it: %w", err)
}

// Entry is one refused definition, a line of [Settings.Log]. The agent could write such lines too, so an
// entry is a report and no proof.
type Entry struct {
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	Reason     string          `json:"reason"`
	SHA256     string          `json:"sha256"`
	Definition json.RawMessage `json:"definition"`
}

// MaxLog bounds the log, in bytes.
const MaxLog = 4 << 20

// record appends an entry to the log. An error changes nothing: the refusal stands without its record.
func record(log string, e Entry) {
	line, err := json.Marshal(e)
	if err != nil || log == "" {
		return
	}
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() < MaxLog-int64(len(line)) {
		_, _ = f.Write(append(line, '\n')) // as above
	}
}

// List starts a server and returns the definitions of all its tools.
func List(ctx context.Context, s Server, messages io.Writer) ([]Definition, error) {
	p, err := start(ctx, s, messages)
	if err != nil {
		return nil, err
	}
	defer p.end()
	return list(s, stream{p.out, p.in})
}
