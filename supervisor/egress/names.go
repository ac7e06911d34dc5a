package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentsh/policy"
)

// names remembers the addresses of names for one session, and which addresses the
// session was given for which names.
type names struct {
	ask   func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error)
	slots chan struct{} // one for each name being looked up
	hosts *hostsFile

	mu        sync.Mutex
	known     map[string]*answer
	given     map[netip.Addr][]given
	number    int                  // of entries in given
	approvals map[string]time.Time // names that a person approved, and until when
}

// answer is the answer of a name server.
type answer struct {
	ready chan struct{} // closed when the rest is set
	addrs []netip.Addr
	err   error
	until time.Time
}

// given is that the session was given an address for a name.
type given struct {
	name  string
	until time.Time
}

// Bounds. A program may use an address for longer than its answer lives.
const (
	lifeLeast   = 5 * time.Second
	lifeMost    = 5 * time.Minute
	givenLife   = 15 * time.Minute
	failureLife = time.Second
	knownMost   = 4096
	givenMost   = 8192
	addrsMost   = 8 // of one family
	systemLife  = time.Minute
)

func newNames(servers []netip.AddrPort, lookups int) *names {
	n := &names{
		slots:     make(chan struct{}, lookups),
		known:     map[string]*answer{},
		given:     map[netip.Addr][]given{},
		approvals: map[string]time.Time{},
		hosts:     &hostsFile{path: "/etc/hosts"},
	}
	n.ask = systemLookup
	if len(servers) > 0 {
		n.ask = resolver{servers}.lookup
	}
	return n
}

// systemLookup resolves a name as this machine is configured to.
func systemLookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
	return addrs, systemLife, err
}

var errBusy = errors.New("too many names are being looked up")

// lookup returns the addresses of a name, first those of IPv4. A name that is
// asked for several times at once is looked up once.
func (n *names) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	a, err := n.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return a.addrs, nil
}

func (n *names) find(ctx context.Context, name string) (*answer, error) {
	n.mu.Lock()
	a := n.known[name]
	if a != nil {
		select {
		case <-a.ready:
			if time.Now().After(a.until) {
				a = nil
			}
		default:
		}
	}
	if a == nil {
		select {
		case n.slots <- struct{}{}:
		default:
			n.mu.Unlock()
			return nil, errBusy
		}
		a = &answer{ready: make(chan struct{})}
		n.store(name, a)
		n.mu.Unlock()
		n.fill(ctx, name, a)
		return a, a.err
	}
	n.mu.Unlock()
	select {
	case <-a.ready:
		return a, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// store remembers an answer. mu is held.
func (n *names) store(name string, a *answer) {
	if len(n.known) >= knownMost {
		for other, old := range n.known {
			select {
			case <-old.ready:
				delete(n.known, other)
			default:
			}
		}
	}
	n.known[name] = a
}

// fill resolves a name and gives the answer to all callers that wait.
func (n *names) fill(ctx context.Context, name string, a *answer) {
	defer func() { <-n.slots }()
	addrs, life, err := n.hosts.addrs(name), systemLife, error(nil)
	if len(addrs) == 0 {
		addrs, life, err = n.ask(ctx, name)
	}
	a.addrs = normal(addrs)
	switch {
	case err != nil:
		a.err, life = shortLookup(err), failureLife
	case len(a.addrs) == 0:
		a.err, life = errNoAddress, failureLife
	default:
		life = min(max(life, lifeLeast), lifeMost)
	}
	a.until = time.Now().Add(life)
	close(a.ready)
}

var errNoAddress = errors.New("the name has no address")

// shortLookup is a lookup error without the name and the server. The caller adds
// the name.
func shortLookup(err error) error {
	var d *net.DNSError
	switch {
	case errors.As(err, &d) && d.IsNotFound:
		return errNoAddress
	case errors.As(err, &d):
		return errors.New(d.Err)
	}
	return err
}

// normal returns addresses in their one form, IPv4 first, each once.
func normal(addrs []netip.Addr) []netip.Addr {
	var four, six []netip.Addr
	for _, a := range addrs {
		a = policy.HostOf(a).Addr()
		switch {
		case a.Is4() && len(four) < addrsMost && !slices.Contains(four, a):
			four = append(four, a)
		case a.Is6() && len(six) < addrsMost && !slices.Contains(six, a):
			six = append(six, a)
		}
	}
	return append(four, six...)
}

// remember notes that the session was given the addresses of a name.
func (n *names) remember(name string, addrs []netip.Addr) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.number+len(addrs) > givenMost {
		n.forget(now)
	}
	for _, a := range addrs {
		list := n.given[a]
		i := slices.IndexFunc(list, func(t given) bool { return t.name == name })
		if i < 0 {
			n.number++
			n.given[a] = append(list, given{name, now.Add(givenLife)})
			continue
		}
		list[i].until = now.Add(givenLife)
	}
}

// forget drops expired entries, and all entries if that is not enough: programs
// must then ask again. mu is held.
func (n *names) forget(now time.Time) {
	for a, list := range n.given {
		kept := slices.DeleteFunc(list, func(t given) bool { return now.After(t.until) })
		n.number -= len(list) - len(kept)
		n.given[a] = kept
		if len(kept) == 0 {
			delete(n.given, a)
		}
	}
	if n.number > givenMost/2 {
		clear(n.given)
		n.number = 0
	}
}

// of returns the names that an address was given for, the latest first, and those that the
// machine's hosts file has for it: programs read that themselves.
func (n *names) of(a netip.Addr) []string {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Clone(n.given[a])
	slices.Reverse(list)
	slices.SortStableFunc(list, func(x, y given) int { return y.until.Compare(x.until) })
	var out []string
	for _, t := range list {
		if now.Before(t.until) {
			out = append(out, t.name)
		}
	}
	return append(out, n.hosts.names(a)...)
}

// approve remembers that a person approved the lookup of a name.
func (n *names) approve(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.approvals) >= knownMost {
		clear(n.approvals)
	}
	n.approvals[name] = time.Now().Add(lifeMost)
}

// approved reports whether a person approved the lookup of a name lately.
func (n *names) approved(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Before(n.approvals[name])
}

// resolver asks a list of name servers.
type resolver struct{ servers []netip.AddrPort }

// Timeout of one server, and how often each is asked.
const (
	askTime  = 3 * time.Second
	askTimes = 2
)

func (r resolver) lookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	type result struct {
		addrs []netip.Addr
		life  time.Duration
		err   error
	}
	results := make(chan result, 1)
	go func() { // ends with its questions, which have deadlines; it is waited for below
		addrs, life, err := r.family(ctx, name, typeAAAA)
		results <- result{addrs, life, err}
	}()
	addrs, life, err := r.family(ctx, name, typeA)
	six := <-results
	switch {
	case err != nil && six.err != nil:
		return nil, 0, err
	case err != nil || len(addrs) == 0:
		return six.addrs, six.life, nil
	case six.err != nil || len(six.addrs) == 0:
		return addrs, life, nil
	}
	return append(addrs, six.addrs...), min(life, six.life), nil
}

// family asks the servers in turn for addresses of one kind.
func (r resolver) family(ctx context.Context, name string, kind uint16) ([]netip.Addr, time.Duration, error) {
	var last error
	for range askTimes {
		for _, server := range r.servers {
			addrs, life, err := askServer(ctx, server, name, kind)
			if err == nil {
				return addrs, life, nil
			}
			last = err
			if errors.Is(err, errNoAddress) || ctx.Err() != nil {
				return nil, 0, err
			}
		}
	}
	return nil, 0, fmt.Errorf("no name server answers: %w", last)
}
