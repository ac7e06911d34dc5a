package host

import (
	"context"

	"agentsh/internal/wire"
	"agentsh/supervisor"
)

// operation answers requests about a session as a whole.
type operation struct {
	session *supervisor.Session
	vars    map[string]string // of policies
	ending  *ending
}

// Approvals are the questions that wait for a person.
func (o operation) Approvals() []wire.Pending { return o.session.Approvals().List() }

// Connections are the open connections to the outside.
func (o operation) Connections() []wire.Connection {
	return o.session.Network().Connections()
}

// Follow reports the waiting questions whenever they change. See [approve.Queue.Follow].
func (o operation) Follow(ctx context.Context, command string, fn func([]wire.Pending) error) error {
	return o.session.Approvals().Follow(ctx, command, fn)
}

// Answer answers one question.
func (o operation) Answer(a wire.ApprovalAnswer) error { return o.session.Approvals().Answer(a) }

// Renew replaces the values of credentials. Its errors have none of them.
func (o operation) Renew(values []wire.CredentialValue) error {
	if err := o.session.Network().Renew(values); err != nil {
		return &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	return nil
}

// End ends a session whose controller reads everything over its channel. See [ending].
func (o operation) End() (wire.Ended, error) { return o.ending.export() }

// Reload replaces the session's policy from the sources of another one. See
// [supervisor.Session.Reload].
func (o operation) Reload(ctx context.Context, r wire.Reload) (wire.Reloaded, error) {
	p, err := bootPolicy(wire.Bootstrap{Policy: r.Policy, Vars: o.vars})
	if err != nil {
		return wire.Reloaded{}, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	done, err := o.session.Reload(ctx, p)
	if err != nil {
		return done, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	return done, nil
}
