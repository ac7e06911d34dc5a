package policy

import (
	"slices"
	"time"

	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// Switch is a boolean key of a file with its position.
type Switch struct {
	On  bool
	Pos Position
}

// EnvSettings are env_policy, or the env_* keys of a command rule. Filter has
// their values.
type EnvSettings struct {
	Filter      env.Filter
	Allow, Deny []*glob.Glob // the patterns of Filter
	HasAllow    bool         // Filter.Allow is set, possibly empty
	HasMaxBytes bool         // Filter.MaxBytes is given
	HasMaxKeys  bool         // Filter.MaxKeys is given
	Given       bool         // any of the keys is given
}

// mergeFilter returns the stricter combination of env_policy and a rule's env_*
// keys.
func mergeFilter(all, rule *EnvSettings) env.Filter {
	f := env.Filter{
		Allow:    all.Filter.Allow,
		Deny:     slices.Concat(all.Filter.Deny, rule.Filter.Deny),
		MaxBytes: stricter(all.Filter.MaxBytes, rule.Filter.MaxBytes),
		MaxKeys:  stricter(all.Filter.MaxKeys, rule.Filter.MaxKeys),
	}
	switch {
	case rule.HasAllow && all.HasAllow:
		f.Allow = intersect(all.Allow, rule.Allow)
	case rule.HasAllow:
		f.Allow = rule.Filter.Allow
	}
	return f
}

// intersect returns patterns that match the names matched by both lists. If two
// patterns overlap and neither contains the other, names in both are omitted.
// That is the strict result.
func intersect(a, b []*glob.Glob) []string {
	out := []string{}
	for _, x := range a {
		for _, y := range b {
			switch {
			case x.Contains(y):
				out = append(out, y.String())
			case y.Contains(x):
				out = append(out, x.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// stricter returns the smaller of two limits. 0 means no limit.
func stricter[T int | int64 | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Injection is one variable of env_inject.
type Injection struct {
	Value string
	// Nested restores the variable at every execve below the command. Otherwise
	// it is only set when the command starts.
	Nested bool
}

// Limits are resource limits. A zero field is not set.
type Limits struct {
	MemoryBytes    int64
	CPUPercent     int // of one core
	Pids           int // processes and threads
	OpenFiles      int // of one process
	DiskWriteBytes int64
	CommandTimeout time.Duration
	SessionTimeout time.Duration
	IdleTimeout    time.Duration
	DiskReadRate   int64 // bytes per second
	DiskWriteRate  int64 // bytes per second
	NetworkMbps    int
	SwapLimited    bool // SwapBytes is set, and may be 0 for no swap at all
	SwapBytes      int64
}

// stricter returns the smaller value of each limit.
func (l Limits) stricter(b *Limits) Limits {
	l.MemoryBytes = stricter(l.MemoryBytes, b.MemoryBytes)
	l.CPUPercent = stricter(l.CPUPercent, b.CPUPercent)
	l.Pids = stricter(l.Pids, b.Pids)
	l.OpenFiles = stricter(l.OpenFiles, b.OpenFiles)
	l.DiskWriteBytes = stricter(l.DiskWriteBytes, b.DiskWriteBytes)
	l.CommandTimeout = stricter(l.CommandTimeout, b.CommandTimeout)
	l.SessionTimeout = stricter(l.SessionTimeout, b.SessionTimeout)
	l.IdleTimeout = stricter(l.IdleTimeout, b.IdleTimeout)
	l.DiskReadRate = stricter(l.DiskReadRate, b.DiskReadRate)
	l.DiskWriteRate = stricter(l.DiskWriteRate, b.DiskWriteRate)
	l.NetworkMbps = stricter(l.NetworkMbps, b.NetworkMbps)
	if b.SwapLimited && (!l.SwapLimited || b.SwapBytes < l.SwapBytes) {
		l.SwapLimited, l.SwapBytes = true, b.SwapBytes
	}
	return l
}

// Approvals are the settings for approvals by a person. With the zero value
// nobody is asked, and decision: approve denies.
type Approvals struct {
	Via     string        // tty, channel, command, webhook; empty: not given
	Command []string      // the program that asks, when Via is command
	Timeout time.Duration // 0: not given
}

// AuditSettings select what the audit log records. Denials, approvals and
// audited requests are always recorded.
type AuditSettings struct {
	LogAllowed         bool // also programs that were allowed
	Redact             bool // arguments and paths are recorded as digests
	IncludeStdout      bool
	IncludeStderr      bool
	IncludeFileContent bool
	RetentionDays      int // 0: events are never deleted
}

// Setting is a key of a file that the caller of this package must enforce. A
// caller that does not support a key must reject the policy: see
// [Policy.Unsupported].
type Setting struct {
	Key string // for example "resource_limits.pids_max" or "signal_rules"
	Pos Position
}

// Settings returns the keys that the caller must enforce:
//
//   - the keys of resource_limits, and those of command rules
//   - the keys of approvals and audit
//   - exec_from, and git_guard, ssh.sessions and ssh.forwarding if they are on
//   - GROUP_rules for each group with rules or a default
//   - command_rules.redirect_to, signal_rules.redirect_to, signal_rules.absorb,
//     signal_rules.fallback
//   - network_rules.protocols.udp of rules that do not deny
//   - unix_socket_rules.operations.listen
func (p *Policy) Settings() []Setting {
	out := slices.Clone(p.def.Settings)
	if on, at := p.GitGuard(); on {
		out = append(out, Setting{Key: "git_guard", Pos: at})
	}
	out = append(out, p.def.SSH.settings()...)
	for g := range GroupCount {
		if !p.Governs(Group(g)) {
			continue
		}
		s := Setting{Key: Group(g).String() + "_rules", Pos: p.top()}
		if rules := p.def.Rules[g]; len(rules) > 0 {
			s.Pos = rules[0].Pos
		} else if at, ok := p.Key(s.Key, "defaults"); ok {
			s.Pos = at
		}
		out = append(out, s)
	}
	for _, g := range [...]Group{GroupCommand, GroupSignal} {
		for _, rule := range p.def.Rules[g] {
			switch rule.Effect {
			case Redirect:
				out = append(out, Setting{Key: g.String() + "_rules.redirect_to", Pos: rule.Pos})
			case Absorb:
				out = append(out, Setting{Key: g.String() + "_rules.absorb", Pos: rule.Pos})
			}
		}
	}
	return out
}

// top returns the position of the beginning of the main file.
func (p *Policy) top() Position {
	if len(p.def.Sources) == 0 {
		return Position{}
	}
	return Position{p.def.Sources[0].Name, 1, 1}
}

// Unsupported returns a problem for each of [Policy.Settings] for which reason
// returns an error. A supervisor must not start with any of them, because a key
// would be ignored.
func (p *Policy) Unsupported(reason func(key string) error) Problems {
	var out Problems
	for _, s := range p.Settings() {
		if err := reason(s.Key); err != nil {
			out = append(out, Problem{
				Pos:     s.Pos,
				Message: s.Key + " cannot be enforced here: " + err.Error(),
				Hint:    "remove it, or run where it is supported",
			})
		}
	}
	return out.Sorted()
}
