package policy

import "slices"

// index prepares what decisions look up.
func (p *Policy) index() {
	for _, rule := range p.groups[GroupCommand].rules {
		if rule.Env != nil {
			rule.filter = p.mergeFilter(&rule.command.env)
		}
	}
}

// DeniedPrograms are the names and path globs of the command rules that do not
// permit and go by content: a program of the same content as a file one of
// them names is judged as that file. Sorted.
func (p *Policy) DeniedPrograms() []string {
	var out []string
	for _, rule := range p.groups[GroupCommand].rules {
		if rule.Effect.permits() || rule.command.byName {
			continue
		}
		for _, e := range rule.command.entries {
			out = append(out, e.glob.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
