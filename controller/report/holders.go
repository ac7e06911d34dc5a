package report

import (
	"slices"

	"agentsh/controller"
)

// holders are the groups of rules by who held them, in the order of the groups.
func holders(all []controller.Guarantee) []Fact {
	var out []Fact
	for _, g := range all {
		name := "held by " + g.HeldBy
		if g.HeldBy == "not held" {
			name = g.HeldBy
		}
		if i := slices.IndexFunc(out, func(f Fact) bool { return f.Name == name }); i >= 0 {
			out[i].Value += "; " + g.Group
			continue
		}
		out = append(out, Fact{name, g.Group})
	}
	return out
}
