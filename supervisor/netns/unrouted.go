package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/notify"
)

// Unrouted returns a handler of connect(2) for sessions with loopback only, whose policy
// does not govern the network. It leaves the calls to the kernel, which refuses what is not
// there, and records these refusals: of TCP connections and of lookups of names. The C
// library connects datagram sockets to order addresses, so those are no refusals.
func Unrouted(cfg Config) func(notify.Connect) *notify.Destination {
	return func(q notify.Connect) *notify.Destination {
		to := netip.AddrPortFrom(q.To.Addr().Unmap(), q.To.Port())
		lookup := to.Port() == dnsPort
		if !q.Stream && !lookup {
			return nil
		}
		e := wire.Event{
			Type: wire.EventNet, Command: q.Command, Process: &q.Process, Target: to.String(), Mechanism: "namespace",
			Decision: policy.Deny.String(), Message: "the policy has no network_rules, so nothing outside the session is reached",
			Hint: "allow a host there: {name: NAME, domains: [HOST], ports: [443], decision: allow}",
		}
		if to.Addr().IsLoopback() || to.Addr().IsUnspecified() {
			listening, err := machineListens(to)
			if q.Stream && (err != nil || !listening || listensFor(q.Process.PID, to.Port())) {
				return nil
			}
			if q.Stream {
				e.Hint = egress.ServiceHint(to.Port())
			}
		}
		if err := cfg.Emit(e); err != nil {
			cfg.Log.Error("a refusal could not be recorded", "error", err)
		}
		return nil
	}
}

// machineListens reports whether a TCP socket of the machine takes connections to an
// address. An error says that this is not known.
func machineListens(at netip.AddrPort) (bool, error) {
	if err := lookups(); err != nil {
		return false, err
	}
	s, err := machineSockets()
	if err != nil {
		return false, err
	}
	defer func() { _ = s.Close() }() // nothing is written
	_, err = s.TCP(at, netip.AddrPortFrom(at.Addr(), 0))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// listensFor reports whether a socket in the network of a process listens on a TCP port.
// If that is not known, it is so. See proc_pid_net(5): 0A is the state of listeners.
func listensFor(pid int, port uint16) bool {
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if err != nil && name == "tcp" {
			return true
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true
			}
		}
	}
	return false
}
