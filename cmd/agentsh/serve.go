package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/supervisor/guest"
	"agentsh/supervisor/host"
	"agentsh/supervisor/imageroot"
	"agentsh/supervisor/place"
)

const serveText = `Serve a session for the controller that started this program.

The controller describes the session on one descriptor and sends commands over the
other. Neither arguments nor the environment contain any of it. The session ends with
the stream. With --socket the session is one of 'agentsh session create', which
starts this command, and commands arrive over the socket.

With --stdio the controller is on another machine, and standard input and output are
the stream to it. The first frame on it describes the sandbox, which this command makes
and removes: see doc/remote.md.

With --listen it serves controllers on other machines that connect to an address:
unix:PATH, tcp:HOST:PORT, vsock:PORT or ws:HOST:PORT. On a Unix socket, only processes of
the same user and of root are served. Otherwise both sides need the same --key file, with 32
or more random bytes in base64 and mode 0600. All bytes are encrypted with it.

With --metrics, --listen also serves counts for Prometheus, at an address of this machine
alone, or to those who have a token: sandboxes, commands, denials by rule, lost events,
processes and bytes. See doc/remote.md.

Without flags it is the entry point of a container whose shells share a session, see
'agentsh shim install --session shared'. It opens that session, and ends it when it is
asked to end.`

// newServeCommand serves a controller over descriptors that it hands down.
func newServeCommand() *cobra.Command {
	var stream, bootstrap, lease int
	var config, socket, placed string
	var overStdio, first bool
	var container time.Duration
	var listen listenFlags
	var root imageroot.Options
	cmd := &cobra.Command{
		Use: "serve [--stream-fd N --bootstrap-fd N | --socket PATH | --stdio | --listen ADDRESS]",
		Example: "  agentsh serve --socket /run/agentsh/work.sock\n" +
			"  agentsh serve --listen tcp:0.0.0.0:7000 --key /etc/agentsh/place.key --metrics 127.0.0.1:9465",
		Short: "Serve a session for a controller",
		Long:  serveText,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if first {
				guest.Run(cmd.Context(), version)
			}
			operator, err := host.ReadConfig(orDefault(config, layout.Config), config == "")
			if err == nil {
				operator, _, err = host.InContainer(operator)
			}
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			if root.Image != "" {
				root.Files = operator.Egress.RootFiles
				return enterImage(root, orDefault(config, layout.Config), map[string]int{
					"--stream-fd": stream, "--bootstrap-fd": bootstrap, "--lease-fd": lease,
				})
			}
			if err := listen.check(); err != nil {
				return failure.New(failure.Ours, err, "see 'agentsh serve --help'")
			}
			if overStdio {
				return serveStdio(cmd.Context(), config)
			}
			if container != 0 {
				return serveContainer(cmd.Context(), container)
			}
			if listen.address != "" {
				return listen.serve(cmd.Context(), config)
			}
			options := host.Options{Operator: operator, Build: version, Confine: true} // this process serves one session
			if placed != "" {
				return failed(place.ServeSandbox(cmd.Context(), placed, options), "'agentsh serve --stdio' starts this command")
			}
			if socket != "" {
				return serveSocket(cmd.Context(), socket, options)
			}
			if stream == 0 && bootstrap == 0 {
				return serveShared(cmd.Context())
			}
			if lease > 2 {
				syscall.CloseOnExec(lease) // locked while it is open: until this process ends
			}
			return serveDescriptors(cmd.Context(), stream, bootstrap, options)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "`PATH` of the socket to answer on")
	cmd.Flags().BoolVar(&overStdio, "stdio", false, "serve a controller on another machine over standard input and output")
	listen.add(cmd)
	cmd.Flags().StringVar(&placed, "place", "", "`DIR` of a sandbox of serve --stdio")
	_ = cmd.Flags().MarkHidden("place") // of this program alone; fails for an unknown flag only
	cmd.Flags().DurationVar(&container, "container", 0, "process 1 of a container of agentctl: end after `DURATION` without a sandbox")
	_ = cmd.Flags().MarkHidden("container") // agentctl alone uses it
	cmd.Flags().BoolVar(&first, "init", false, "process 1 of a virtual machine of agentctl")
	_ = cmd.Flags().MarkHidden("init") // agentctl alone uses it
	cmd.Flags().IntVar(&stream, "stream-fd", 0, "descriptor `N` of the stream to the controller")
	cmd.Flags().IntVar(&bootstrap, "bootstrap-fd", 0, "descriptor `N` from which the session is described")
	cmd.Flags().IntVar(&lease, "lease-fd", 0, "descriptor `N` that stays open until the session ends")
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE` (default "+layout.Config+" where it exists)")
	cmd.Flags().StringVar(&root.Image, "image-root", "", "serve in the root file system `DIR`; takes a mount namespace of its own")
	cmd.Flags().StringVar(&root.Dir, "image-sandbox", "", "`DIR` of the sandbox, for the changes to the root file system")
	cmd.MarkFlagsRequiredTogether("image-root", "image-sandbox")
	excludeServes(cmd)
	return cmd
}

// serveDescriptors serves the controller at the other end of the descriptor stream. The descriptor
// bootstrap describes the session.
func serveDescriptors(ctx context.Context, stream, bootstrap int, options host.Options) error {
	syscall.CloseOnExec(stream)
	syscall.CloseOnExec(bootstrap)
	boot, err := readBootstrap(bootstrap)
	if err != nil {
		return failure.New(failure.Ours, err, "agentctl starts this command; to run one command use 'agentsh exec'")
	}
	conn, err := channel.FromFile(os.NewFile(uintptr(stream), "stream"))
	if err != nil {
		return failure.New(failure.Ours, fmt.Errorf("stream: %w", err), "")
	}
	if err := host.Serve(ctx, conn, boot, options); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	return nil
}

// excludeServes rejects flags of two ways to serve.
func excludeServes(cmd *cobra.Command) {
	ways := []string{"socket", "stdio", "listen", "place", "container", "init"}
	for _, other := range []string{"image-root", "stream-fd", "bootstrap-fd"} {
		for _, one := range ways {
			cmd.MarkFlagsMutuallyExclusive(one, other)
		}
	}
	cmd.MarkFlagsMutuallyExclusive(ways...)
}

// enterImage starts this command again in the root of an image. The configuration
// is this machine's, never that of the image.
func enterImage(o imageroot.Options, config string, descriptors map[string]int) error {
	args := []string{"agentsh", "serve", "--config", filepath.Join(o.Dir, "config.yaml")}
	for flag, fd := range descriptors {
		args = append(args, flag, strconv.Itoa(fd))
	}
	data, err := os.ReadFile(config)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the defaults
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(o.Dir, "config.yaml"), data, 0o600)
	}
	if err == nil {
		err = imageroot.Enter(o, args)
	}
	return failure.New(failure.Ours, err, "see 'Images' in doc/runs.md")
}

// serveSocket serves a session of the registry.
func serveSocket(ctx context.Context, socket string, options host.Options) error {
	if err := host.ServeSocket(ctx, socket, options); err != nil {
		return failure.New(failure.Ours, err, "'agentsh session create' starts this command")
	}
	return nil
}

// readBootstrap reads the session's description to its end.
func readBootstrap(fd int) (wire.Bootstrap, error) {
	var boot wire.Bootstrap
	if fd <= 2 {
		return boot, errors.New("no --bootstrap-fd")
	}
	f := os.NewFile(uintptr(fd), "bootstrap")
	defer f.Close()
	return host.ReadBootstrap(f)
}
