package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/tools"
	"agentsh/internal/listen"
	"agentsh/internal/socket"
)

// httpFlags are the flags of tools over HTTP.
type httpFlags struct {
	address   string
	tokenFile string
	remote    bool
}

func (f *httpFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "listen", "", "serve over HTTP at `ADDRESS`, as in 127.0.0.1:8080; port 0: a free one")
	flags.StringVar(&f.tokenFile, "token-file", "", "with --listen: `FILE` with the token, 32 random bytes or more in base64")
	flags.BoolVar(&f.remote, "listen-remote", false, "with --listen: an address that other machines reach; nothing encrypts what passes")
}

// toolClients are the clients of the tools of a run: one on standard input and output, or
// those of a listener.
type toolClients struct {
	in       io.Reader
	out      io.WriteCloser
	messages io.Writer
	listener net.Listener // nil: standard input and output
	token    string
	made     bool // the token is new
	early    early
}

// earlyWait is how long a client on standard input waits for its sandbox before it is answered. Clients give up
// soon: Claude Code starts without the tools after 5 seconds, OpenCode too, Codex after 10. A sandbox that cannot be
// made is mostly known before, and the client then sees that the program failed.
const earlyWait = 3 * time.Second

// early serves the client on standard input before the sandbox is there.
type early struct {
	box    *tools.Toolbox
	timer  *time.Timer
	once   sync.Once
	served chan error // of box.Serve
	cancel context.CancelCauseFunc
	opened bool
}

// begin serves the client from now on.
func (c *toolClients) begin() {
	c.early.once.Do(func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		c.early.cancel = cancel
		go func() { c.early.served <- c.early.box.Serve(ctx, io.NopCloser(c.in), c.out) }()
	})
}

// prepare lets the client wait for the sandbox for some time only.
func (c *toolClients) prepare() {
	if c.listener != nil {
		return
	}
	c.early.box = tools.NewOpening(settings.ToolsOf(nil))
	c.early.served = make(chan error, 1)
	c.early.timer = time.AfterFunc(earlyWait, c.begin)
}

// waiting reports, after the end of the run, whether the client was answered and no sandbox came.
func (c *toolClients) waiting() bool {
	if c.listener != nil {
		return false
	}
	c.early.timer.Stop()
	c.early.once.Do(func() {}) // not any more
	return c.early.cancel != nil && !c.early.opened
}

// explain has the calls of the client fail with a reason, until it or ctx ends.
func (c *toolClients) explain(ctx context.Context, why error) {
	defer c.early.box.Close()
	tools.Fail(c.early.box, why)
	select {
	case <-c.early.served:
	case <-ctx.Done():
		c.early.cancel(context.Cause(ctx))
		<-c.early.served
	}
}

// listen checks the flags and listens. Clients wait until the tools are served. The
// caller closes what is returned.
func (f *httpFlags) listen(cmd *cobra.Command) (*toolClients, error) {
	c := &toolClients{in: cmd.InOrStdin(), out: os.Stdout, messages: cmd.ErrOrStderr()}
	if f.address == "" {
		if f.tokenFile != "" || f.remote {
			return nil, errors.New("--token-file and --listen-remote belong to --listen ADDRESS")
		}
		return c, nil
	}
	at, err := netip.ParseAddrPort(f.address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--listen %s: write an IP address and a port, as in 127.0.0.1:8080", f.address)
	case !at.Addr().IsLoopback() && !f.remote:
		return nil, fmt.Errorf("--listen %s: other machines reach this address, and nothing encrypts the token and the work: "+
			"write 127.0.0.1:%d, or add --listen-remote", f.address, at.Port())
	}
	secret := make([]byte, 32)
	if c.made = f.tokenFile == ""; c.made {
		_, _ = rand.Read(secret) // it never fails
	} else if secret, err = socket.ReadSecret(f.tokenFile); err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	c.token = base64.StdEncoding.EncodeToString(secret)
	if c.listener, err = listen.TCP(cmd.Context(), at); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return c, nil
}

func (c *toolClients) close() {
	if c.listener != nil {
		_ = c.listener.Close() // serving may have closed it
	}
}

// serve serves the tools of a run until its client or ctx ends.
func (c *toolClients) serve(ctx context.Context, w controller.Workplace) error {
	cfg := settings.ToolsOf(w.Sandbox)
	cfg.Sandbox, cfg.Dir, cfg.Env, cfg.Run = w.Sandbox, w.Dir, w.Env, w.Run
	if c.listener == nil {
		return c.serveOne(ctx, cfg)
	}
	box, err := tools.New(ctx, cfg)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer box.Close()
	fmt.Fprintf(c.messages, "agentctl: tools at http://%s%s\n", c.listener.Addr(), tools.Path)
	if c.made {
		fmt.Fprintf(c.messages, "agentctl: token: %s\n", c.token)
	}
	return box.ServeHTTP(ctx, c.listener, c.token)
}

// serveOne serves the client on standard input, which may have been answered already.
func (c *toolClients) serveOne(ctx context.Context, cfg tools.Config) error {
	defer c.early.box.Close()
	c.early.opened = true
	err := c.early.box.Open(ctx, cfg)
	c.begin()
	defer c.early.cancel(nil)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	select {
	case err = <-c.early.served:
	case <-ctx.Done():
		c.early.cancel(context.Cause(ctx))
		err = <-c.early.served
	}
	if err != nil {
		err = fmt.Errorf("the stream to the client: %w", err)
	}
	return unlessEnded(ctx, err)
}

// unlessEnded is why the tools are not served, or not any more. The end of ctx is no failure: the clients have ended, even
// before there were tools.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
