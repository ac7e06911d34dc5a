package runtime

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"agentsh/internal/layout"
)

// maxObjection bounds the validator's text in a task, in bytes. An argument of
// a program has at most 128 KiB, see execve(2). The feedback file contains the
// whole text.
const maxObjection = 32 << 10

// Task is the prompt for the agent. The agent definition contains the
// instructions.
func Task(in Invocation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Do the work your instructions describe, in the repository %s.\n", in.RepoDir)
	if start := in.Start(); start != in.RepoDir {
		fmt.Fprintf(&b, "Your work is about its directory %s, in which you start.\n", start)
	}
	fmt.Fprintf(&b, "Commit changes you want to keep. Results that are no changes of the repository go to files in %s.\n", layout.Output)
	b.WriteString(
		"Nobody can answer questions. What the sandbox refuses fails with \"Permission denied\" or \"agentsh: denied\", and that is final: " +
			"do not try to get around it, find another way or say what is missing.\n",
	)
	if in.Feedback.File == "" {
		return b.String()
	}
	fmt.Fprintf(
		&b,
		"\nThis is attempt %d. What you left in attempt %d is still there, and it did not pass the validation. ",
		in.Iteration,
		in.Iteration-1,
	)
	text := strings.TrimSpace(in.Feedback.Text)
	switch {
	case text == "":
		b.WriteString("The validator did not say why.\n")
	case len(text) > maxObjection:
		cut := len(text) - maxObjection
		for !utf8.RuneStart(text[cut]) {
			cut++
		}
		fmt.Fprintf(&b, "The end of what the validator said is below, all of it is in %s.\n\n%s\n", in.Feedback.File, text[cut:])
	default:
		fmt.Fprintf(&b, "The validator said:\n\n%s\n", text)
	}
	return b.String()
}
