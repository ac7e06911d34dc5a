package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/probe"
)

// groupSettings are the settings that a control group holds.
var groupSettings = map[string]cgroup.Kind{
	"resource_limits.max_memory_mb":      cgroup.Memory,
	"resource_limits.memory_swap_max_mb": cgroup.Swap,
	"resource_limits.cpu_quota_percent":  cgroup.CPU,
	"resource_limits.pids_max":           cgroup.Pids,
}

// held reports whether sessions are opened with a setting on a machine with or
// without control groups.
func held(key string, groups bool) bool {
	kind, grouped := groupSettings[key]
	if grouped {
		return groups || kind == cgroup.Pids // RLIMIT_NPROC counts them too
	}
	return heldSettings[key]
}

// notHeld is why a session does not carry out a setting, and what to write
// instead.
func notHeld(key string) error {
	switch key {
	case "network_rules.protocols.udp":
		return errors.New("datagrams do not leave a session (permit protocols: [tcp]; a rule that denies udp is fine)")
	case "unix_socket_rules.operations.listen":
		return errors.New("a socket that was bound may listen (write bind)")
	}
	return errors.New("this session does not carry it out")
}

// groupLimits are the limits of l that a control group holds.
func groupLimits(l policy.Limits) cgroup.Limits {
	return cgroup.Limits{
		MemoryBytes: l.MemoryBytes,
		SwapLimited: l.SwapLimited,
		SwapBytes:   l.SwapBytes,
		CPUPercent:  l.CPUPercent,
		Pids:        l.Pids,
	}
}

// hold makes the session's control group and refuses what the policy asks for
// and neither this build nor this machine holds.
func (s *Session) hold() error {
	unheld, err := s.makeGroup()
	if err != nil {
		return err
	}
	s.pidsGrouped = s.group != nil && unheld[cgroup.Pids] == nil
	problems := s.cfg.Policy.Unsupported(func(key string) error {
		kind, grouped := groupSettings[key]
		switch {
		case key == "exec_from" && s.missing.Has(probe.Landlock):
			return errors.New("it needs Landlock, which this session does without")
		case key == "git_guard" && s.missing.Has(probe.FileServer):
			return errors.New("it needs the file server, which this session does without; without it look at repositories before you use git there")
		case held(key, grouped && unheld[kind] == nil):
			return nil
		case grouped && s.missing.Has(probe.Cgroup):
			return nil
		case grouped:
			return unheld[kind]
		}
		return notHeld(key)
	})
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// makeGroup makes the group for the limits of the policy and of its rules, each
// of which is tried. For each kind that cannot be held it returns the reason.
func (s *Session) makeGroup() (map[cgroup.Kind]error, error) {
	if s.missing.Has(probe.Cgroup) {
		return nil, nil
	}
	limits := groupLimits(s.cfg.Policy.Limits(nil))
	wanted := limits.Kinds()
	var rules []cgroup.Limits
	for _, rule := range s.cfg.Policy.Rules(policy.GroupCommand) {
		if rule.Limits == nil {
			continue
		}
		l := groupLimits(s.cfg.Policy.Limits(rule))
		rules, wanted = append(rules, l), append(wanted, l.Kinds()...)
	}
	slices.Sort(wanted)
	if wanted = slices.Compact(wanted); len(wanted) == 0 {
		return nil, nil
	}
	group, unheld := cgroup.New(filepath.Base(s.state.dir), wanted)
	s.group = group
	if err := s.state.note(group.Paths()); err != nil {
		return nil, err
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
	return unheld, nil
}

// makeGroup gives a command a control group of its own where the session has one.
func (c *command) makeGroup(s *Session) error {
	if s.group == nil {
		return nil
	}
	var limits cgroup.Limits // those of the session hold for all its commands together
	if rule := c.decision.Rule; rule != nil && rule.Limits != nil {
		limits = groupLimits(c.limits)
	}
	if !s.pidsGrouped {
		limits.Pids = 0
	}
	var err error
	c.group, err = s.group.Command(strconv.FormatUint(s.groups.Add(1), 10), limits)
	return err
}

// confine moves the command's first process into its group, before its execve.
func (c *command) confine(pid int) error {
	if c.group == nil {
		return nil
	}
	return c.group.Add(pid)
}

// leaveGroup removes the command's group.
func (c *command) leaveGroup(s *Session) {
	if c.group != nil {
		s.group.Release(c.group)
	}
}

// outOfMemory makes the exit say so when the kernel killed the command, or what
// a shell then reports as its own end, for want of memory.
func (c *command) outOfMemory(exit *wire.Exit) error {
	killed := exit.Kind == wire.ExitSignaled && exit.Signal == int(syscall.SIGKILL) ||
		exit.Kind == wire.ExitExited && exit.Code == 128+int(syscall.SIGKILL)
	if c.group == nil || !killed {
		return nil
	}
	kills, err := c.group.OOMKills()
	if err != nil {
		return fmt.Errorf("command %s: %w", c.req.ID, err)
	}
	if kills > 0 {
		exit.Kind, exit.Code, exit.Signal = wire.ExitOOM, 0, int(syscall.SIGKILL)
		exit.Message = "killed: the memory that resource_limits allow is used up"
		exit.Hint = "use less at a time, or raise max_memory_mb"
	}
	return nil
}
