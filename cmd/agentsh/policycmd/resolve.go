package policycmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/supervisor"
)

// resolve finds the program of a command as a session would: by its links and its
// interpreters, under the name that it is called by, as a copy of a denied one. A
// program that is not here keeps its name, and missing says so.
func resolve(p *policy.Policy, request policy.Request) (missing string) {
	r, ok := request.(*policy.CommandRequest)
	if !ok {
		return ""
	}
	programs, err := openPrograms(p)
	if err == nil {
		defer func() { _ = programs.Close() }()
		err = find(programs, r, r.Argv[0])
	}
	if err == nil {
		return ""
	}
	why := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		why = "not found"
		if !strings.Contains(r.Argv[0], "/") {
			why = "not found in your PATH"
		}
	}
	return text.Short(r.Argv[0], 60) + ": " + why + "; only its name is evaluated"
}

func openPrograms(p *policy.Policy) (*supervisor.Programs, error) {
	return supervisor.OpenPrograms(p, filepath.SplitList(os.Getenv("PATH")))
}

// find completes a request by the file that name means.
func find(programs *supervisor.Programs, r *policy.CommandRequest, name string) error {
	cwd := r.Cwd
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		cwd = "/"
	}
	found, err := programs.Find(name, r.Argv, cwd)
	if err == nil {
		r.Program, r.Chain = found.Program, found.Chain
	}
	return err
}

// resolveLog completes commands of a log. A file that is another one by now is left
// out: the log says what ran.
func resolveLog(programs *supervisor.Programs) policytest.Resolve {
	return func(q *policy.CommandRequest) {
		now := *q
		for _, name := range []string{q.Argv[0], q.Path} { // it may have been called by a link
			if err := find(programs, &now, name); err == nil && now.Path == q.Path {
				*q = now
				return
			}
		}
	}
}
