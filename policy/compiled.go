package policy

import (
	"maps"
	"slices"
	"time"

	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// Policy is a compiled policy, safe for concurrent use.
type Policy struct {
	name, description string
	digest            string
	sources           []Source
	vars              map[string]string
	groups            [groupCount]group
	defaults          [defaultCount]*Effect
	env               envSettings
	inject            map[string]Injection
	limits            Limits
	audit             auditSettings
	approvals         Approvals
	transparent       map[string]bool
	execFrom          []*glob.Glob
	gitGuard          *switched // nil: not given
	settings          []Setting

	planting []string // directories whose content came from outside
	commands commandIndex
	files    *glob.Set
	domains  *glob.Set
	sockets  *glob.Set // absolute paths
	abstract *glob.Set // names with their @
	anyHost  []int32   // network rules that are not found by a domain
}

// group is the rules of one kind, in the order they are tried.
type group struct {
	rules []*Rule
	given bool // the file has the group, if only an empty one
}

// add merges one more document, farther than those before it: what a nearer
// one says stays.
func (p *Policy) add(d *document) {
	for g := range d.rules {
		p.groups[g].rules = append(p.groups[g].rules, d.rules[g]...)
		p.groups[g].given = p.groups[g].given || d.given[g]
	}
	for i, e := range d.defaults {
		if p.defaults[i] == nil {
			p.defaults[i] = e
		}
	}
	for name, in := range d.inject {
		if _, set := p.inject[name]; !set {
			p.inject[name] = in
		}
	}
	p.env.merge(&d.env)
	p.limits.fill(d.limits)
	p.audit.fill(d.audit)
	p.approvals.fill(d.approvals)
	if p.execFrom == nil {
		p.execFrom = d.execFrom
	}
	if p.gitGuard == nil {
		p.gitGuard = d.gitGuard
	}
	p.settings = append(p.settings, d.settings...)
}

// merge takes from a farther file what was not given nearer; deny adds up.
func (s *envSettings) merge(far *envSettings) {
	if !s.allowed && far.allowed {
		s.filter.Allow, s.allow, s.allowed = far.filter.Allow, far.allow, true
	}
	s.filter.Deny = append(s.filter.Deny, far.filter.Deny...)
	s.deny = append(s.deny, far.deny...)
	if !s.bytes {
		s.filter.MaxBytes, s.bytes = far.filter.MaxBytes, far.bytes
	}
	if !s.keys {
		s.filter.MaxKeys, s.keys = far.filter.MaxKeys, far.keys
	}
	s.used = s.used || far.used
}

// fill sets the limits not set yet.
func (l *Limits) fill(far Limits) {
	fillOne(&l.MemoryBytes, far.MemoryBytes)
	fillOne(&l.CPUPercent, far.CPUPercent)
	fillOne(&l.Pids, far.Pids)
	fillOne(&l.OpenFiles, far.OpenFiles)
	fillOne(&l.DiskWriteBytes, far.DiskWriteBytes)
	fillOne(&l.CommandTimeout, far.CommandTimeout)
	fillOne(&l.SessionTimeout, far.SessionTimeout)
	fillOne(&l.IdleTimeout, far.IdleTimeout)
	fillOne(&l.DiskReadRate, far.DiskReadRate)
	fillOne(&l.DiskWriteRate, far.DiskWriteRate)
	fillOne(&l.NetworkMbps, far.NetworkMbps)
	if !l.SwapLimited {
		l.SwapLimited, l.SwapBytes = far.SwapLimited, far.SwapBytes
	}
}

func fillOne[T comparable](near *T, far T) {
	var zero T
	if *near == zero {
		*near = far
	}
}

// stricter returns the smaller of two limits, 0 meaning none.
func stricter[T int | int64 | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (a *auditSettings) fill(far auditSettings) {
	flags := []struct{ near, far *bool }{
		{&a.LogAllowed, &far.LogAllowed}, {&a.Redact, &far.Redact}, {&a.IncludeStdout, &far.IncludeStdout},
		{&a.IncludeStderr, &far.IncludeStderr}, {&a.IncludeFileContent, &far.IncludeFileContent},
	}
	for bit, f := range flags {
		if a.given&(1<<bit) == 0 {
			*f.near = *f.far
		}
	}
	fillOne(&a.RetentionDays, far.RetentionDays)
	a.given |= far.given
}

func (a *Approvals) fill(far Approvals) {
	if a.Via == "" {
		a.Via, a.Command = far.Via, far.Command
	}
	fillOne(&a.Timeout, far.Timeout)
}

// Name is the policy's name.
func (p *Policy) Name() string { return p.name }

// Description is what the policy says it is for.
func (p *Policy) Description() string { return p.description }

// Digest is the hex SHA-256 of the sources and variables: two policies with
// the same digest decide alike.
func (p *Policy) Digest() string { return p.digest }

// Sources are the files the policy was loaded from, the main one first. Load
// with a ReadFile that serves them by name gives the same policy again.
func (p *Policy) Sources() []Source { return slices.Clone(p.sources) }

// Vars are the variables it was loaded with.
func (p *Policy) Vars() map[string]string { return maps.Clone(p.vars) }

// Rules are the rules of one group in the order they are tried. The caller
// does not change them.
func (p *Policy) Rules(g Group) []*Rule {
	if int(g) >= groupCount {
		return nil
	}
	return p.groups[g].rules
}

// Governs reports whether the policy says anything about a group: it has the
// group's key or a default for it. Requests of a group it does not govern are
// denied by Evaluate like any other that no rule matches.
func (p *Policy) Governs(g Group) bool {
	switch {
	case int(g) >= groupCount:
		return false
	case p.groups[g].given:
		return true
	case g == GroupFile:
		return p.defaults[defaultFileRead] != nil || p.defaults[defaultFileWrite] != nil
	default:
		return p.defaults[groupDefault(g)] != nil
	}
}

// groupDefault is the default that governs a group other than files.
func groupDefault(g Group) int {
	switch g {
	case GroupNetwork:
		return defaultNetwork
	case GroupUnixSocket:
		return defaultUnixSocket
	case GroupSignal:
		return defaultSignal
	default:
		return defaultCommand
	}
}

// EnvFilter is env_policy merged with a matched command rule, the stricter of
// both; r may be nil. The caller does not change it.
func (p *Policy) EnvFilter(r *Rule) env.Filter {
	if r == nil || r.Env == nil {
		return p.env.filter
	}
	return r.filter
}

// mergeFilter is the stricter of env_policy and a rule's env_*.
func (p *Policy) mergeFilter(rule *envSettings) env.Filter {
	f := env.Filter{
		Allow:    p.env.filter.Allow,
		Deny:     slices.Concat(p.env.filter.Deny, rule.filter.Deny),
		MaxBytes: stricter(p.env.filter.MaxBytes, rule.filter.MaxBytes),
		MaxKeys:  stricter(p.env.filter.MaxKeys, rule.filter.MaxKeys),
	}
	switch {
	case rule.allowed && p.env.allowed:
		f.Allow = intersect(p.env.allow, rule.allow)
	case rule.allowed:
		f.Allow = rule.filter.Allow
	}
	return f
}

// intersect lists patterns for the names both lists match. Where two patterns
// overlap and neither holds the other, the names in both are left out, which
// is the strict side.
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

// EnvInject is the policy's env_inject.
func (p *Policy) EnvInject() map[string]string {
	out := make(map[string]string, len(p.inject))
	for name, in := range p.inject {
		out[name] = in.Value
	}
	return out
}

// EnvNested are the names of env_inject that are put back at every execve
// below a command, sorted.
func (p *Policy) EnvNested() []string {
	var out []string
	for name, in := range p.inject {
		if in.Nested {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Limits is resource_limits merged with a matched command rule, the stricter
// of both; r may be nil.
func (p *Policy) Limits(r *Rule) Limits {
	a := p.limits
	if r == nil || r.Limits == nil {
		return a
	}
	b := r.Limits
	a.MemoryBytes = stricter(a.MemoryBytes, b.MemoryBytes)
	a.CPUPercent = stricter(a.CPUPercent, b.CPUPercent)
	a.Pids = stricter(a.Pids, b.Pids)
	a.OpenFiles = stricter(a.OpenFiles, b.OpenFiles)
	a.DiskWriteBytes = stricter(a.DiskWriteBytes, b.DiskWriteBytes)
	a.CommandTimeout = stricter(a.CommandTimeout, b.CommandTimeout)
	a.SessionTimeout = stricter(a.SessionTimeout, b.SessionTimeout)
	a.IdleTimeout = stricter(a.IdleTimeout, b.IdleTimeout)
	a.DiskReadRate = stricter(a.DiskReadRate, b.DiskReadRate)
	a.DiskWriteRate = stricter(a.DiskWriteRate, b.DiskWriteRate)
	a.NetworkMbps = stricter(a.NetworkMbps, b.NetworkMbps)
	if b.SwapLimited && (!a.SwapLimited || b.SwapBytes < a.SwapBytes) {
		a.SwapLimited, a.SwapBytes = true, b.SwapBytes
	}
	return a
}

// Audit says what the audit log holds. What was allowed is logged unless the
// policy says otherwise.
func (p *Policy) Audit() AuditSettings {
	a := p.audit.AuditSettings
	if p.audit.given&auditLogAllowed == 0 {
		a.LogAllowed = true
	}
	return a
}

// Approvals says how a person is asked.
func (p *Policy) Approvals() Approvals { return p.approvals }

// ExecFrom are the patterns of the only directories programs may run from; nil
// when the policy does not say. Evaluate holds them too.
func (p *Policy) ExecFrom() []string {
	var out []string
	for _, g := range p.execFrom {
		out = append(out, g.String())
	}
	return out
}

// GitGuard reports whether repositories are guarded, and where the policy says so.
func (p *Policy) GitGuard() (on bool, at Position) {
	if p.gitGuard == nil {
		return false, Position{}
	}
	return p.gitGuard.on, p.gitGuard.pos
}

// Unheld lists, as problems, the settings and rule groups of the policy that
// another part must carry out and for which unheld gives a reason why it does
// not. A supervisor refuses to start with any of them: nothing in a file is
// ignored.
func (p *Policy) Unheld(unheld func(key string) error) Problems {
	var out Problems
	for _, s := range p.Settings() {
		if err := unheld(s.Key); err != nil {
			out = append(
				out,
				Problem{Pos: s.Pos, Message: s.Key + " cannot be held here: " + err.Error(), Hint: "remove it, or run where it can be held"},
			)
		}
	}
	return out.sorted()
}

// Settings lists what other parts of the product carry out: the keys of
// resource_limits, also where a command rule's limits or timeout give them,
// those of approvals and audit, exec_from, git_guard where it is on, the key of each group that has rules
// or a default, as "signal_rules", command_rules.redirect_to,
// signal_rules.redirect_to, signal_rules.absorb and signal_rules.fallback,
// network_rules.protocols.udp of rules that do not deny and
// unix_socket_rules.operations.listen.
func (p *Policy) Settings() []Setting {
	out := slices.Clone(p.settings)
	if on, at := p.GitGuard(); on {
		out = append(out, Setting{Key: "git_guard", Pos: at})
	}
	for g := range groupCount {
		if !p.Governs(Group(g)) {
			continue
		}
		s := Setting{Key: Group(g).String() + "_rules", Pos: Position{p.sources[0].Name, 1, 1}}
		if rules := p.groups[g].rules; len(rules) > 0 {
			s.Pos = rules[0].Pos
		}
		out = append(out, s)
	}
	for _, g := range [...]Group{GroupCommand, GroupSignal} {
		for _, rule := range p.groups[g].rules {
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
