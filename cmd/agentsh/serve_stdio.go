package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/prometheus"
	"agentsh/internal/socket"
	"agentsh/internal/sshcommand"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/supervisor/place"
	"agentsh/supervisor/tally"
)

// serveStdio makes and serves a sandbox for a controller on another machine.
func serveStdio(ctx context.Context, config string) error {
	const hint = "agentctl starts this command over ssh, or what --connect of agentctl run names"
	s, err := openStdio()
	if err != nil {
		return failure.New(failure.Ours, err, hint)
	}
	o, err := placeOptions(config)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	return failed(place.Serve(ctx, s, o), hint)
}

// serveContainer is process 1 of a container that agentctl made.
func serveContainer(ctx context.Context, idle time.Duration) error {
	const hint = "agentctl starts this command in containers: see doc/platforms/docker.md"
	o, err := placeOptions("")
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	_, _ = os.Stdout.WriteString(wire.ContainerReady) // to who made the container, if that listens
	return failed(place.ServeContainer(ctx, o, idle), hint)
}

// placeOptions describe this machine as a place.
func placeOptions(config string) (o place.Options, err error) {
	o = place.Options{Build: version, Config: config, Messages: os.Stderr}
	if config != "" {
		o.Config, err = filepath.Abs(config)
	}
	if err == nil {
		o.State, err = placeState()
	}
	return o, err
}

// placeState opens the state directory of the user of a place. A user without a home that can
// have one has it in /var/tmp, unless XDG_STATE_HOME names another.
func placeState() (statedir.Dir, error) {
	path, err := layout.FindState(os.Getenv, os.Geteuid())
	if err == nil {
		var state statedir.Dir
		if state, err = statedir.Open(path); err == nil || os.Geteuid() == 0 || os.Getenv("XDG_STATE_HOME") != "" {
			return state, err
		}
	}
	fallback, failed := layout.FallbackState(os.Geteuid())
	if failed != nil {
		return statedir.Dir{}, errors.Join(err, failed)
	}
	return statedir.Open(fallback)
}

// listenFlags are the flags of serve --listen.
type listenFlags struct {
	address string
	key     string // file
	idle    time.Duration
	metrics prometheus.Config
}

func (f *listenFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "listen", "", "serve controllers on other machines at `ADDRESS`")
	cmd.Flags().StringVar(&f.key, "key", "", "`FILE` with the key of --listen")
	cmd.Flags().StringVar(&f.metrics.Address, "metrics", "", "with --listen: serve counts for Prometheus at `ADDRESS`, as in 127.0.0.1:9465")
	cmd.Flags().StringVar(&f.metrics.TokenFile, "metrics-token", "", "`FILE` with a token that requests of --metrics must have")
	cmd.Flags().DurationVar(&f.idle, "idle", 0, "with --listen: end after `DURATION` without a sandbox")
	_ = cmd.Flags().MarkHidden("idle") // agentctl alone uses it
}

// check rejects flags without those that they belong to.
func (f *listenFlags) check() error {
	of := map[string]bool{"--key": f.key != "", "--idle": f.idle != 0, "--metrics": f.metrics.Address != ""}
	for name, given := range of {
		if given && f.address == "" {
			return errors.New(name + " is for --listen")
		}
	}
	switch {
	case f.metrics.Address == "" && f.metrics.TokenFile != "":
		return errors.New("--metrics-token is for --metrics")
	case f.metrics.Address != "":
		if err := f.metrics.Check("--metrics"); err != nil {
			return fmt.Errorf("%w with --metrics-token", err)
		}
	}
	return nil
}

// absolute makes the names of files absolute.
func (f *listenFlags) absolute() error {
	for _, name := range []*string{&f.key, &f.metrics.TokenFile} {
		if *name == "" {
			continue
		}
		var err error
		if *name, err = filepath.Abs(*name); err != nil {
			return err
		}
	}
	return nil
}

// serve serves controllers that connect to an address. With idle it ends when there was no sandbox for
// that time.
func (f *listenFlags) serve(ctx context.Context, config string) error {
	const hint = "see 'agentsh serve --help' and doc/remote.md"
	o, err := placeOptions(config)
	if err == nil {
		err = f.absolute()
	}
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	var key *socket.Key
	if f.key != "" {
		if key, err = socket.ReadKey(f.key); err != nil {
			return failure.New(failure.Ours, err, hint)
		}
	}
	if f.metrics.Address != "" {
		end, err := f.count(ctx, &o)
		if err != nil {
			return failure.New(failure.Ours, err, hint)
		}
		defer end()
	}
	l, err := socket.Listen(ctx, f.address, key)
	if err != nil {
		return failure.New(failure.Ours, err, hint)
	}
	for _, file := range []string{f.key, f.metrics.TokenFile, strings.TrimPrefix(f.address, "unix:")} {
		// A key may be named through links. What is no file needs not be hidden.
		if file, err := filepath.EvalSymlinks(file); err == nil && filepath.IsAbs(file) {
			o.Hidden = append(o.Hidden, file)
		}
	}
	fmt.Fprintf(os.Stderr, "agentsh: serving controllers at %s\n", l.Addr())
	if f.idle != 0 {
		return failed(place.ServeMachine(ctx, l, o, f.idle), hint)
	}
	return failed(place.ServeListener(ctx, l, o), hint)
}

// count has the sandboxes of a place counted, and serves the counts until end is called.
func (f *listenFlags) count(ctx context.Context, o *place.Options) (end func(), err error) {
	o.Tally = tally.New(version)
	s, err := prometheus.Listen(ctx, f.metrics, o.Tally.Gather)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "agentsh: counts for Prometheus at %s\n", s.URL())
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { o.Tally.Run(ctx) })
	return func() {
		cancel()
		reading.Wait()
		s.Close()
	}, nil
}

// failed is the failure of an error; nil stays nil.
func failed(err error, hint string) error {
	if err == nil {
		return nil
	}
	return failure.New(failure.Ours, err, hint)
}

// controllerStream is standard input and output as one stream.
type controllerStream struct{ in, out *os.File }

// openStdio takes standard input and output. Descriptors of its own have deadlines, and
// writing to a stream that has ended is an error instead of a signal. See os/signal,
// SIGPIPE.
func openStdio() (*controllerStream, error) {
	var files [2]*os.File
	for fd, name := range []string{"standard input", "standard output"} {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = unix.SetNonblock(own, true)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[fd] = os.NewFile(uintptr(own), name)
		if err := files[fd].SetDeadline(time.Time{}); err != nil {
			return nil, fmt.Errorf("%s is neither a pipe nor a socket: %w", name, err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	for fd := range files { // the stream ends when the two above are closed
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, fmt.Errorf("standard input and output: %w", err)
		}
	}
	return &controllerStream{files[0], files[1]}, nil
}

func (s *controllerStream) Read(p []byte) (int, error)        { return s.in.Read(p) }
func (s *controllerStream) Write(p []byte) (int, error)       { return s.out.Write(p) }
func (s *controllerStream) SetReadDeadline(t time.Time) error { return s.in.SetReadDeadline(t) }
func (s *controllerStream) Close() error                      { return errors.Join(s.in.Close(), s.out.Close()) }

// newCopySelfCommand is the init container of a pod that agentctl makes. The image of the program
// has no shell and no cp.
func newCopySelfCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "copy-self FILE",
		Short:   "Write this program to a file",
		Example: "  agentsh copy-self /run/agentsh/agentsh",
		Hidden:  true, // agentctl alone uses it
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := copySelf(args[0]); err != nil {
				return failure.New(failure.Ours, fmt.Errorf("copy agentsh to %s: %w", args[0], err), "")
			}
			return nil
		},
	}
}

// copySelf writes this program to a file, which appears complete or not at all.
func copySelf(name string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	part := name + ".part"
	to, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, self)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// newSFTPCommand serves files in a sandbox. Sessions of ssh start it.
func newSFTPCommand() *cobra.Command {
	return &cobra.Command{
		Use:     wire.CommandSFTP,
		Short:   "Serve sftp on standard input and output",
		Example: "  sftp -F box.config box  # starts it",
		Args:    cobra.NoArgs,
		Hidden:  true,
		RunE: func(*cobra.Command, []string) error {
			return failed(sshcommand.ServeFiles(os.Stdin, os.Stdout), "")
		},
	}
}

// newForwardCommand makes a connection in a sandbox. Sessions of ssh start it.
func newForwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:     wire.CommandForward + " ADDRESS",
		Short:   "Connect standard input and output to an address",
		Example: "  ssh -F box.config -W localhost:8080 box  # starts it",
		Args:    cobra.ExactArgs(1),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := sshcommand.Forward(cmd.Context(), args[0], os.Stdin, os.Stdout, os.Stderr)
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
}
