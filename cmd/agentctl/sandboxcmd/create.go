package sandboxcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/boxes"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/foreground"
)

// defaultIdle is how long a sandbox goes on that nobody uses.
const defaultIdle = time.Hour

// sandboxCreate are the flags of sandbox create.
type sandboxCreate struct {
	spec            boxes.Spec
	place           settings.Placement
	env, labels     []string
	idle            time.Duration
	file            string // of the specification
	agentsh, config string
	json            bool
	alive           int // descriptor of the program in front
}

func newSandboxCreateCommand() *cobra.Command {
	var c sandboxCreate
	cmd := &cobra.Command{
		Use:   "create [FILE | --policy POLICY | --spec FILE]",
		Short: "Make a sandbox without a run",
		Long: `Make a sandbox without a run, and print its name. It goes on in the background until
'agentctl sandbox delete', or until nobody has used it for the time of --idle.

FILE is a harness, whose agent does not run; everything else is as in agentctl run: checks,
scans, files, environment and credentials. --policy takes the place of a harness that has
nothing but a policy. --spec reads all of it as JSON, from standard input with -; see
doc/sandboxes.md.

With --repo the last commit of a git repository is in the sandbox. Without it commands start
in an empty directory.`,
		Example: "  agentctl sandbox create --policy agent-sandbox --repo ~/src/app\n  echo '{\"policy\": \"policy.yaml\"}' | " +
			"agentctl sandbox create --spec - --json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := c.specification(cmd, args)
			if err != nil {
				return err
			}
			return c.start(cmd, spec)
		},
		ValidArgsFunction: settings.CompleteYAML,
	}
	f := cmd.Flags()
	f.StringVar(&c.file, "spec", "", "`FILE` with the specification as JSON, or - for standard input")
	f.StringVar(&c.spec.Policy, "policy", "", "policy `FILE`, or the name of a policy of the packages")
	f.StringVar(&c.spec.Repo, "repo", "", "git repository whose last commit is in the sandbox: its top `DIR`, or one below it")
	f.BoolVar(&c.spec.AllowDirty, "allow-dirty", false, "use HEAD although files of the repository are changed")
	f.StringVar(&c.spec.From, "from", "", "`FILE` of 'sandbox save': its files are put into the sandbox")
	f.StringVar(&c.spec.Image, "image", "", "`NAME` of an image, or the path of its root file system; with --policy")
	f.StringArrayVarP(&c.env, "env", "e", nil, "set `NAME=VALUE`, which env_policy has to allow, for every command; with --policy")
	f.StringSliceVar(&c.spec.Degraded, "degraded", nil,
		"do without `NAME,...` where the place lacks it; see doc/detect.md; with --policy")
	f.StringSliceVar(&c.spec.Require, "require", nil, "refuse a place that does not prove `NAME,...`; with --policy")
	f.StringArrayVar(&c.labels, "label", nil, "`NAME=VALUE` that lists have")
	f.DurationVar(&c.idle, "idle", defaultIdle, "delete the sandbox when nobody has used it for this long")
	f.StringVar(&c.agentsh, "agentsh", "", "`FILE` of the supervisor (default: beside agentctl, then /usr/lib/agentsh, then PATH)")
	f.StringVar(&c.config, "agentsh-config", "", "configuration `FILE` of the supervisor (default /etc/agentsh/config.yaml where it exists)")
	f.BoolVar(&c.json, "json", false, "print a JSON object")
	c.place.Add(cmd)
	for _, name := range []string{
		"policy", "repo", "allow-dirty", "from", "image", "env", "degraded", "require", "label", "idle", "backend", "connect",
		"connect-key", "lease",
	} {
		cmd.MarkFlagsMutuallyExclusive("spec", name)
	}
	_ = cmd.RegisterFlagCompletionFunc("policy", settings.CompleteYAML) // fails for an unknown flag only
	return cmd
}

// specification is what the command line describes.
func (c *sandboxCreate) specification(cmd *cobra.Command, args []string) (spec boxes.Spec, err error) {
	switch {
	case c.file != "" && len(args) > 0:
		return spec, errors.New("--spec names the harness: leave out FILE")
	case c.file == "-":
		spec, err = boxes.ReadSpec(cmd.InOrStdin())
	case c.file != "":
		f, openErr := os.Open(c.file)
		if openErr != nil {
			return spec, openErr
		}
		defer f.Close()
		spec, err = boxes.ReadSpec(f)
	default:
		spec = c.spec
		if len(args) == 1 {
			spec.Harness = args[0]
		}
		if c.place.Flags.Changed("backend") {
			spec.Backend = c.place.Backend
		}
		spec.Connect, spec.ConnectKey, spec.LeaseSeconds = c.place.Connect, c.place.Key, int64(c.place.Lease/time.Second)
		spec.IdleSeconds = int64(c.idle / time.Second)
		if spec.Env, err = pairs("--env", c.env); err == nil {
			spec.Labels, err = pairs("--label", c.labels)
		}
	}
	if err != nil {
		return spec, err
	}
	if spec.IdleSeconds == 0 {
		spec.IdleSeconds = int64(defaultIdle / time.Second)
	}
	return spec, spec.Check()
}

// pairs reads NAME=VALUE of a flag.
func pairs(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, one := range list {
		name, value, ok := strings.Cut(one, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%s %s: write NAME=VALUE", flag, one)
		}
		out[name] = value
	}
	return out, nil
}

// held is what the program behind says: the sandbox, or why there is none.
type heldJSON struct {
	boxes.Made
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	Code  int    `json:"code,omitempty"`
}

// start starts the program that holds the sandbox, and waits until it is made.
func (c *sandboxCreate) start(cmd *cobra.Command, spec boxes.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	args := []string{"sandbox", "hold", "--alive-fd", fmt.Sprint(host.AliveFD)}
	for flag, value := range map[string]string{"--agentsh": c.agentsh, "--agentsh-config": c.config} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	behind, err := host.StartBehind(args, data)
	if err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	defer context.AfterFunc(cmd.Context(), func() { behind.Signal(syscall.SIGTERM) })()
	told := make(chan struct{})
	go func() { // ends when the program closes its streams
		defer close(told)
		_, _ = io.Copy(cmd.ErrOrStderr(), behind.Err)
	}()
	var made heldJSON
	line, err := bufio.NewReader(behind.Out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &made)
	}
	<-told
	if err != nil || made.Error != "" {
		return made.failure(behind.Wait())
	}
	if c.json {
		err = output.WriteJSON(cmd.OutOrStdout(), made.Made)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), made.Sandbox)
	}
	if err != nil {
		behind.Wait() // it deletes the sandbox: nobody knows its name
		return err
	}
	if err := behind.Leave(); err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	return nil
}

// failure is why the program behind has made no sandbox.
func (h heldJSON) failure(state *os.ProcessState) error {
	switch status, ok := state.Sys().(syscall.WaitStatus); {
	case h.Error != "":
		return &output.Failure{Code: h.Code, Err: errors.New(h.Error), Hint: h.Hint}
	case ok && status.Signaled():
		return &output.Failure{
			Code: controller.ExitSandbox, Err: fmt.Errorf("the process that makes the sandbox was ended: %s", state),
			Hint: "if nobody killed it, the machine may have too little memory (dmesg says so); 'agentctl gc' removes what it left",
		}
	}
	return &output.Failure{Code: max(state.ExitCode(), 1)} // it has said why
}

// newSandboxHoldCommand is the program that holds a sandbox: 'sandbox create' starts it.
func newSandboxHoldCommand() *cobra.Command {
	var c sandboxCreate
	cmd := &cobra.Command{
		Use: "hold", Hidden: true, Short: "Hold a sandbox", Args: cobra.NoArgs,
		Example: "  agentctl sandbox create --policy policy.yaml  # starts it",
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.hold(cmd) },
	}
	cmd.Flags().StringVar(&c.agentsh, "agentsh", "", "`FILE` of the supervisor")
	cmd.Flags().StringVar(&c.config, "agentsh-config", "", "configuration `FILE` of the supervisor")
	cmd.Flags().IntVar(&c.alive, "alive-fd", 0, "descriptor `N` that ends with the program in front, unless it leaves a byte")
	return cmd
}

func (c *sandboxCreate) hold(cmd *cobra.Command) error {
	spec, err := boxes.ReadSpec(cmd.InOrStdin())
	if err != nil {
		return err
	}
	say := func(h heldJSON) error { return json.NewEncoder(cmd.OutOrStdout()).Encode(h) }
	o, done, err := c.options(spec, cmd.ErrOrStderr())
	if err != nil {
		return say(heldError(err))
	}
	defer done()
	ctx, force, stop := settings.Interruptible(cmd.Context(), settings.AbandonRun(io.Discard))
	defer stop()
	ctx, left := c.wanted(ctx)
	o.Force = force
	box, err := boxes.Open(ctx, o, spec)
	if err != nil {
		if spec.Policy != "" {
			err = boxes.Plain(err, o.Harness)
		}
		_ = settings.RunFailure(cmd.ErrOrStderr(), err) // prints problems
		return errors.Join(say(heldError(err)), &output.Failure{Code: controller.ExitSandbox})
	}
	if err := say(heldJSON{Made: boxes.NewMade(box, o.Backend.Name(), spec.Labels)}); err != nil {
		return errors.Join(err, box.Close(context.WithoutCancel(ctx))) // nobody knows of it
	}
	if err := leaveStreams(); err != nil {
		return errors.Join(err, box.Close(context.WithoutCancel(ctx)))
	}
	select {
	case <-left: // its name is known
		select {
		case <-box.Done():
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	return box.Close(context.WithoutCancel(ctx))
}

// wanted is a context that ends when the program in front ends before it has told anybody the name of the
// sandbox. left is closed once it has.
func (c *sandboxCreate) wanted(ctx context.Context) (_ context.Context, left <-chan struct{}) {
	syscall.CloseOnExec(c.alive)
	alive, told := os.NewFile(uintptr(c.alive), "alive"), make(chan struct{})
	ctx, end := context.WithCancelCause(ctx)
	go func() { // ends with the program in front
		defer alive.Close()
		if n, _ := alive.Read(make([]byte, 1)); n == 1 {
			close(told)
			return
		}
		end(errors.New("the command that makes the sandbox has ended"))
	}()
	return ctx, told
}

// heldError is an error for the program in front.
func heldError(err error) heldJSON {
	h := heldJSON{Error: err.Error(), Code: controller.ExitConfiguration}
	var of *controller.Failure
	var own *output.Failure
	switch {
	case errors.As(err, &of):
		h.Hint, h.Code = of.Hint, of.Code
		if len(of.Problems) > 0 {
			h.Error = "the harness has problems"
		}
	case errors.As(err, &own):
		h.Hint, h.Code = own.Hint, own.Code
	case output.Unwritable(err) != "":
		h.Hint, h.Code = output.Unwritable(err), controller.ExitSandbox
	}
	return h
}

// leaveStreams gives the standard streams up, so that who reads them sees their end.
func leaveStreams() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	signal.Ignore(syscall.SIGHUP)
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// options are the options of a run for a specification. done removes what they need.
func (c *sandboxCreate) options(spec boxes.Spec, stderr io.Writer) (o controller.Options, done func(), err error) {
	state, err := settings.State()
	if err != nil {
		return o, nil, err
	}
	file, done, err := spec.HarnessFile(state, "sandbox")
	if err != nil {
		return o, nil, err
	}
	f := settings.Run{
		Repo: spec.Repo, Agentsh: c.agentsh, Config: c.config, AllowDirty: spec.AllowDirty,
		Place: settings.Placement{
			Backend: spec.Backend, Connect: spec.Connect, Key: spec.ConnectKey, Lease: time.Duration(spec.LeaseSeconds) * time.Second,
		},
	}
	if f.Place.Lease == 0 {
		f.Place.Lease = remote.DefaultLease
	}
	if o, err = f.Options(file); err != nil {
		done()
		return o, nil, err
	}
	if spec.Policy != "" {
		o.Load.Root, o.Load.Requested = "/", true
	}
	if filepath.IsAbs(spec.Image) {
		o.Images.Places[spec.Image] = spec.Image
	}
	progress := output.NewProgress(io.Discard, stderr, true)
	o.Progress = func(u controller.Update) {
		if u.Kind == controller.UpdateWarning {
			progress.Update(u)
		}
	}
	return o, done, nil
}

// newSandboxServeCommand serves sandboxes to a program.
func newSandboxServeCommand() *cobra.Command {
	var c sandboxCreate
	var stdio bool
	cmd := &cobra.Command{
		Use:   "serve --stdio",
		Short: "Serve sandboxes to a program, by JSON on its standard streams",
		Long: `Serve sandboxes to a program that starts this command: it makes sandboxes, runs commands,
moves files, takes snapshots and goes back to them, by JSON-RPC 2.0 with one message a line.
doc/sandboxes.md has the methods. All sandboxes end when standard input does.`,
		Example: `  echo '{"jsonrpc":"2.0","id":1,"method":"hello"}' | agentctl sandbox serve --stdio`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !stdio {
				return errors.New("write --stdio: there is no other stream yet")
			}
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, foreground.EndSignals()...)
			defer signal.Stop(signals)
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() { // ends with the process
				<-signals
				cancel()
			}()
			err := boxes.Serve(ctx, boxes.Config{Version: output.Version, Options: func(s boxes.Spec) (controller.Options, func(), error) {
				return c.options(s, cmd.ErrOrStderr())
			}}, cmd.InOrStdin(), cmd.OutOrStdout())
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&stdio, "stdio", false, "use standard input and output")
	cmd.Flags().StringVar(&c.agentsh, "agentsh", "", "`FILE` of the supervisor (default: beside agentctl, then /usr/lib/agentsh, then PATH)")
	cmd.Flags().
		StringVar(&c.config, "agentsh-config", "", "configuration `FILE` of the supervisor (default /etc/agentsh/config.yaml where it exists)")
	return cmd
}
