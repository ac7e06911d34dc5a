package shim

import (
	"fmt"
	"slices"
	"strings"

	"agentsh/internal/paths"
)

// StartIn is where a command starts whose caller is in a directory, empty if it has none.
func StartIn(here, workspace string) string {
	if here == "" || !paths.Within(here, workspace) {
		return workspace
	}
	return here
}

// NoteDirectory is the line that a shell prints which starts in another directory than
// its caller's; empty: it starts there. here is the caller's directory, empty if it has
// none any more.
func NoteDirectory(here, workspace, start string) string {
	if here != "" && paths.Within(here, workspace) {
		return ""
	}
	if here == "" {
		here = "the current directory"
	}
	return fmt.Sprintf("agentsh: note: %s is not in the workspace %s: the shell starts in %s\n", here, workspace, start)
}

// Environment is the environment that a shell asks for: that of its caller, without a
// home that the session does not have. It changes the list.
func Environment(environment []string, workspace string) []string {
	return slices.DeleteFunc(environment, func(e string) bool {
		home, is := strings.CutPrefix(e, "HOME=")
		return is && !paths.Within(home, workspace)
	})
}
