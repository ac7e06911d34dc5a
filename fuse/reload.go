package fuse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentsh/policy"
)

// current is the active policy of all mounts of a server.
type current struct {
	loaded atomic.Pointer[ruleset]
	// caching is read-locked while an answer that the kernel may cache is decided and
	// sent ([device.Loop]). After it was locked for writing, the kernel has received
	// every answer that the previous rules allowed. The kernel can then be told to
	// drop them.
	caching sync.RWMutex
}

// ruleset is one policy with values derived from it.
type ruleset struct {
	policy Rules
	roots  []string // path prefixes below which it allows any operation
}

func newCurrent(r Rules) *current {
	c := &current{}
	c.loaded.Store(&ruleset{r, r.Roots()})
	return c
}

func (c *current) now() *ruleset { return c.loaded.Load() }

// replace makes r decide every later request.
func (c *current) replace(r Rules) {
	c.caching.Lock()
	defer c.caching.Unlock()
	c.loaded.Store(&ruleset{r, r.Roots()})
}

// Prepare makes the server load other rules. They apply from Commit on. Prepare
// returns an error if the mounts cannot enforce them.
func (c *Control) Prepare(ctx context.Context, cfg Config) error {
	return c.call(ctx, request{Prepare: &cfg}, nil)
}

// Commit applies the prepared rules to every later request. When it returns, the
// kernel has dropped everything it cached under the old rules. Pending approvals are
// refused. Open files stay open.
func (c *Control) Commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.call(ctx, request{Commit: true}, nil)
}

// prepare loads rules. Only Policy and Vars of the configuration are read.
func (s *server) prepare(c *Config) error {
	if len(c.Policy) == 0 {
		return errors.New("no policy")
	}
	rules, err := c.load()
	if err != nil {
		return err
	}
	if err := errors.Join(supported(rules, s.trash != nil), s.checkRedirects(rules)); err != nil {
		return err
	}
	for _, m := range s.mounts {
		if m.noOpenDir && !silent(rules) {
			return fmt.Errorf(
				"%s: listing was free when the session was made and cannot be audited or asked for now: make a new session for it",
				m.files.path,
			)
		}
	}
	s.next = rules
	return nil
}

// commit activates the prepared rules. It refuses pending approvals of the old rules.
// It also refuses new approvals until the kernel has dropped its caches: the kernel
// would have to wait for the answers.
func (s *server) commit() (forget func(), err error) {
	if s.next == nil {
		return nil, errors.New("nothing was prepared")
	}
	s.people.refuse()
	s.rules.replace(s.next)
	s.next = nil
	for _, m := range s.mounts {
		m.tree.ForgetAllowed()
	}
	return func() {
		defer s.people.resume()
		for _, m := range s.mounts {
			m.kernel.invalidate("")
		}
	}, nil
}

// silent reports whether no listing needs an event or an approval.
func silent(r Rules) bool {
	for _, rule := range r.Rules(policy.GroupFile) {
		if rule.Concerns(policy.OpList) && rule.Effect != policy.Allow && rule.Effect != policy.Deny {
			return false
		}
	}
	return true
}
