package policy

import (
	"regexp"

	"agentsh/policy/glob"
)

// CommandSelector has the conditions of a command rule. A rule matches if all
// conditions that are set match.
type CommandSelector struct {
	Programs  []ProgramName    // any of them
	Patterns  []*regexp.Regexp // any of them; tried on the arguments joined by spaces
	Args      []ArgPattern     // all of them, as one pattern; nil: any arguments
	AllArgs   bool             // Args must match every argument: allow rules
	Depth     DepthRange
	Parents   []ProgramName
	Ancestors []ProgramName
	Dirs      []*glob.Glob
	Terminal  int8 // 0: either, 1: interactive, -1: not
	NameOnly  bool // identity: name
	// AllPrograms is set if an entry of Programs matches every program. A deny
	// rule for all programs replaces the default and is not counted as a match
	// of one name.
	AllPrograms  bool
	Env          EnvSettings
	PatternTexts []string // args_patterns as written, for lint
}

// DepthRange is a range of exec depths. The command that the operator starts
// has depth 0. Each exec below it adds 1.
type DepthRange struct {
	Min, Max int // both included; Max -1: no limit
}
