package controller

import (
	"strings"
	"testing"
)

// What a supervisor says of its fallbacks is about sessions. A run takes all of them but one.
func TestTheHintForAMissingMechanismNamesWhatARunTakes(t *testing.T) {
	for message, want := range map[string]string{
		"degraded: [landlock] in FILE, or --degraded landlock, opens a session without it":           "degraded of the harness has the same names",
		"degraded: [file_server] in FILE, or --degraded file_server, opens a session":                "a run needs FUSE",
		"all of them: degraded: [landlock, file_server] in FILE, or --degraded landlock,file_server": "a run needs FUSE",
		"something else": "",
	} {
		if got := fallbackHint(message); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}
