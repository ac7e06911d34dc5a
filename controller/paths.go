package controller

import (
	"path/filepath"
	"regexp"
	"strings"

	"agentsh/internal/layout"
)

var badInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// repoName is the name of a repository's directory in the workspace: that of
// the target's, made harmless for shells and free of clashes.
func repoName(dir string) string {
	name := strings.TrimLeft(badInName.ReplaceAllString(filepath.Base(dir), "-"), "-.")
	if name == "" || layout.ReservedName(name) {
		return "repo-" + name
	}
	return name
}

// policyVars are the values of ${NAME} in the policy of a run.
func policyVars(repoDir string) map[string]string {
	return map[string]string{
		"WORKSPACE": layout.Workspace, "PROJECT_ROOT": repoDir, "GIT_ROOT": repoDir, "HOME": layout.Home, "TMPDIR": "/tmp",
	}
}
