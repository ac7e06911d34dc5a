package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/boxes"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/tools"
	"agentsh/internal/channel"
	"agentsh/internal/foreground"
	"agentsh/internal/wire"
)

// mcpFlags are the flags of agentctl mcp.
type mcpFlags struct {
	run      settings.Run
	policy   string
	degraded []string
	http     httpFlags
	session  int    // descriptor of the session of 'agentsh mcp'
	again    string // which process of the command this is; empty: the one in front
}

// Processes of the command behind the one in front.
const (
	againApart = "apart" // starts the next one, and ends
	againWorks = "works" // makes the sandbox
)

func newMCPCommand() *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp [FILE | --policy FILE] [--repo DIR] [--out DIR] [--listen ADDRESS]",
		Short: "Serve the tools of a new sandbox to an agent outside it",
		Long: `mcp makes a sandbox as a run does, with the repository in it, and serves its tools over
the Model Context Protocol (MCP) on standard input and output. An agent program outside
starts this command, and works in the sandbox in place of its own shell and file tools.

FILE is a harness. Its agent does not run; everything else is as in agentctl run: checks,
scans, files, environment, credentials and timeout_minutes. --policy takes the place of a
harness that has nothing but a policy.

When the client closes the stream, or ends in any way, the work is taken out as after a
run: commits become a branch of the repository, and --out gets the results. The first
SIGINT or SIGTERM asks for that too; the second stops as it stops a run. Standard error
has the messages.

With --listen clients come over streamable HTTP instead, until SIGINT, SIGTERM or the end
of timeout_minutes. Each request needs the header "Authorization: Bearer TOKEN". The token
is that of --token-file, or a new one that standard error has once.`,
		Example: "  claude mcp add sandbox -- agentctl mcp --policy policy.yaml --repo ~/src/app --out ~/out",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.session > 0 {
				return f.serveSession(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			if (len(args) == 1) == (f.policy != "") {
				return errors.New("name a harness, or a policy with --policy FILE")
			}
			switch f.again {
			case "":
				return behind(cmd)
			case againApart:
				return host.Apart(append([]string{"--again=" + againWorks}, os.Args[2:]...))
			}
			return f.work(cmd, args)
		},
		ValidArgsFunction: settings.CompleteYAML,
	}
	f.run.AddInputs(cmd, ".", "git repository the agent works on: its top `DIR`, or one below it in which commands start")
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "", "policy `FILE`, or the name of a policy of the packages, in place of a harness")
	flags.StringSliceVar(&f.degraded, "degraded", nil, "do without `NAME,...` where the place lacks it; see doc/detect.md; with --policy")
	flags.IntVar(&f.session, "session-fd", 0, "descriptor `N` of the session of 'agentsh mcp', which starts this command")
	flags.StringVar(&f.again, "again", "", "`PROCESS` of this command behind the one in front")
	for _, own := range []string{"session-fd", "again"} {
		_ = flags.MarkHidden(own) // of these programs alone; fails for an unknown flag only
	}
	f.http.add(flags)
	f.run.AddSpace(cmd)
	_ = cmd.RegisterFlagCompletionFunc("policy", settings.CompleteYAML) // fails for an unknown flag only
	f.run.Load.Add(cmd)
	return cmd
}

// behind starts this program again, which makes the sandbox and takes the work out. So the
// work is not lost when a client kills this process soon after its end.
func behind(cmd *cobra.Command) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, foreground.EndSignals()...)
	defer signal.Stop(signals)
	again, err := host.StartAgain(append([]string{"--again=" + againApart}, os.Args[1:]...))
	if err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	if cmd.Context().Err() != nil { // a signal came before
		again.Ask()
	}
	asked := false
	for {
		select {
		case s := <-signals:
			if sent, ok := s.(syscall.Signal); ok && asked {
				again.Signal(sent)
			} else {
				again.Ask()
			}
			asked = true
		case <-again.Ended():
			return endOf(again)
		}
	}
}

// endOf is how the program behind ended. It has said why, unless it was killed.
func endOf(again *host.Again) error {
	switch code, killed := again.Code(); {
	case killed:
		return &output.Failure{
			Code: controller.ExitSandbox, Err: errors.New("the process that holds the sandbox was killed, and what was not taken out is lost"),
			Hint: "if nobody killed it, the machine may have too little memory (dmesg says so); 'agentctl gc' removes what it left",
		}
	case code != controller.ExitDone:
		return &output.Failure{Code: code}
	}
	return nil
}

// work serves the tools of a run, and tells the process in front how it ended.
func (f *mcpFlags) work(cmd *cobra.Command, args []string) error {
	front := host.OpenFront()
	code := output.Report(f.serveRun(cmd, args, front), cmd.ErrOrStderr())
	front.Finish(code)
	if code == controller.ExitDone {
		return nil
	}
	return &output.Failure{Code: code}
}

// serveRun serves the tools of a run.
func (f *mcpFlags) serveRun(cmd *cobra.Command, args []string, front host.Front) error {
	stderr := cmd.ErrOrStderr()
	clients, err := f.http.listen(cmd)
	if err != nil {
		return err
	}
	defer clients.close()
	file, remove, err := f.harness(args)
	if failed := (*controller.Failure)(nil); errors.As(err, &failed) {
		return settings.RunFailure(stderr, err)
	} else if err != nil {
		return err
	}
	defer remove()
	o, err := f.run.Options(file)
	if err != nil {
		return err
	}
	if f.policy != "" {
		o.Load.Root, o.Load.Requested = "/", true
	}
	progress := output.NewProgress(stderr, stderr, true)
	ctx, force, stop := settings.Interruptible(cmd.Context(), settings.AbandonRun(stderr))
	defer stop()
	serving, end := context.WithCancel(ctx)
	defer end()
	go front.Follow(end) // ends with the program in front, or with this one
	o.Progress, o.Force = progress.Update, force
	o.Agent.Outside = func(limited context.Context, w controller.Workplace) error {
		limited, cancel := context.WithCancelCause(limited)
		defer cancel(nil)
		defer context.AfterFunc(serving, func() { cancel(nil) })()
		if box, ok := w.Sandbox.(sandbox.Sandbox); ok {
			go func() { // ends with limited
				select {
				case <-box.Gone():
					cancel(box.Cause())
				case <-limited.Done():
				}
			}()
		}
		return clients.serve(limited, w)
	}
	clients.prepare()
	result, err := controller.Run(ctx, o)
	progress.End()
	if len(result.Iterations) > 0 {
		output.PrintResult(stderr, result)
	}
	if f.policy != "" {
		err = boxes.Plain(err, o.Harness)
	}
	failed := settings.RunFailure(stderr, err)
	if failed == nil || !clients.waiting() {
		return failed
	}
	code := output.Report(failed, stderr)
	clients.explain(serving, cmp.Or(err, failed))
	return &output.Failure{Code: code}
}

// harness is the file of the harness. One that --policy stands for is made, until remove is called.
func (f *mcpFlags) harness(args []string) (file string, remove func(), err error) {
	spec := boxes.Spec{Policy: f.policy, Degraded: f.degraded}
	if f.policy == "" {
		spec.Harness = args[0]
	}
	if err := spec.Check(); err != nil {
		return "", nil, err
	}
	state, err := settings.State()
	if err != nil {
		return "", nil, err
	}
	return spec.HarnessFile(state, "mcp")
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
	wrong := func(err error) error { return &output.Failure{Code: controller.ExitSandbox, Err: err} }
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
	turns, err := tools.NewTurns(s.Workspace)
	if err != nil {
		return wrong(errors.Join(err, conn.Close()))
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{Key: s.Key, HostKey: s.HostKey, Server: s.Server, Build: "agentctl"})
	if err != nil {
		return wrong(err)
	}
	box, err := tools.New(ctx, tools.Config{
		Program: "agentsh", Version: version, Sandbox: client, Dir: s.Cwd, History: settings.SessionHistory{HandedSession: s}, Turns: turns,
	})
	if err != nil {
		return wrong(errors.Join(err, client.Close()))
	}
	served, end := context.WithCancelCause(ctx)
	go func() { // ends with served
		select {
		case <-client.Done():
			end(errSessionEnded)
		case <-served.Done():
		}
	}()
	err = box.Serve(served, io.NopCloser(in), nopCloser{out})
	gone := context.Cause(served)
	end(nil)
	box.Close()
	if errors.Is(gone, errSessionEnded) {
		_ = client.Close() // the reason is known
		return &output.Failure{Code: controller.ExitSandbox, Err: gone, Hint: "start the server again for another one"}
	}
	err = errors.Join(err, client.Close())
	if err != nil && ctx.Err() == nil {
		return wrong(err)
	}
	return nil
}

var errSessionEnded = errors.New("the session has ended")

// nopCloser is an output that stays open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
