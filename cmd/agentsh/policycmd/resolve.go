package policycmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/supervisor"
	"agentsh/supervisor/host"
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
			why = "not found in the PATH of sessions"
		}
	}
	return text.Short(r.Argv[0], 60) + ": " + why + "; only its name is evaluated"
}

// openPrograms finds programs in the PATH of sessions.
func openPrograms(p *policy.Policy) (*supervisor.Programs, error) {
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return nil, err
	}
	return supervisor.OpenPrograms(p, filepath.SplitList(discovery.Tools(operator, p).Of(operator.Path)))
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

// resolveLog completes commands of a log. What is another file by now, or has other
// interpreters, is left as it is: the log says what ran.
func resolveLog(programs *supervisor.Programs) policytest.Resolve {
	return func(q *policy.CommandRequest) {
		now := *q
		for _, name := range []string{q.Called, q.Argv[0], q.Path} { // a log may lack the link that it was called by
			if err := find(programs, &now, name); err == nil && now.Path == q.Path && (len(q.Chain) == 0 || sameFiles(now.Chain, q.Chain)) {
				*q = now
				return
			}
		}
	}
}

func sameFiles(a, b []policy.Program) bool {
	return slices.EqualFunc(a, b, func(x, y policy.Program) bool { return x.Path == y.Path })
}

// resolveTests completes the commands of tests. A program that is not on this machine is
// evaluated by its name as written.
func resolveTests(programs *supervisor.Programs) policytest.Resolve {
	return func(q *policy.CommandRequest) { _ = find(programs, q, q.Argv[0]) }
}
