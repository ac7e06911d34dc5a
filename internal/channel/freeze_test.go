package channel

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/internal/wire"
)

// recoverer freezes until it is asked to unfreeze, or the connection ends.
type recoverer struct {
	handler
	ended chan error
	list  []wire.Change
}

func (k *recoverer) Recover(context.Context, wire.RecoveryRequest) error { return nil }

func (k *recoverer) Freeze(ctx context.Context, in io.Reader, out io.Writer) error {
	if _, err := out.Write([]byte{0}); err != nil {
		return err
	}
	said := make(chan error, 1)
	go func() { said <- json.NewDecoder(in).Decode(&k.list) }()
	var err error
	select {
	case err = <-said:
	case <-ctx.Done():
		err = ctx.Err()
	}
	k.ended <- err
	return err
}

// stoppable is the end of a process that may be stopped: it reads nothing then,
// and its clock goes on.
type stoppable struct {
	net.Conn
	stopped chan struct{} // full while it is
}

func (s *stoppable) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.stopped <- struct{}{}
	<-s.stopped
	return n, err
}

// freezing is a connection with a freeze, of which the client may be stopped.
func freezing(t *testing.T) (k *recoverer, client *stoppable, c *Client, lost <-chan struct{}, release func([]wire.Change) error) {
	server, end := wires()
	k, client = &recoverer{ended: make(chan error, 1)}, &stoppable{Conn: end, stopped: make(chan struct{}, 1)}
	served := make(chan error, 1)
	go func() {
		served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: k}).Serve(context.Background())
	}()
	c, err := NewClient(context.Background(), client, ClientConfig{Key: clientKey, HostKey: hostPub})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-served })
	lost, release, err = c.Freeze(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return k, client, c, lost, release
}

// TestAFreezeOutlastsAStoppedClient: a client that stops a rollback and goes on with it opens no
// gap, however long that takes.
func TestAFreezeOutlastsAStoppedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, client, c, lost, release := freezing(t)
		client.stopped <- struct{}{}
		<-time.After(24 * time.Hour) // of the bubble
		synctest.Wait()
		select {
		case err := <-k.ended:
			t.Fatalf("the freeze ended: %v", err)
		case <-lost:
			t.Fatal("the freeze has ended")
		default:
		}
		<-client.stopped
		synctest.Wait()
		if err := release([]wire.Change{{Path: "a", Kind: "created"}}); err != nil {
			t.Error(err)
		}
		if err := <-k.ended; err != nil || len(k.list) != 1 {
			t.Errorf("told %v, %v", k.list, err)
		}
		<-time.After(time.Minute) // of the bubble: the connection answers as before
		if err := c.Err(); err != nil {
			t.Error(err)
		}
		client.stopped <- struct{}{} // and is watched as before
		<-time.After(time.Minute)    // of the bubble
		<-client.stopped
		<-c.Done()
		c.Close()
	})
}

// TestAFreezeEndsWithItsClient, and the client knows when it has ended.
func TestAFreezeEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, client, c, lost, release := freezing(t)
		client.Close()
		if err := <-k.ended; err == nil && k.list != nil {
			t.Errorf("told %v", k.list)
		}
		<-lost
		if err := release(nil); err == nil {
			t.Error("a freeze that has ended is unfrozen")
		}
		c.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		k, _, c, lost, release := freezing(t)
		c.Close()
		<-k.ended
		<-lost
		if err := release(nil); errors.Is(err, context.DeadlineExceeded) || err == nil {
			t.Errorf("released: %v", err)
		}
	})
}
