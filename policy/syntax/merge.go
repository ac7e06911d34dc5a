package syntax

import "maps"
import (
	"agentsh/policy"
)

// definition merges documents into one definition. The nearest document is the
// first and has precedence.
func (l *loader) definition() policy.Definition {
	d := policy.Definition{Sources: l.sources, Vars: maps.Clone(l.opts.Vars), Inject: map[string]policy.Injection{}, Keys: l.keys}
	var audit auditSettings
	for i, doc := range l.documents {
		if i == 0 {
			d.Name, d.Description = doc.name, doc.description
		}
		addDocument(&d, doc)
		audit.fill(doc.audit)
	}
	d.Audit = audit.AuditSettings
	if audit.given&auditLogAllowed == 0 {
		d.Audit.LogAllowed = true // unless the policy says otherwise
	}
	d.Transparent = transparentNames(l.documents)
	return d
}

// addDocument adds the keys of a farther document that no nearer document has.
func addDocument(into *policy.Definition, doc *document) {
	for g := range doc.rules {
		into.Rules[g] = append(into.Rules[g], doc.rules[g]...)
		into.Given[g] = into.Given[g] || doc.given[g]
	}
	near, far := defaultsOf(&into.Defaults), defaultsOf(&doc.defaults)
	for i := range near {
		fillOne(near[i], *far[i])
	}
	for name, in := range doc.inject {
		if _, set := into.Inject[name]; !set {
			into.Inject[name] = in
		}
	}
	fillEnv(&into.Env, &doc.env)
	fillLimits(&into.Limits, &doc.limits)
	fillApprovals(&into.Approvals, &doc.approvals)
	if into.ExecFrom == nil {
		into.ExecFrom = doc.execFrom
	}
	if into.GitGuard == nil {
		into.GitGuard = doc.gitGuard
	}
	fillOne(&into.SSH.Sessions, doc.ssh.Sessions)
	fillOne(&into.SSH.Forwarding, doc.ssh.Forwarding)
	into.Settings = append(into.Settings, doc.settings...)
}

// defaultsOf returns pointers to the defaults in a fixed order.
func defaultsOf(d *policy.Defaults) []**policy.Effect {
	return []**policy.Effect{&d.Command, &d.FileRead, &d.FileWrite, &d.Network, &d.UnixSocket, &d.Signal}
}

// fillEnv adds the keys of a farther document that the nearer ones do not have.
// Deny patterns of all documents apply.
func fillEnv(near, far *policy.EnvSettings) {
	if !near.HasAllow && far.HasAllow {
		near.Filter.Allow, near.Allow, near.HasAllow = far.Filter.Allow, far.Allow, true
	}
	near.Filter.Deny = append(near.Filter.Deny, far.Filter.Deny...)
	near.Deny = append(near.Deny, far.Deny...)
	if !near.HasMaxBytes {
		near.Filter.MaxBytes, near.HasMaxBytes = far.Filter.MaxBytes, far.HasMaxBytes
	}
	if !near.HasMaxKeys {
		near.Filter.MaxKeys, near.HasMaxKeys = far.Filter.MaxKeys, far.HasMaxKeys
	}
	near.Given = near.Given || far.Given
}

func fillLimits(near, far *policy.Limits) {
	fillOne(&near.MemoryBytes, far.MemoryBytes)
	fillOne(&near.CPUPercent, far.CPUPercent)
	fillOne(&near.Pids, far.Pids)
	fillOne(&near.OpenFiles, far.OpenFiles)
	fillOne(&near.DiskWriteBytes, far.DiskWriteBytes)
	fillOne(&near.CommandTimeout, far.CommandTimeout)
	fillOne(&near.SessionTimeout, far.SessionTimeout)
	fillOne(&near.IdleTimeout, far.IdleTimeout)
	fillOne(&near.DiskReadRate, far.DiskReadRate)
	fillOne(&near.DiskWriteRate, far.DiskWriteRate)
	fillOne(&near.NetworkMbps, far.NetworkMbps)
	if !near.SwapLimited {
		near.SwapLimited, near.SwapBytes = far.SwapLimited, far.SwapBytes
	}
}

func fillApprovals(near, far *policy.Approvals) {
	if near.Via == "" {
		near.Via, near.Command = far.Via, far.Command
	}
	fillOne(&near.Timeout, far.Timeout)
}

func fillOne[T comparable](near *T, far T) {
	var zero T
	if *near == zero {
		*near = far
	}
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

// transparentNames returns the names of wrappers whose payload is evaluated.
// For each name the nearest document that adds or removes it decides.
func transparentNames(documents []*document) map[string]bool {
	names := policy.DefaultTransparent()
	for i := len(documents) - 1; i >= 0; i-- {
		for _, w := range documents[i].remove {
			delete(names, policy.WrapperName(w))
		}
		for _, w := range documents[i].add {
			names[policy.WrapperName(w)] = true
		}
	}
	return names
}
