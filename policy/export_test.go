package policy

// MaxJoined is the longest text of arguments that patterns are tried on.
const MaxJoined = maxJoined

// Guard returns the kind of an address that a rule must name; -1 for others.
var Guard = guard

// Lookup decides whether a name may be resolved.
func Lookup(p *Policy, name Host, binary string) (Decision, Diagnostic) {
	return p.lookup(name, binary)
}
