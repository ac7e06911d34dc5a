package git

import (
	"context"

	"agentsh/controller/sandbox/host"
)

// runShell runs a script with git without the safe settings, and returns all
// its output.
func runShell(g Tool, dir, script string) (string, error) {
	res, err := host.Run(context.Background(), host.Command{
		Argv: []string{"sh", "-ec", script}, Dir: dir,
		Env: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + g.global,
			"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
		},
	})
	if err == nil {
		err = res.Err()
	}
	return string(res.Stdout) + string(res.Stderr), err
}
