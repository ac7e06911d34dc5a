package controller

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"agentsh/controller/bootstrap"
)

// Where things are inside a sandbox.
const (
	workspace   = bootstrap.Workspace
	homeDir     = bootstrap.Root + "/home"
	outputDir   = workspace + "/output"
	feedbackDir = workspace + "/feedback" // what validators said
)

// taken are the names in the workspace that a repository cannot have.
var taken = map[string]bool{"bin": true, path.Base(bootstrap.AgentInput): true, path.Base(outputDir): true, path.Base(feedbackDir): true}

var badInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// repoName is the name of a repository's directory in the workspace: that of
// the target's, made harmless for shells and free of clashes.
func repoName(dir string) string {
	name := strings.TrimLeft(badInName.ReplaceAllString(filepath.Base(dir), "-"), "-.")
	if name == "" || taken[name] {
		return "repo-" + name
	}
	return name
}

// policyVars are the values of ${NAME} in the policy of a run.
func policyVars(repoDir string) map[string]string {
	return map[string]string{
		"WORKSPACE": workspace, "PROJECT_ROOT": repoDir, "GIT_ROOT": repoDir, "HOME": homeDir, "TMPDIR": "/tmp",
	}
}
