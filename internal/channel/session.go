package channel

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// Operator implements the requests about the whole session.
type Operator interface {
	// Approvals returns the pending approvals.
	Approvals() []wire.Pending
	// Follow calls fn with the pending approvals, now and after each change. It
	// returns when ctx ends or fn returns an error. Meanwhile the session has an
	// approver.
	Follow(ctx context.Context, command string, fn func([]wire.Pending) error) error
	// Answer answers one pending approval.
	Answer(wire.ApprovalAnswer) error
	// Connections returns the open connections to the outside, oldest first.
	Connections() []wire.Connection
	// Reload replaces the policy, or changes nothing.
	Reload(ctx context.Context, r wire.Reload) (wire.Reloaded, error)
	// Renew replaces the values of credentials, or changes nothing.
	Renew(values []wire.CredentialValue) error
	// End ends the session. The connection goes on.
	End() (wire.Ended, error)
}

// serveSession serves one request about the session.
func (s *Server) serveSession(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	ctx, cancel := context.WithCancel(ctx)
	s.wg.Go(func() { watch(cancel, reqs) })
	defer cancel()
	var req wire.SessionRequest
	var reply wire.SessionReply
	err := readFirst(extra, ch, &req)
	if err == nil {
		reply, err = s.session(ctx, ch, req)
	}
	if err != nil {
		reply = wire.SessionReply{Error: asWireError(err)}
	}
	_ = writeFrame(ch, reply) // a disconnected client reads no reply
}

func (s *Server) session(ctx context.Context, ch io.Writer, req wire.SessionRequest) (wire.SessionReply, error) {
	o := s.cfg.Operator
	unknown := &wire.Error{Code: wire.CodeUnsupported, Message: fmt.Sprintf("operation %.64q is not offered", req.Op)}
	if o == nil {
		return wire.SessionReply{}, unknown
	}
	switch {
	case req.Op == wire.OpApprovals:
		return wire.SessionReply{Pending: o.Approvals()}, nil
	case req.Op == wire.OpNet:
		return wire.SessionReply{Connections: o.Connections()}, nil
	case req.Op == wire.OpFollow:
		err := o.Follow(ctx, req.Command, func(list []wire.Pending) error { return writeFrame(ch, wire.SessionReply{Pending: list}) })
		if err == nil {
			err = &wire.Error{Code: wire.CodeNotFound, Message: "the session has ended"}
		}
		return wire.SessionReply{}, err
	case req.Op == wire.OpAnswer && req.Answer != nil:
		return wire.SessionReply{}, o.Answer(*req.Answer)
	case req.Op == wire.OpReload && req.Reload != nil:
		done, err := o.Reload(ctx, *req.Reload)
		return wire.SessionReply{Reloaded: &done}, err
	case req.Op == wire.OpRenew && len(req.Credentials) > 0:
		return wire.SessionReply{}, o.Renew(req.Credentials)
	case req.Op == wire.OpEnd:
		ended, err := o.End()
		return wire.SessionReply{Ended: &ended}, err
	}
	return wire.SessionReply{}, unknown
}

// Approvals returns the pending approvals of the session.
func (c *Client) Approvals(ctx context.Context) ([]wire.Pending, error) {
	reply, err := c.session(ctx, wire.SessionRequest{Op: wire.OpApprovals})
	return reply.Pending, err
}

// Connections returns the session's open connections to the outside, oldest first.
func (c *Client) Connections(ctx context.Context) ([]wire.Connection, error) {
	reply, err := c.session(ctx, wire.SessionRequest{Op: wire.OpNet})
	return reply.Connections, err
}

// Answer answers one pending approval.
func (c *Client) Answer(ctx context.Context, a wire.ApprovalAnswer) error {
	_, err := c.session(ctx, wire.SessionRequest{Op: wire.OpAnswer, Answer: &a})
	return err
}

// Reload replaces the session's policy. On an error the policy stays unchanged.
func (c *Client) Reload(ctx context.Context, r wire.Reload) (wire.Reloaded, error) {
	reply, err := c.session(ctx, wire.SessionRequest{Op: wire.OpReload, Reload: &r})
	if err == nil && reply.Reloaded == nil {
		err = errors.New("session: the answer tells of no reload")
	}
	if err != nil {
		return wire.Reloaded{}, err
	}
	return *reply.Reloaded, nil
}

// Renew replaces the values of credentials. On an error they stay unchanged.
func (c *Client) Renew(ctx context.Context, values []wire.CredentialValue) error {
	_, err := c.session(ctx, wire.SessionRequest{Op: wire.OpRenew, Credentials: values})
	return err
}

// End ends the session and all its processes. Its events can then be read to their end.
func (c *Client) End(ctx context.Context) (wire.Ended, error) {
	reply, err := c.session(ctx, wire.SessionRequest{Op: wire.OpEnd})
	if err == nil && reply.Ended == nil {
		err = errors.New("session: the answer does not tell how it ended")
	}
	if err != nil {
		return wire.Ended{}, err
	}
	return *reply.Ended, nil
}

// FollowApprovals calls fn with the pending approvals, now and after each change. It
// returns when ctx ends, fn returns an error or the session ends. Meanwhile the
// session has an approver. With the request id of a command, these are its approvals
// alone.
func (c *Client) FollowApprovals(ctx context.Context, command string, fn func([]wire.Pending) error) error {
	l, err := c.openSession(ctx, wire.SessionRequest{Op: wire.OpFollow, Command: command})
	if err != nil {
		return err
	}
	defer l.close()
	defer l.closeAfter(ctx)()
	for {
		reply, err := c.sessionReply(ctx, l)
		if err != nil {
			return err
		}
		if err := fn(reply.Pending); err != nil {
			return err
		}
	}
}

func (c *Client) openSession(ctx context.Context, req wire.SessionRequest) (*link, error) {
	l, err := c.open(ctx, typeSession, req, nil)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	return l, nil
}

// session sends one request about the session. The answer has the time of a file
// operation: a reload reads files.
func (c *Client) session(ctx context.Context, req wire.SessionRequest) (wire.SessionReply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fileWait, fmt.Errorf("session: no answer within %s", fileWait))
	defer cancel()
	l, err := c.openSession(ctx, req)
	if err != nil {
		return wire.SessionReply{}, err
	}
	defer l.close()
	defer l.closeAfter(ctx)()
	return c.sessionReply(ctx, l)
}

func (c *Client) sessionReply(ctx context.Context, l *link) (wire.SessionReply, error) {
	var reply wire.SessionReply
	err := readFrame(l, &reply)
	switch {
	case ctx.Err() != nil:
		return reply, context.Cause(ctx)
	case err != nil:
		return reply, fmt.Errorf("session: %w", c.cause(err))
	case reply.Error != nil:
		return reply, fmt.Errorf("session: %w", reply.Error)
	}
	return reply, nil
}
