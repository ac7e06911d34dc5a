package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheRuntimeDirectoryIsFoundWithoutItsVariable: clients of MCP start a server with HOME,
// PATH and a few others, and without XDG_RUNTIME_DIR.
func TestTheRuntimeDirectoryIsFoundWithoutItsVariable(t *testing.T) {
	real, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const uid = 1000
	for what, tt := range map[string]struct {
		mode os.FileMode
		uid  int
		want string
	}{
		"the user's":                 {0o700, os.Geteuid(), real + "/agentsh"},
		"one that others may change": {0o770, os.Geteuid(), ""},
		"another user's":             {0o700, os.Geteuid() + 1, ""},
	} {
		if err := os.Chmod(real, tt.mode); err != nil {
			t.Fatal(err)
		}
		got, err := runtimeBelow("", real, tt.uid)
		refused := err != nil && strings.Contains(err.Error(), "XDG_RUNTIME_DIR is not set")
		if got != tt.want || refused != (tt.want == "") {
			t.Errorf("%s: %q, %v, want %q", what, got, err, tt.want)
		}
	}
	if got, err := runtimeBelow("", real+"/none", uid); err == nil {
		t.Errorf("a directory that does not exist: %q", got)
	}
	if got, err := runtimeBelow(real, "/none", uid); err != nil || got != real+"/agentsh" {
		t.Errorf("a variable: %q, %v", got, err)
	}
}
