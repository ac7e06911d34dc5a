package provider

import (
	"context"
	"fmt"
)

// Action is the effect of a change on the gateway.
type Action uint8

// The actions. A provider that is not wanted is left alone: another harness
// may want it.
const (
	Keep Action = iota
	Create
	Update
)

// String returns the action as printed.
func (a Action) String() string {
	switch a {
	case Create:
		return "create"
	case Update:
		return "update"
	}
	return "keep"
}

// State is what a gateway stores of one provider. It holds no values.
type State struct {
	Name   string
	Digest string
}

// Change is one step of a plan.
type Change struct {
	Action     Action
	Definition Definition
	Digest     string // of Definition
}

// Gateway holds providers.
type Gateway interface {
	// Digest is the digest the gateway would have of a definition.
	Digest(Definition) string
	// Providers are the providers the gateway has, in any order.
	Providers(context.Context) ([]State, error)
	// Apply creates or updates one provider. Its errors may hold values.
	Apply(context.Context, Change) error
	// Lock keeps other controllers away until unlock is called.
	Lock(context.Context) (unlock func() error, err error)
}

// Plan compares the wanted providers with the actual ones. It is a pure
// function. The changes have the order of wanted.
func Plan(wanted []Definition, actual []State, digest func(Definition) string) []Change {
	have := make(map[string]string, len(actual))
	for _, s := range actual {
		have[s.Name] = s.Digest
	}
	changes := make([]Change, 0, len(wanted))
	for _, d := range wanted {
		c := Change{Action: Keep, Definition: d, Digest: digest(d)}
		if was, ok := have[d.Name]; !ok {
			c.Action = Create
		} else if was != c.Digest {
			c.Action = Update
		}
		changes = append(changes, c)
	}
	return changes
}

// Reconcile brings the gateway to the wanted state and returns the changes it
// made. A second call makes none. After an error it returns the changes made so
// far. Error texts hold no values of credentials.
func Reconcile(ctx context.Context, g Gateway, wanted []Definition) (done []Change, err error) {
	defer func() { err = Scrub(err, secrets(wanted), context.Canceled, context.DeadlineExceeded) }()
	unlock, err := g.Lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("lock the gateway: %w", err)
	}
	defer func() {
		if e := unlock(); e != nil && err == nil {
			err = fmt.Errorf("unlock the gateway: %w", e)
		}
	}()
	actual, err := g.Providers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the providers of the gateway: %w", err)
	}
	for _, c := range Plan(wanted, actual, g.Digest) {
		if c.Action != Keep {
			if err := ctx.Err(); err != nil {
				return done, err
			}
			if err := g.Apply(ctx, c); err != nil {
				return done, fmt.Errorf("%s provider %s: %w", c.Action, c.Definition.Name, err)
			}
		}
		done = append(done, c)
	}
	return done, nil
}
