package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/probe"
)

// groupSettings are the settings that a control group enforces.
var groupSettings = map[string]cgroup.Kind{
	"resource_limits.max_memory_mb":      cgroup.Memory,
	"resource_limits.memory_swap_max_mb": cgroup.Swap,
	"resource_limits.cpu_quota_percent":  cgroup.CPU,
	"resource_limits.pids_max":           cgroup.Pids,
}

// Supports reports whether sessions are opened with a setting on a machine with or
// without control groups.
func Supports(key string, groups bool) bool {
	kind, grouped := groupSettings[key]
	if grouped {
		return groups || kind == cgroup.Pids // RLIMIT_NPROC counts them too
	}
	return supported[key]
}

// unsupported is why sessions do not support a setting, and what to write instead.
func unsupported(key string) error {
	switch key {
	case "network_rules.protocols.udp":
		return errors.New("datagrams do not leave a session (permit protocols: [tcp]; a rule that denies udp is fine)")
	case "unix_socket_rules.operations.listen":
		return errors.New("a socket that was bound may listen (write bind)")
	}
	return errors.New("sessions do not support it")
}

// groupLimits are the limits of l that a control group enforces.
func groupLimits(l policy.Limits) cgroup.Limits {
	return cgroup.Limits{
		MemoryBytes: l.MemoryBytes,
		SwapLimited: l.SwapLimited,
		SwapBytes:   l.SwapBytes,
		CPUPercent:  l.CPUPercent,
		Pids:        l.Pids,
	}
}

// controlGroups are the groups of a session and of its commands. It is safe for
// concurrent use. Its methods may be called on nil, where no limit needs one.
type controlGroups struct {
	session   *cgroup.Group
	made      atomic.Uint64 // for commands so far
	countPids bool          // the kernel can count processes in them
}

// openGroups makes the control groups that the limits of a policy need, and
// refuses settings that neither this build nor this machine enforces. It may
// return groups together with an error: close them.
func openGroups(p *policy.Policy, state *state, missing probe.Missing) (*controlGroups, error) {
	g, unheld, err := makeGroups(p, state, missing)
	if err != nil {
		return g, err
	}
	problems := p.Unsupported(func(key string) error {
		kind, grouped := groupSettings[key]
		switch {
		case key == "exec_from" && missing.Has(probe.Landlock):
			return errors.New("it needs Landlock, which this session runs without")
		case key == "git_guard" && missing.Has(probe.FileServer):
			return errors.New("it needs the file server, which this session runs without; leave it out, and inspect repositories before you " +
				"use git in them")
		case Supports(key, grouped && unheld[kind] == nil):
			return nil
		case grouped && missing.Has(probe.Cgroup):
			return nil
		case grouped:
			return fmt.Errorf("%w; %s", unheld[kind], probe.Without(probe.Cgroup))
		}
		return unsupported(key)
	})
	if len(problems) > 0 {
		return g, problems
	}
	return g, nil
}

// makeGroups makes the group for the limits of a policy and of its rules, each of
// which is tried. It also returns why a kind of limit cannot be enforced.
func makeGroups(p *policy.Policy, state *state, missing probe.Missing) (*controlGroups, map[cgroup.Kind]error, error) {
	if missing.Has(probe.Cgroup) {
		return nil, nil, nil
	}
	limits := groupLimits(p.Limits(nil))
	wanted := limits.Kinds()
	var rules []cgroup.Limits
	for _, rule := range p.Rules(policy.GroupCommand) {
		if rule.Limits == nil {
			continue
		}
		l := groupLimits(p.Limits(rule))
		rules, wanted = append(rules, l), append(wanted, l.Kinds()...)
	}
	slices.Sort(wanted)
	if wanted = slices.Compact(wanted); len(wanted) == 0 {
		return nil, nil, nil
	}
	group, unheld := cgroup.New(filepath.Base(state.dir), wanted)
	g := &controlGroups{session: group}
	if err := state.note(group.Paths()); err != nil {
		return g, nil, err
	}
	refused := []map[cgroup.Kind]error{group.Limit(limits)}
	for _, l := range rules {
		refused = append(refused, group.Try(l))
	}
	for _, more := range refused {
		for kind, err := range more {
			if unheld[kind] == nil { // the first reason is the cause of the others
				unheld[kind] = err
			}
		}
	}
	g.countPids = unheld[cgroup.Pids] == nil
	return g, unheld, nil
}

// countsPids reports whether the groups count processes.
func (g *controlGroups) countsPids() bool { return g != nil && g.countPids }

// command makes the group of one command. rule is the rule that allows it, l are
// its limits. Those of the session apply to all its commands together.
func (g *controlGroups) command(rule *policy.Rule, l policy.Limits) (commandGroup, error) {
	if g == nil {
		return commandGroup{}, nil
	}
	var limits cgroup.Limits
	if rule != nil && rule.Limits != nil {
		limits = groupLimits(l)
	}
	if !g.countPids {
		limits.Pids = 0
	}
	group, err := g.session.Command(strconv.FormatUint(g.made.Add(1), 10), limits)
	return commandGroup{g.session, group}, err
}

// close removes the groups. Their processes must have ended.
func (g *controlGroups) close() error {
	if g == nil {
		return nil
	}
	return g.session.Close()
}

// commandGroup is the control group of one command. The zero value has none.
type commandGroup struct {
	session *cgroup.Group
	own     *cgroup.Command
}

// add moves the command's first process into the group, before its execve.
func (g commandGroup) add(pid int) error {
	if g.own == nil {
		return nil
	}
	return g.own.Add(pid)
}

// remove removes the group.
func (g commandGroup) remove() {
	if g.own != nil {
		g.session.Release(g.own)
	}
}

// explainKill makes the exit of a command say so when the kernel killed it, or a
// child whose end its shell reports, for want of memory.
func (g commandGroup) explainKill(exit *wire.Exit) error {
	killed := exit.Kind == wire.ExitSignaled && exit.Signal == int(syscall.SIGKILL) ||
		exit.Kind == wire.ExitExited && exit.Code == 128+int(syscall.SIGKILL)
	if g.own == nil || !killed {
		return nil
	}
	kills, err := g.own.OOMKills()
	if err != nil {
		return fmt.Errorf("control group of the command: %w", err)
	}
	if kills > 0 {
		exit.Kind, exit.Code, exit.Signal = wire.ExitOOM, 0, int(syscall.SIGKILL)
		exit.Message = "killed: the memory that resource_limits allow is used up"
		exit.Hint = "use less at a time, or raise max_memory_mb"
	}
	return nil
}
