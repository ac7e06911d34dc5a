package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// reqStop asks a relay to end the run that it connects to. It is a global request.
const reqStop = "stop@agentsh"

// RelayConfig is the configuration of a relay.
type RelayConfig struct {
	HostKey       []byte // the relay's own OpenSSH private key
	AuthorizedKey []byte // the client's public key
	By            string // the requester; recorded with every command
	// Dir returns where commands of plain clients start, if it exists; nil or empty: in
	// the workspace.
	Dir func() string
	// Note is called with a description of every command and of every file that is
	// copied in or out. Unprintable characters in it are escaped. An error refuses the
	// operation.
	Note func(what string) error
	// Stop is called when the client requests the end of the run. If Stop is nil, the
	// request is refused.
	Stop func(force bool)
	// Ending reports whether the sandbox is going to end because somebody asked for it; nil: it is not known.
	// Who serves the client says so then, in place of what a command notices of it.
	Ending    func() bool
	Keepalive Keepalive
}

// Relay serves another client on conn until it disconnects or ctx ends. Its commands,
// file operations and event streams are forwarded over this connection. The server at
// the other end applies the same limits as to its own client. Commands name their
// requester and cannot set the variables of the run. Relay returns when everything of
// the client has ended. It closes conn.
func (c *Client) Relay(ctx context.Context, conn net.Conn, cfg RelayConfig) error {
	s := NewServer(conn, ServerConfig{
		HostKey: cfg.HostKey, AuthorizedKey: cfg.AuthorizedKey, Hello: c.hello, Clients: &Clients{Shared: true}, Keepalive: cfg.Keepalive,
	})
	s.relay = &relay{to: c, cfg: cfg}
	return s.Serve(ctx)
}

// StopRun asks a relay to end the run that it connects to. With force the run ends
// without extracting results first.
func (c *Client) StopRun(ctx context.Context, force bool) error {
	data, err := json.Marshal(force)
	if err != nil {
		return err
	}
	type answer struct {
		ok  bool
		err error
	}
	done := make(chan answer, 1)
	go func() { // ends with the peer's answer or with the connection
		limit := time.AfterFunc(c.answerWait, func() { c.giveUp("the request to end the run") })
		defer limit.Stop()
		ok, _, err := c.conn.SendRequest(reqStop, true, data)
		done <- answer{ok, err}
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-done:
		if a.err != nil {
			return c.cause(a.err)
		}
		if !a.ok {
			return &wire.Error{Code: wire.CodeUnsupported, Message: "this connection leads to nothing that can be stopped"}
		}
		return nil
	}
}

// maxRelayed is the number of channels for other clients. The rest of [maxOpen] is left to
// the client itself.
const maxRelayed = 96

// enterRelay takes a channel for another client. leave gives it back.
func (c *Client) enterRelay() (leave func(), err error) {
	select {
	case c.relayed <- struct{}{}:
		return func() { <-c.relayed }, nil
	default:
		return nil, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("operators have %d channels open", maxRelayed)}
	}
}

// operatorID is the prefix of the request ids of relayed commands: no command of the run has it.
const operatorID = "operator-"

// OperatorCommand is a request id for a command of a relayed client, which names its events. The relay
// replaces others.
func OperatorCommand() string { return operatorID + rand.Text() }

// relayedID is the request id of a relayed command: the client's, if it is one of [OperatorCommand].
func relayedID(asked string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // of rand.Text
	if name, ok := strings.CutPrefix(asked, operatorID); ok && len(name) == 26 && strings.Trim(name, letters) == "" {
		return asked
	}
	return OperatorCommand()
}

// relay forwards channels.
type relay struct {
	to  *Client
	cfg RelayConfig
}

// global answers a global request.
func (r *relay) global(req *ssh.Request) bool {
	var force bool
	if req.Type != reqStop || r.cfg.Stop == nil || json.Unmarshal(req.Payload, &force) != nil {
		return req.Type == reqKeepalive
	}
	r.cfg.Stop(force)
	return true
}

// serve forwards one channel until both sides have closed it.
func (r *relay) serve(ctx context.Context, kind string, down ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	leave, err := r.to.enterRelay()
	var up *link
	if err == nil {
		defer leave()
		up, err = r.open(ctx, kind, down, extra)
	}
	if err != nil {
		go ssh.DiscardRequests(reqs) // ends with the channel, which the caller closes
		if ctx.Err() == nil {        // else the relay ends, and the server may have begun what was asked
			refuse(kind, down, err)
		}
		return
	}
	defer up.closeAfter(ctx)()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := copyStream(up.ch, down); err == nil {
			_ = up.ch.CloseWrite() // fails only with the channel
		}
	})
	wg.Go(func() {
		forwardRequests(up, reqs)
		up.close() // the client has closed the channel, so its command ends
	})
	var out sync.WaitGroup
	out.Go(func() { drain(down, up.out, func(error) {}, nil) })
	out.Go(func() { drain(down.Stderr(), up.err, func(error) {}, nil) })
	out.Go(func() {
		select {
		case <-up.ended:
		case <-up.cut:
		}
	})
	out.Wait()
	up.close()
	_ = down.Close() // ends the two above
	wg.Wait()
}

// forwardRequests forwards requests and their answers until the last request.
func forwardRequests(to *link, reqs <-chan *ssh.Request) {
	for r := range reqs {
		if !r.WantReply {
			_, _ = to.ch.SendRequest(r.Type, false, r.Payload) // a closed channel takes no further requests
			continue
		}
		ok, err := to.request(r.Type, r.Payload)
		_ = r.Reply(ok && err == nil, nil)
	}
}

// backward forwards one message of the server. The server waits for no answer.
func backward(down ssh.Channel, r *ssh.Request) {
	_, _ = down.SendRequest(r.Type, false, r.Payload)
	if r.WantReply {
		_ = r.Reply(false, nil)
	}
}

// refuse ends a channel that was not forwarded, with the messages of its type.
func refuse(kind string, down ssh.Channel, err error) {
	switch kind {
	case typeExec:
		notify(down, reqEnd, execEnd{Exit: &wire.Exit{Kind: wire.ExitSpawnFailed, Code: 125, Message: clip("request refused: " + err.Error())}})
	case typeSession:
		_ = writeFrame(down, wire.SessionReply{Error: asWireError(err)})
	case typeFiles:
		_ = finish(down, newBodyWriter(down), nil, wire.FileReply{Error: asWireError(err)})
	default:
		notify(down, reqError, asWireError(err))
	}
}

// open opens the channel to the server. Before that it checks the request and sets its
// requester.
func (r *relay) open(ctx context.Context, kind string, down ssh.Channel, extra []byte) (*link, error) {
	var first any
	var what string
	switch kind {
	case typeExec:
		req := &wire.ExecRequest{}
		if err := readFirst(extra, down, req); err != nil {
			return nil, err
		}
		if len(req.Run) > 0 {
			return nil, errors.New("the variables of the run are the run's")
		}
		req.By, req.ID = r.cfg.By, relayedID(req.ID)
		first, what = req, "exec "+text.Args(req.Argv, 400)
	case typeFiles:
		req := &wire.FileRequest{}
		if err := readFirst(extra, down, req); err != nil {
			return nil, err
		}
		first, what = req, fileWords(req)
		if req.Op == wire.OpRecovery {
			return nil, &wire.Error{Code: wire.CodeUnsupported, Message: "what a session keeps is not for this client"}
		}
	case typeEvents:
		req := &wire.EventRequest{}
		if err := readFirst(extra, down, req); err != nil {
			return nil, err
		}
		first = req
	case typeSession:
		req := &wire.SessionRequest{}
		if err := readFirst(extra, down, req); err != nil {
			return nil, err
		}
		var err error
		if first, what, err = r.session(req); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("no channel type %.64q", kind)
	}
	if what != "" && r.cfg.Note != nil {
		if err := r.cfg.Note(what); err != nil {
			return nil, err
		}
	}
	return r.to.open(ctx, kind, first, func(q *ssh.Request) { backward(down, q) })
}

// session checks a request about the session: a client may look at the questions of its policy and
// answer them, in its own name.
func (r *relay) session(req *wire.SessionRequest) (first wire.SessionRequest, what string, err error) {
	switch {
	case req.Op == wire.OpApprovals || req.Op == wire.OpFollow && req.Command == "":
		return wire.SessionRequest{Op: req.Op}, "", nil
	case req.Op == wire.OpAnswer && req.Answer != nil:
		answer := *req.Answer
		answer.By = r.cfg.By
		what = "deny question "
		if answer.Allow {
			what = "allow question "
		}
		return wire.SessionRequest{Op: req.Op, Answer: &answer}, what + text.Short(answer.ID, 40), nil
	}
	return first, "", &wire.Error{Code: wire.CodeUnsupported, Message: "this request is not for this client"}
}

// fileWords describes a file operation; empty: the operation only reads metadata.
func fileWords(req *wire.FileRequest) string {
	name := req.Path
	switch {
	case req.Op == wire.OpHistory:
		return text.Short(historyWords(req.History), 400)
	case req.Op == wire.OpStat || req.Op == wire.OpList || req.Op == wire.OpChanges:
		return ""
	case req.Read != nil:
		name = req.Read.Path
	case req.Write != nil:
		name = req.Write.Path
	case req.Out != nil:
		name = req.Out.Dir
	}
	return text.Short(req.Op+" "+string(name), 400)
}
