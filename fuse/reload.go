package fuse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentsh/policy"
)

// current are the rules that hold now, for all mounts of a server.
type current struct {
	loaded atomic.Pointer[ruleset]
	// caching is held for reading while what the kernel may keep is decided and
	// answered ([device.Loop]): when it was held for writing, the kernel has been told all that
	// the rules before allowed, and can be told to forget it.
	caching sync.RWMutex
}

// ruleset is one policy with what is made of it.
type ruleset struct {
	policy Rules
	roots  []string // prefixes it lets something through
}

func newCurrent(r Rules) *current {
	c := &current{}
	c.loaded.Store(&ruleset{r, r.Roots()})
	return c
}

func (c *current) now() *ruleset { return c.loaded.Load() }

// replace has every later request decided by r.
func (c *current) replace(r Rules) {
	c.caching.Lock()
	defer c.caching.Unlock()
	c.loaded.Store(&ruleset{r, r.Roots()})
}

// Prepare has the server load other rules, which hold from Commit on. It refuses
// what the mounts cannot carry out.
func (c *Control) Prepare(ctx context.Context, cfg Config) error {
	return c.call(ctx, request{Prepare: &cfg}, nil)
}

// Commit has the rules that were prepared hold for every later request; what the
// kernel remembers by the old ones is forgotten when it returns. What waits for a
// person is refused, files that are open stay so.
func (c *Control) Commit(ctx context.Context) error {
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

// commit has the prepared rules hold. What a person is asked for by the old ones
// is refused, and so is what would be asked for until the kernel has forgotten:
// it would have to wait for the answer.
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

// silent reports whether no listing has to be told or asked for.
func silent(r Rules) bool {
	for _, rule := range r.Rules(policy.GroupFile) {
		if rule.Concerns(policy.OpList) && rule.Effect != policy.Allow && rule.Effect != policy.Deny {
			return false
		}
	}
	return true
}
