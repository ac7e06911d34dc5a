package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// helped are the credentials that helpers print, with their values of now. Safe for concurrent use.
type helped struct {
	helpers []provider.Helper
	run     func(context.Context, provider.Helper) (provider.Printed, error)

	mu      sync.Mutex
	list    []wire.Credential      // all of the sandbox
	agent   []agenthost.Credential // of the agent's program on the host
	side    renewer                // that program's session; nil: there is none
	printed map[string]provider.Printed
	renewed map[string]int // by provider
	failing map[string]string
}

// newHelped prepares the helpers of a run, for all credentials of its plan.
func newHelped(helpers []provider.Helper, of plan, run func(context.Context, provider.Helper) (provider.Printed, error)) *helped {
	return &helped{
		helpers: helpers, run: run, list: slices.Clone(of.credentials), agent: slices.Clone(of.agent),
		printed: map[string]provider.Printed{}, renewed: map[string]int{},
		failing: map[string]string{},
	}
}

// current are all credentials of the sandbox with their values of now.
func (h *helped) current() []wire.Credential {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

// ofAgent are the credentials of the agent's program on the host, with their values of now.
func (h *helped) ofAgent() []agenthost.Credential {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.agent)
}

// follow renews the values of the agent's program on the host in its session from now on; nil: no longer. The
// session gets the values of now: they may have changed since it was made.
func (h *helped) follow(ctx context.Context, side renewer) error {
	h.mu.Lock()
	h.side = side
	var values []wire.CredentialValue
	for _, c := range h.agent {
		values = append(values, wire.CredentialValue{Name: c.Name, Value: c.Value})
	}
	h.mu.Unlock()
	if side == nil || len(values) == 0 {
		return nil
	}
	return side.Renew(ctx, values)
}

// fetch gets the first values.
func (h *helped) fetch(ctx context.Context) error {
	for _, one := range h.helpers {
		p, err := h.run(ctx, one)
		if err != nil {
			return helperFailure(err)
		}
		h.set(one, p)
	}
	return nil
}

// set stores the values of a helper. It returns those of the sandbox, and those of the agent's program on the
// host.
func (h *helped) set(one provider.Helper, p provider.Printed) (inside, outside []wire.CredentialValue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.printed[one.Provider] = p
	for i := range h.list {
		inside = append(inside, newValue(&h.list[i], one, p)...)
	}
	for i := range h.agent {
		outside = append(outside, newValue(&h.agent[i].Credential, one, p)...)
	}
	return inside, outside
}

// newValue changes a credential if a helper printed its value, and returns that.
func newValue(c *wire.Credential, one provider.Helper, p provider.Printed) []wire.CredentialValue {
	for _, name := range one.Names {
		if c.Name == one.Provider+"."+name {
			c.Value = p.Values[name]
			return []wire.CredentialValue{{Name: c.Name, Value: c.Value}}
		}
	}
	return nil
}

// helperFailure is the failure of a run whose helper gave no values. One that failed may succeed later;
// one that prints something else will not.
func helperFailure(err error) error {
	var of *provider.HelperError
	if !errors.As(err, &of) {
		return err
	}
	if of.Bad {
		return badConfig("see Providers in doc/harness.md for what it has to print", "%w", err)
	}
	return fail(ExitSandbox, "run it by hand, with the variables of this process", err)
}

// expires reports whether a value ends before the run may.
func (h *helped) expires() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.printed {
		if !p.Expires.IsZero() {
			return true
		}
	}
	return false
}

// renewer is a sandbox that takes new values of credentials.
type renewer interface {
	Renew(ctx context.Context, values []wire.CredentialValue) error
}

// checkRenewal rejects a supervisor that cannot renew credentials that expire.
func checkRenewal(h *helped, s sandbox.Sandbox, v wire.Version) error {
	if h == nil || !h.expires() {
		return nil
	}
	if _, can := s.(renewer); !can || v.Minor < 3 {
		return fmt.Errorf("%s: the values of the provider %s expire, and this agentsh cannot renew them: use the version of agentctl",
			h.helpers[0].At, h.helpers[0].Provider)
	}
	return nil
}

// Times of renewals.
const (
	renewRetry    = 2 * time.Second // after the first failure; it doubles for each further one
	maxRenewRetry = time.Minute
	renewTime     = 30 * time.Second // for a supervisor to take new values
)

// renew renews the values of all helpers in time, until ctx ends.
func (h *helped) renew(ctx context.Context, to renewer, p progress) {
	var going sync.WaitGroup
	for _, one := range h.helpers {
		going.Go(func() { h.renewOne(ctx, one, to, p) })
	}
	going.Wait()
}

// renewOne renews the values of one helper. While the helper fails, the sandbox goes on with the values
// that it has.
func (h *helped) renewOne(ctx context.Context, one provider.Helper, to renewer, p progress) {
	failures := 0
	told := false // that the values have expired
	for {
		h.mu.Lock()
		now := h.printed[one.Provider]
		h.mu.Unlock()
		if now.Expires.IsZero() {
			return
		}
		wait := time.Until(now.Due())
		if failures > 0 {
			wait = min(renewRetry<<min(failures-1, 10), maxRenewRetry)
		}
		select {
		case <-time.After(max(wait, time.Second)):
		case <-ctx.Done():
			return
		}
		err := h.renewNow(ctx, one, to)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failures > 0 {
				p.warn("the credentials of the provider %s are renewed again", one.Provider)
			}
			failures, told = 0, false
			continue
		}
		if failures++; failures == 1 {
			p.warn("the credentials of the provider %s are not renewed, and expire at %s: %v",
				one.Provider, now.Expires.Local().Format(time.TimeOnly), err)
		}
		if !told && time.Now().After(now.Expires) {
			told = true
			p.warn("the credentials of the provider %s have expired", one.Provider)
		}
	}
}

// renewNow gets new values and sends them to the sandbox.
func (h *helped) renewNow(ctx context.Context, one provider.Helper, to renewer) error {
	got, err := h.run(ctx, one)
	if err == nil {
		inside, outside := h.set(one, got)
		sending, cancel := context.WithTimeout(ctx, renewTime)
		defer cancel()
		h.mu.Lock()
		side := h.side
		h.mu.Unlock()
		if len(inside) > 0 {
			err = to.Renew(sending, inside)
		}
		if len(outside) > 0 && side != nil {
			err = errors.Join(err, side.Renew(sending, outside))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failing[one.Provider] = short(err.Error())
		return err
	}
	h.renewed[one.Provider]++
	delete(h.failing, one.Provider)
	return nil
}

// Renewal says how often the values of a provider were renewed in a run.
type Renewal struct {
	Provider string     `json:"provider"`
	Renewed  int        `json:"renewed"`
	Expires  *time.Time `json:"expires,omitempty"` // of the last values; absent: they do not expire
	Failed   string     `json:"failed,omitempty"`  // why the last renewal failed; absent: it did not
}

// into writes the renewals into the result. It may be called on a nil value.
func (h *helped) into(r *Result) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Renewals = nil
	for _, one := range h.helpers {
		x := Renewal{Provider: one.Provider, Renewed: h.renewed[one.Provider], Failed: h.failing[one.Provider]}
		if at := h.printed[one.Provider].Expires.UTC(); !at.IsZero() {
			x.Expires = &at
		}
		r.Renewals = append(r.Renewals, x)
	}
}

// current are the credentials with their values of now.
func (p plan) current() []wire.Credential {
	if p.helped != nil {
		return p.helped.current()
	}
	return p.credentials
}

// helperRunner starts helpers, or uses what they have printed for another run of the batch.
func helperRunner(c Caller) func(context.Context, provider.Helper) (provider.Printed, error) {
	return func(ctx context.Context, h provider.Helper) (provider.Printed, error) {
		if s := c.Member.Shared; s != nil {
			return s.printed(ctx, h, c.Environ)
		}
		return h.Run(ctx, c.Environ)
	}
}

// swapsElsewhere reports whether the place of a sandbox puts credentials into requests, and not the supervisor.
func swapsElsewhere(b sandbox.Backend) bool {
	_, is := b.(sandbox.Swapper)
	return is
}

// heldElsewhere lets the credentials be unset here whose values the place has: each gets a text that is nobody's. Such a text
// would mean nothing to a script of the host.
func heldElsewhere(b sandbox.Backend, h *harness.Harness, lookup harness.Lookup) (harness.Lookup, error) {
	of, is := b.(sandbox.Swapper)
	if !is {
		return lookup, nil
	}
	texts := map[string]string{}
	for name, p := range h.Definitions {
		for _, c := range p.Credentials {
			for _, ref := range harness.References(c.V) {
				if _, set := lookup(ref); !set && of.Has(name) {
					texts[ref] = "none-" + rand.Text()
				}
			}
		}
	}
	for name, v := range h.Env.Runner {
		for _, ref := range harness.References(v.V) {
			if _, is := texts[ref]; is {
				return nil, badConfig("set it for agentctl, or leave it out of env.runner",
					"%s: env.runner: %s refers to %s, which is not set here: the gateway alone has its value", v.At, name, ref)
			}
		}
	}
	return func(name string) (string, bool) {
		if text, is := texts[name]; is {
			return text, true
		}
		return lookup(name)
	}, nil
}

// swapPlaceholders puts the placeholders of the place into the files of a sandbox, where the place has its own. Those of a run are
// random, so that they are found in any text.
func swapPlaceholders(ctx context.Context, b sandbox.Backend, p *plan, own []runtime.File) error {
	of, is := b.(sandbox.Swapper)
	if !is || len(p.spec.Credentials) == 0 {
		return nil
	}
	theirs, err := of.Placeholders(ctx, p.spec)
	if err != nil {
		return err
	}
	var pairs []string
	for ours, text := range theirs {
		pairs = append(pairs, ours, text)
	}
	swap := strings.NewReplacer(pairs...)
	p.files = slices.Clone(p.files)
	for i := range p.files {
		f := &p.files[i]
		f.Data = swapBytes(swap, f.Data)
		if f.Script != nil {
			script := *f.Script
			script.Text, script.Vars = swap.Replace(script.Text), slices.Clone(script.Vars)
			for j := range script.Vars {
				script.Vars[j].Value = swap.Replace(script.Vars[j].Value)
			}
			f.Script = &script
		}
	}
	for i := range own {
		own[i].Data = swapBytes(swap, own[i].Data)
	}
	return nil
}

func swapBytes(swap *strings.Replacer, data []byte) []byte {
	if len(data) == 0 {
		return data
	}
	return []byte(swap.Replace(string(data)))
}
