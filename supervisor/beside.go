package supervisor

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/supervisor/probe"
)

// Beside has the calls that the listener of another supervisor takes from a session below
// it. The kernel asks that listener first. A tracer does not see a call that it continues.
type Beside struct {
	Taken   []string `json:"taken"`             // calls that it takes
	Refused []string `json:"refused,omitempty"` // those among them that fail here: nothing could judge them
	cookie  uint64   // of execs that end with SIGSYS; 0: it does not take them
}

// remedy says how a session gets these calls.
const remedy = "to change: run agentsh outside that supervisor, or have its filter leave these calls out"

// Takes reports whether the other listener takes a call.
func (b *Beside) Takes(name string) bool { return b != nil && slices.Contains(b.Taken, name) }

func (b *Beside) execCookie() uint64 {
	if b == nil {
		return 0
	}
	return b.cookie
}

// String says for the audit log what differs; empty: nothing does.
func (b *Beside) String() string {
	if b == nil || len(b.Taken) == 0 {
		return ""
	}
	out := "the listener of another supervisor takes calls: " + strings.Join(b.Taken, ", ")
	if b.Takes("execve") {
		out += "; an execve is stopped by SIGSYS instead"
	}
	if len(b.Refused) > 0 {
		out += "; these fail for every command: " + strings.Join(b.Refused, ", ")
	}
	return out + " (" + remedy + ")"
}

// besideFilter returns the filter of traced commands. The listener of another supervisor may
// be above, so a process tries each call of the plan first. If all of them stop, that is
// traced. Execs are stopped by SIGSYS where no stop came. Other calls fail in the kernel,
// unless something else confines them. known: the kernel reports another listener.
func (s *Session) besideFilter(plan seccomp.Plan, traced []byte, known bool) ([]byte, error) {
	attempts, err := plan.Attempts()
	if err != nil {
		return nil, err
	}
	b := &Beside{}
	if b.Taken, err = probe.Taken(attempts); err != nil {
		return nil, err
	}
	if len(b.Taken) == 0 {
		return traced, nil
	}
	known = known || slices.ContainsFunc(b.Taken, plan.Decides) // the others are refused here, perhaps by a filter above already
	left := confinedOtherwise(s)
	for _, name := range b.Taken {
		switch {
		case name == "execve", name == "execveat":
			var random [8]byte
			_, _ = rand.Read(random[:])
			b.cookie = binary.NativeEndian.Uint64(random[:]) | 1
		case !slices.Contains(left, name) && plan.Judges(name):
			b.Refused = append(b.Refused, name)
		}
	}
	if err := s.allowRefused(b.Refused); err != nil {
		return nil, err
	}
	if known {
		s.confined.beside = b
	}
	plan = plan.Beside(b.Taken, left)
	program, err := plan.Compile(runtime.GOARCH)
	if err == nil {
		s.confined.refusals, err = plan.Table()
	}
	switch {
	case err != nil:
		return nil, err
	case b.cookie != 0:
		return seccomp.TracedBeside(program, runtime.GOARCH, b.cookie)
	}
	return seccomp.Traced(program, runtime.GOARCH)
}

// SurveyBeside returns what the listener of another supervisor takes of all calls that a
// session can have judged; nil: nothing.
func SurveyBeside() (*Beside, error) {
	plan := seccomp.DefaultPlan(seccomp.PlanOptions{
		Report: true, NoExecMemfd: true, Signals: seccomp.Signals{Evaluated: seccomp.EverySignal()}, Watches: true, Threads: true,
		Connect: true, Bind: true, SharedNetwork: true,
	})
	attempts, err := plan.Attempts()
	if err != nil {
		return nil, err
	}
	taken, err := probe.Taken(attempts)
	if !slices.ContainsFunc(taken, plan.Decides) {
		return nil, err
	}
	return &Beside{Taken: taken}, err
}

// confinedOtherwise returns the calls that need no decision. The supervisor repeats the
// host's edits for watchers from the start. A network of its own reaches nothing outside.
func confinedOtherwise(s *Session) []string {
	left := []string{"inotify_init", "inotify_init1"}
	if !sharesNetwork(s) && !s.cfg.Policy.Governs(policy.GroupUnixSocket) {
		left = append(left, "connect")
	}
	return left
}

func sharesNetwork(s *Session) bool { return s.confined.SharesNetwork() || s.network.Shared() }

// allowRefused returns an error if the policy needs one of the calls judged, and the
// operator did not set call_rules.
func (s *Session) allowRefused(refused []string) error {
	groups := []struct {
		rules string
		apply bool
		calls []string
	}{
		{"signal_rules", s.cfg.Policy.Governs(policy.GroupSignal), seccomp.SignalCalls()},
		{"unix_socket_rules", s.cfg.Policy.Governs(policy.GroupUnixSocket), []string{"connect", "bind", "sendto"}},
		{"network_rules in a shared network", s.network != nil && sharesNetwork(s), []string{"connect"}},
	}
	var needs []string
	for _, g := range groups {
		calls := slices.DeleteFunc(slices.Clone(g.calls), func(c string) bool { return !slices.Contains(refused, c) })
		if g.apply && len(calls) > 0 {
			needs = append(needs, fmt.Sprintf("%s need %s", g.rules, strings.Join(calls, ", ")))
		}
	}
	if len(needs) == 0 {
		return nil
	}
	err := fmt.Errorf("the listener of another supervisor takes calls before they can be judged: %s", strings.Join(needs, "; "))
	if !probe.Allowed(probe.CallRules, s.cfg.Degraded) {
		return probe.Needing(probe.CallRules, fmt.Errorf("%w\n  %s", err, remedy))
	}
	s.confined.missing[probe.CallRules] = err
	return nil
}
