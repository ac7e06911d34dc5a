package supervisor

import (
	"time"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
)

// limitCore is set to 0: a core file is a copy of memory that no rule sees.
const limitCore = unix.RLIMIT_CORE

// heldSettings are the policy settings that this build carries out on every
// machine; those of groupSettings depend on it. A session refuses a policy with
// any other: nothing is accepted and ignored.
var heldSettings = map[string]bool{
	"command_rules":                      true,
	"command_rules.redirect_to":          true,
	"file_rules":                         true,
	"signal_rules":                       true,
	"signal_rules.redirect_to":           true,
	"signal_rules.absorb":                true,
	"network_rules":                      true,
	"unix_socket_rules":                  true,
	"exec_from":                          true,
	"git_guard":                          true,
	"approvals.via":                      true,
	"approvals.timeout":                  true,
	"approvals.command":                  true,
	"audit.log_allowed":                  true,
	"audit.redact":                       true,
	"resource_limits.open_files":         true,
	"resource_limits.command_timeout":    true,
	"resource_limits.session_timeout":    true,
	"resource_limits.idle_timeout":       true,
	"resource_limits.net_bandwidth_mbps": true,
}

// deadline is how long a command may run: the shorter of the request's and the
// policy's; 0 means as long as the session.
func (c *command) deadline() time.Duration {
	asked := time.Duration(c.req.DeadlineMS) * time.Millisecond
	if limit := c.limits.CommandTimeout; limit > 0 && (asked <= 0 || limit < asked) {
		return limit
	}
	return max(asked, 0)
}

// rlimits are the limits a command starts with. They are hard: no command can
// raise them. Where no control group counts processes, the kernel counts those
// of the user. See getrlimit(2).
func (c *command) rlimits(pidsGrouped bool) []launch.Rlimit {
	var out []launch.Rlimit
	pids := c.limits.Pids
	if pidsGrouped {
		pids = 0
	}
	for _, l := range []struct {
		resource, value int
	}{{unix.RLIMIT_NPROC, pids}, {unix.RLIMIT_NOFILE, c.limits.OpenFiles}} {
		if l.value > 0 {
			out = append(out, launch.Rlimit{Resource: l.resource, Soft: uint64(l.value), Hard: uint64(l.value)})
		}
	}
	return out
}
