package supervisor

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/supervisor/launch"
)

// limitCore is set to 0: a core file is a copy of memory that no rule governs.
const limitCore = unix.RLIMIT_CORE

// supported are the policy settings that this build enforces on every machine.
// Those of groupSettings depend on the machine. A session refuses a policy with
// any other setting: none is accepted and ignored.
var supported = map[string]bool{
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
	"ssh.sessions":                       true,
	"ssh.forwarding":                     true,
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

// checkOpenFiles refuses limits of open files that no command could start with: they
// are above the hard limit of this process.
func checkOpenFiles(p *policy.Policy) error {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	check := func(where string, l policy.Limits) error {
		if l.OpenFiles <= 0 || uint64(l.OpenFiles) <= have.Max {
			return nil
		}
		return fmt.Errorf("%s: open_files %d is more than the hard limit of agentsh, %d: write less, or raise it with ulimit -Hn",
			where, l.OpenFiles, have.Max)
	}
	errs := []error{check("resource_limits", p.Limits(nil))}
	for _, rule := range p.Rules(policy.GroupCommand) {
		if rule.Limits != nil {
			errs = append(errs, check(rule.Pos.String()+": rule "+rule.Name, *rule.Limits))
		}
	}
	return errors.Join(errs...)
}

// deadline is how long a command may run: the shorter of what is requested and
// the policy's; 0: as long as the session.
func deadline(requested, limit time.Duration) time.Duration {
	if limit > 0 && (requested <= 0 || limit < requested) {
		return limit
	}
	return max(requested, 0)
}

// rlimits are the limits a command starts with. They are hard: no command can
// raise them. Where no control group counts processes, the kernel counts those
// of the user. See getrlimit(2).
func rlimits(l policy.Limits, groupCounts bool) []launch.Rlimit {
	var out []launch.Rlimit
	pids := l.Pids
	if groupCounts {
		pids = 0
	}
	if most, limited, err := launch.MostProcesses(); err == nil && limited { // the init has this hard limit
		pids = int(min(uint64(pids), most))
	}
	for _, r := range []struct {
		resource, value int
	}{{unix.RLIMIT_NPROC, pids}, {unix.RLIMIT_NOFILE, l.OpenFiles}} {
		if r.value > 0 {
			out = append(out, launch.Rlimit{Resource: r.resource, Soft: uint64(r.value), Hard: uint64(r.value)})
		}
	}
	return out
}
