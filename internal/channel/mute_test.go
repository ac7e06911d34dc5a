package channel

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// serveMute is a server that answers the hello and keepalives. It leaves every channel
// to serve, which may do nothing.
func serveMute(t *testing.T, conn net.Conn, serve func(ssh.NewChannel)) {
	cfg, err := NewServer(conn, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub}).sshConfig()
	if err != nil {
		t.Error(err)
		return
	}
	_, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		for r := range reqs {
			switch r.Type {
			case reqHello:
				data, _ := json.Marshal(helloReply{Hello: wire.Hello{Version: wire.Current, Instance: "mute"}})
				_ = r.Reply(true, data)
			case reqKeepalive:
				_ = r.Reply(true, nil)
			}
		}
	}()
	for c := range chans {
		go serve(c)
	}
}

// operations are the operations of a client that wait for a server.
var operations = map[string]func(context.Context, *Client) error{
	"a command": func(ctx context.Context, c *Client) error {
		_, err := c.Run(ctx, wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{})
		return err
	},
	"a command with a deadline": func(ctx context.Context, c *Client) error {
		_, err := c.Run(ctx, wire.ExecRequest{Argv: []string{"true"}, DeadlineMS: 1000}, wire.Streams{Stdin: io.LimitReader(endless{}, 4<<20)})
		return err
	},
	"a command that gets signals": func(ctx context.Context, c *Client) error {
		control := make(chan wire.Control, 2)
		control <- wire.Control{Signal: 2}
		control <- wire.Control{Signal: 2}
		_, err := c.Run(ctx, wire.ExecRequest{Argv: []string{"true"}, DeadlineMS: 1000}, wire.Streams{Control: control})
		return err
	},
	"stat":  func(ctx context.Context, c *Client) error { _, err := c.Stat(ctx, "/x"); return err },
	"list":  func(ctx context.Context, c *Client) error { _, err := c.List(ctx, "/x"); return err },
	"read":  func(ctx context.Context, c *Client) error { _, err := c.ReadFile(ctx, "/x", 10); return err },
	"write": func(ctx context.Context, c *Client) error { return c.WriteFile(ctx, "/x", []byte("x"), 0o600) },
	"a large request": func(ctx context.Context, c *Client) error {
		return c.Remove(ctx, strings.Repeat("x", 2*maxInline), true)
	},
	"copy in": func(ctx context.Context, c *Client) error {
		return c.CopyIn(ctx, "/x", io.LimitReader(endless{}, 4<<20), nil)
	},
	"copy out": func(ctx context.Context, c *Client) error {
		return c.CopyOut(ctx, wire.CopyOut{Dir: "/x"}, io.Discard)
	},
	"changes": func(ctx context.Context, c *Client) error { _, err := c.Changes(ctx); return err },
	"events": func(ctx context.Context, c *Client) error {
		return c.Events(ctx, wire.EventRequest{}, func(wire.Event) error { return nil })
	},
	"events so far": func(ctx context.Context, c *Client) error {
		return c.Events(ctx, wire.EventRequest{SoFar: true}, func(wire.Event) error { return nil })
	},
	"approvals": func(ctx context.Context, c *Client) error { _, err := c.Approvals(ctx); return err },
	"follow": func(ctx context.Context, c *Client) error {
		return c.FollowApprovals(ctx, "", func([]wire.Pending) error { return nil })
	},
	"freeze": func(ctx context.Context, c *Client) error { _, _, err := c.Freeze(ctx); return err },
}

// mutes are the ways in which a server answers keepalives but nothing else.
var mutes = map[string]func(ssh.NewChannel){
	"it opens no channel": func(ssh.NewChannel) {},
	"it says nothing on a channel": func(n ssh.NewChannel) {
		_, reqs, err := n.Accept()
		for range reqs { // without an answer
		}
		_ = err
	},
	"it reads everything and answers nothing": func(n ssh.NewChannel) {
		ch, reqs, err := n.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(io.Discard, ch) }()
		for range reqs {
		}
	},
}

// withMute runs test with a client of a mute server, in a bubble of synctest.
func withMute(t *testing.T, serve func(ssh.NewChannel), test func(t *testing.T, c *Client)) {
	synctest.Test(t, func(t *testing.T) {
		server, conn := wires()
		go serveMute(t, server, serve)
		c, err := NewClient(t.Context(), conn, ClientConfig{Key: clientKey, HostKey: hostPub})
		if err != nil {
			t.Fatal(err)
		}
		test(t, c)
		c.Close()
		server.Close()
	})
}

func TestEveryWaitForAMuteServerEndsWithItsContext(t *testing.T) {
	for mute, serve := range mutes {
		for name, op := range operations {
			t.Run(mute+": "+name, func(t *testing.T) {
				withMute(t, serve, func(t *testing.T, c *Client) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					start := time.Now()
					err := op(ctx, c)
					limit := time.Second
					if strings.HasPrefix(name, "a command") {
						limit += 2 * killWait
					}
					if took := time.Since(start); err == nil || took > limit {
						t.Errorf("it took %s: %v", took, err)
					}
				})
			})
		}
	}
}

func TestEveryWaitForAMuteServerIsBounded(t *testing.T) {
	unbounded := map[string]bool{ // these last as long as their caller wants
		"a command": true, "events": true, "follow": true, "freeze": true,
	}
	for mute, serve := range mutes {
		for name, op := range operations {
			if unbounded[name] && mute != "it opens no channel" {
				continue
			}
			t.Run(mute+": "+name, func(t *testing.T) {
				withMute(t, serve, func(t *testing.T, c *Client) {
					start := time.Now()
					err := op(t.Context(), c)
					if took := time.Since(start); err == nil || took > 2*fileWait {
						t.Errorf("it took %s: %v", took, err)
					}
				})
			})
		}
	}
}

// A server that sends without an end.
func TestWhatAServerSendsIsBounded(t *testing.T) {
	body := func(n ssh.NewChannel) {
		ch, reqs, err := n.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(reqs)
		_, _ = io.Copy(newBodyWriter(ch), endless{})
	}
	withMute(t, body, func(t *testing.T, c *Client) {
		if _, err := c.ReadFile(t.Context(), "/x", 1000); err == nil || !strings.Contains(err.Error(), "more bytes than it was asked for") {
			t.Error(err)
		}
	})
	listing := func(entry string) func(ssh.NewChannel) {
		return func(n ssh.NewChannel) {
			ch, reqs, err := n.Accept()
			if err != nil {
				return
			}
			go ssh.DiscardRequests(reqs)
			if newBodyWriter(ch).end() != nil {
				return
			}
			w := newBodyWriter(ch)
			_, err = io.WriteString(w, "[")
			for err == nil {
				_, err = io.WriteString(w, entry)
			}
		}
	}
	for name, entry := range map[string]string{"entries": strings.Repeat(`{},`, 10_000), "one entry": `{"name":"x",`, "white space": strings.Repeat(" ", 1000), "depth": "["} {
		withMute(t, listing(entry), func(t *testing.T, c *Client) {
			if _, err := c.List(t.Context(), "/x"); err == nil {
				t.Errorf("%s: no error", name)
			} else {
				t.Logf("%s: %v", name, err)
			}
		})
	}
}
