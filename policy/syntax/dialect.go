package syntax

import "agentsh/internal/strictyaml"

// The limits of one policy. A file that exceeds them is rejected before it uses
// much memory.
const (
	MaxSource     = 4 << 20   // bytes of one file
	maxMarks      = 400_000   // line ends and : , - [ { of one file, which bound its nodes
	maxDepth      = 12        // levels of nesting
	maxSources    = 64        // files reached by extends
	maxRules      = 50_000    // rules of a whole policy
	maxTotalBytes = 16 << 20  // bytes of all files together
	maxText       = 64 * 1024 // bytes of one value
)

// dialect has the limits of a policy file.
var dialect = strictyaml.Dialect{
	MaxBytes: MaxSource, MaxMarks: maxMarks, MaxDepth: maxDepth, MaxText: maxText,
	Texts: strictyaml.Texts{
		TooLarge: strictyaml.Text{Message: "the file is %d bytes long, the most is %d", Hint: "split it with extends"},
		TooMany:  strictyaml.Text{Message: "the file has more than %d entries", Hint: "split it with extends"},
		None:     strictyaml.Text{Message: "the file is empty", Hint: "a policy begins with version: 1"},
		Anchor: strictyaml.Text{
			Message: "anchors and aliases are not part of the policy language",
			Hint:    "write the value out, or put it in a file named by extends",
		},
		Merge: strictyaml.Text{Message: "merge keys are not part of the policy language", Hint: "use extends"},
		Tag:   strictyaml.Text{Message: "tags are not part of the policy language"},
	},
}
