package channel

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"agentsh/internal/wire"
)

// Only where a supervisor has died, the kernel's log is the next step. A connection that failed leads to the place.
func TestAConnectionThatFailsIsNotADeadSupervisor(t *testing.T) {
	lost := errors.New("the stream broke and did not come back")
	for name, tt := range map[string]struct {
		fault func(p []byte) (n int, err error) // what the client reads instead of p
		hint  string
	}{
		"the supervisor has died": {nil, "dmesg"},
		"a byte is changed":       {func(p []byte) (int, error) { p[len(p)/2] ^= 1; return len(p), nil }, "unchanged"},
		"no stream comes back":    {func([]byte) (int, error) { return 0, lost }, "can be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := conns(t)
			f := &failing{Conn: client, fault: tt.fault}
			started := make(chan struct{})
			h := &handler{exec: func(_ context.Context, _ wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
				<-started
				if f.fault == nil {
					_ = server.Close()
				} else {
					f.now.Store(true)
					_, _ = s.Stdout.Write([]byte("some output"))
				}
				return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
			}}
			served := make(chan error, 1)
			go func() {
				served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: h}).Serve(context.Background())
			}()
			c, err := NewClient(context.Background(), f, ClientConfig{Key: clientKey, HostKey: hostPub})
			if err != nil {
				t.Fatal(err)
			}
			cmd := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"x"}})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			exit, err := cmd.Wait()
			if err == nil || exit.Kind != wire.ExitLost || exit.Cause != wire.CauseSupervisor || !strings.Contains(exit.Hint, tt.hint) {
				t.Errorf("%+v, %v", exit, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			<-served
		})
	}
}

// failing is a connection with a fault in what it reads.
type failing struct {
	net.Conn
	now   atomic.Bool
	fault func(p []byte) (int, error)
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if err == nil && f.now.Load() {
		return f.fault(p[:n])
	}
	return n, err
}
