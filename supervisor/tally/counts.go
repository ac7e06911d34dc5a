package tally

import (
	"cmp"
	"os"
	"strconv"

	"agentsh/internal/prometheus"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

func counter(name, help string) *prometheus.Family {
	return prometheus.New(prometheus.Counter, name, help)
}

func gauge(name, help string) *prometheus.Family { return prometheus.New(prometheus.Gauge, name, help) }

// counts are what sandboxes did so far. Names of rules are those of policies. The other values of
// labels are those of package wire. A family has a bound for both.
type counts struct {
	started, ended, unread                   *prometheus.Family
	commands, exits, denials, events, missed *prometheus.Family
	traffic, output                          *prometheus.Family
}

func newCounts() counts {
	c := counts{
		started:  counter("agentsh_sandboxes_started_total", "Sandboxes that were started, or that a controller came back to.").Add(0),
		ended:    counter("agentsh_sandboxes_ended_total", "Sandboxes that have ended, by the cause."),
		unread:   counter("agentsh_audit_unreadable_total", "Audit logs that could not be read to their end.").Add(0),
		commands: counter("agentsh_commands_total", "Commands of controllers, by the decision."),
		exits:    counter("agentsh_command_ends_total", "Ends of commands, by their kind."),
		denials:  counter("agentsh_denials_total", "What was denied, by the kind of the event and the rule."),
		events:   counter("agentsh_events_total", "Events of audit logs, by kind and decision."),
		missed:   counter("agentsh_events_lost_total", "Events that could not be written. What they describe was refused.").Add(0),
		traffic:  counter("agentsh_network_bytes_total", "Bytes of connections that have ended, by the direction."),
		output:   counter("agentsh_output_bytes_total", "Bytes that commands that have ended have printed."),
	}
	for _, direction := range []string{"sent", "received"} {
		c.traffic.Add(0, "direction", direction)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		c.output.Add(0, "stream", stream)
	}
	return c
}

// clone is a copy of all.
func (c *counts) clone() []*prometheus.Family {
	var out []*prometheus.Family
	for _, f := range []*prometheus.Family{
		c.started, c.ended, c.unread, c.commands, c.exits, c.denials, c.events, c.missed, c.traffic, c.output,
	} {
		out = append(out, f.Clone())
	}
	return out
}

// end counts the end of a sandbox. Without a cause its supervisor was killed.
func (c *counts) end(cause wire.Cause) {
	c.ended.Add(1, "cause", string(cmp.Or(cause, wire.CauseSupervisor)))
}

// event counts an event.
func (c *counts) event(e wire.Event) {
	times := float64(max(e.Count, 1))
	c.events.Add(times, "type", e.Type, "decision", e.Decision)
	if e.Decision == "deny" && e.Type != wire.EventApproval { // the event of the operation follows
		rule := ""
		if e.Rule != nil {
			rule = e.Rule.Name
		}
		c.denials.Add(times, "type", e.Type, "rule", rule)
	}
	switch {
	case e.Type == wire.EventFault:
		c.missed.Add(float64(wire.UnwrittenOf(e.Message)))
	case e.Type == wire.EventCommand && e.Phase == "begin":
		c.commands.Add(1, "decision", e.Decision)
	case e.Type == wire.EventCommand && e.Phase == "end":
		if e.Exit != nil {
			c.exits.Add(1, "kind", e.Exit.Kind)
		}
		if e.Output != nil {
			c.output.Add(float64(max(e.Output.Stdout, 0)), "stream", "stdout")
			c.output.Add(float64(max(e.Output.Stderr, 0)), "stream", "stderr")
		}
	case e.Type == wire.EventNet && e.Phase == "end" && e.Net != nil:
		c.traffic.Add(float64(max(e.Net.Sent, 0)), "direction", "sent")
		c.traffic.Add(float64(max(e.Net.Received, 0)), "direction", "received")
	}
}

// below counts some processes and their descendants.
func below(roots map[int]bool) int {
	if len(roots) == 0 {
		return 0
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // those that were read
	parents := map[int]int{}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if found, err := target.Identify(pid); err == nil {
				parents[pid] = found.Parent
			}
		}
	}
	n := 0
	for pid := range parents {
		for at, depth := pid, 0; at > 0 && depth < len(parents); at, depth = parents[at], depth+1 {
			if roots[at] {
				n++
				break
			}
		}
	}
	return n
}
