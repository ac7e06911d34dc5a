package policy

import (
	"regexp"

	"agentsh/policy/glob"
)

// commandMatch is what a command rule selects.
type CommandSelector struct {
	Programs  []ProgramName
	Patterns  []*regexp.Regexp // any of them
	Args      []ArgPattern     // all of them, as one pattern; nil: any arguments
	AllArgs   bool             // words must cover every argument
	Depth     DepthRange
	Parents   []ProgramName
	Ancestors []ProgramName
	Dirs      []*glob.Glob
	Terminal  int8 // 0: either, 1: interactive, -1: not
	NameOnly  bool // identity: name
	// everything: an entry matches every program. A rule that refuses so is
	// the file's own default, not a statement about one program.
	AllPrograms  bool
	Env          EnvSettings
	PatternTexts []string // args_patterns as written, for lint
}

type DepthRange struct {
	Min, Max int // max -1: no end
}
