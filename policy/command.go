package policy

import (
	"regexp"

	"agentsh/policy/glob"
)

// CommandSelector is what a command rule matches. Every condition that is given
// must be met.
type CommandSelector struct {
	Programs  []ProgramName    // any of them
	Patterns  []*regexp.Regexp // any of them; tried on the arguments joined by spaces
	Args      []ArgPattern     // all of them, as one pattern; nil: any arguments
	AllArgs   bool             // Args must match every argument: rules that permit
	Depth     DepthRange
	Parents   []ProgramName
	Ancestors []ProgramName
	Dirs      []*glob.Glob
	Terminal  int8 // 0: either, 1: interactive, -1: not
	NameOnly  bool // identity: name
	// AllPrograms: an entry of Programs matches every program. A rule that denies
	// all programs replaces the default. It is not about one name of a program.
	AllPrograms  bool
	Env          EnvSettings
	PatternTexts []string // args_patterns as written, for lint
}

// DepthRange is a range of depths of a command. 0 is a command that the operator
// started, n is n execs below it.
type DepthRange struct {
	Min, Max int // both included; Max -1: no end
}
