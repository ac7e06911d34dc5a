package reasons

import (
	"slices"
	"strings"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Bounds of a refusal's text, in characters. Together they stay below PIPE_BUF, so
// that a pipe gets the text in one piece: see pipe(7).
const (
	maxWhat    = 200
	maxRule    = 200
	maxMessage = 300
)

// Text describes a refusal in one or two lines without control characters.
func Text(e wire.Event) string {
	if e.Op == wire.OpUnreachable {
		return text.Unreachable(text.Short(e.Target, maxWhat), text.Short(e.Message, maxMessage)) + "\n"
	}
	what := text.Args(e.Argv, maxWhat)
	if len(e.Argv) == 0 {
		parts := slices.DeleteFunc([]string{e.Op, e.Path, e.Target}, func(s string) bool { return s == "" })
		what = text.Short(strings.Join(parts, " "), maxWhat)
	}
	var b strings.Builder
	b.WriteString("agentsh: denied: " + what)
	if e.Rule != nil && e.Rule.Name != "" {
		rule := e.Rule.Name
		if at := e.Rule.Position(); at != "" {
			rule += ", " + at
		}
		b.WriteString(" (rule " + text.Short(rule, maxRule) + ")")
	}
	if e.Message != "" {
		b.WriteString(": " + text.Short(e.Message, maxMessage))
	}
	b.WriteByte('\n')
	if e.Hint != "" {
		b.WriteString("agentsh: hint: " + text.Short(e.Hint, maxMessage) + "\n")
	}
	return b.String()
}
