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

// keeper holds until it is told to release, or the connection ends.
type keeper struct {
	handler
	ended chan error
	told  []wire.Change
}

func (k *keeper) Keep(context.Context, wire.KeepRequest) error { return nil }

func (k *keeper) Hold(ctx context.Context, in io.Reader, out io.Writer) error {
	if _, err := out.Write([]byte{0}); err != nil {
		return err
	}
	said := make(chan error, 1)
	go func() { said <- json.NewDecoder(in).Decode(&k.told) }()
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

// holding is a connection with a hold, of which the client may be stopped.
func holding(t *testing.T) (k *keeper, client *stoppable, c *Client, lost <-chan struct{}, release func([]wire.Change) error) {
	server, end := wires()
	k, client = &keeper{ended: make(chan error, 1)}, &stoppable{Conn: end, stopped: make(chan struct{}, 1)}
	served := make(chan error, 1)
	go func() {
		served <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: k}).Serve(context.Background())
	}()
	c, err := NewClient(context.Background(), client, ClientConfig{Key: clientKey, HostKey: hostPub})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-served })
	lost, release, err = c.Hold(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return k, client, c, lost, release
}

// TestAHoldOutlastsAStoppedClient: who stops a rollback and lets it go on opens no
// gap, however long that takes.
func TestAHoldOutlastsAStoppedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, client, c, lost, release := holding(t)
		client.stopped <- struct{}{}
		<-time.After(24 * time.Hour) // of the bubble
		synctest.Wait()
		select {
		case err := <-k.ended:
			t.Fatalf("the hold ended: %v", err)
		case <-lost:
			t.Fatal("the hold is lost")
		default:
		}
		<-client.stopped
		synctest.Wait()
		if err := release([]wire.Change{{Path: "a", Kind: "created"}}); err != nil {
			t.Error(err)
		}
		if err := <-k.ended; err != nil || len(k.told) != 1 {
			t.Errorf("told %v, %v", k.told, err)
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

// TestAHoldEndsWithItsClient, and the client knows when it has ended.
func TestAHoldEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, client, c, lost, release := holding(t)
		client.Close()
		if err := <-k.ended; err == nil && k.told != nil {
			t.Errorf("told %v", k.told)
		}
		<-lost
		if err := release(nil); err == nil {
			t.Error("a hold that was lost is released")
		}
		c.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		k, _, c, lost, release := holding(t)
		c.Close()
		<-k.ended
		<-lost
		if err := release(nil); errors.Is(err, context.DeadlineExceeded) || err == nil {
			t.Errorf("released: %v", err)
		}
	})
}
