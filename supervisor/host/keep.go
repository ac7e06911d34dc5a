package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/listen"
	"agentsh/internal/wire"
)

// keeper goes on with a session whose controller is gone, until its lease ends.
type keeper struct {
	keep     wire.Keep
	dir      *os.File
	listener net.Listener
}

// newKeeper listens in the directory of keep before the session opens, because
// the session drops privileges. Nobody is answered before [keeper.serve]. It
// returns nil without keep.
func newKeeper(ctx context.Context, keep *wire.Keep) (*keeper, error) {
	if keep == nil {
		return nil, nil
	}
	dir, err := os.Open(keep.Dir)
	if err != nil {
		return nil, fmt.Errorf("keep the session: %w", err)
	}
	// The path of the directory may be longer than a socket's path can be, see unix(7).
	l, err := channel.Listen(ctx, fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), layout.KeptSocket))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the session: %w", err), dir.Close())
	}
	return &keeper{*keep, dir, l}, nil
}

// close accepts no more connections. It may be called on a nil keeper.
func (k *keeper) close() error {
	if k == nil {
		return nil
	}
	_ = k.listener.Close() // it may be closed
	return k.dir.Close()
}

// serve announces the end of the lease, then answers connections until that end,
// the end of the session or the end of ctx. It waits for its connections.
func (k *keeper) serve(ctx context.Context, h *handler) error {
	until := time.Now().Add(time.Duration(k.keep.Seconds) * time.Second).UTC()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := k.announce(until); err != nil {
		return err
	}
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	connections.Go(func() {
		select {
		case <-h.session.Dead():
			cancel()
		case <-ctx.Done():
		}
		_ = k.listener.Close()
	})
	server := h.server()
	server.Clients = &channel.Clients{Shared: true}
	accepting := &listen.Sparing{Listener: k.listener}
	for {
		conn, err := accepting.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("take a connection: %w", err)
		}
		connections.Go(func() { k.connection(ctx, h, conn, server) })
	}
}

// connection serves one caller.
func (k *keeper) connection(ctx context.Context, h *handler, conn net.Conn, server channel.ServerConfig) {
	if _, err := channel.CheckCaller(conn); err != nil {
		h.session.Config().Log.Warn("connection refused", "reason", err)
		_ = conn.Close()
		return
	}
	if err := channel.NewServer(conn, server).Serve(ctx); err != nil && ctx.Err() == nil {
		h.session.Config().Log.Warn("connection ended", "reason", err)
	}
}

// announce writes the end of the lease beside the socket.
func (k *keeper) announce(until time.Time) error {
	data, err := json.Marshal(wire.Kept{Until: until})
	if err != nil {
		return err
	}
	fresh := filepath.Join(k.keep.Dir, layout.KeptFile+".new")
	if err := os.WriteFile(fresh, data, 0o600); err != nil {
		return fmt.Errorf("keep the session: %w", err)
	}
	return os.Rename(fresh, filepath.Join(k.keep.Dir, layout.KeptFile))
}
