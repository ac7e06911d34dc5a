package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify"
)

// found is a program as the session's first process finds it.
type found struct {
	file    string // what its execve is called with, in the command's directory
	request policy.CommandRequest
}

// find looks the program name of a command up: a name without a slash on PATH, any other
// relative to cwd. The request is the one that the command's own execve makes.
func (s *Session) find(r *rules, name string, argv []string, cwd string) (found, error) {
	t, err := target.OpenView(s.confinement.Observer(s.init.PID()))
	if err != nil {
		return found{}, err
	}
	defer t.Close()
	if err := t.Enter(cwd); err != nil {
		return found{}, &directoryError{cwd, err}
	}
	last := fs.ErrNotExist
	for _, file := range s.candidates(name) {
		request, err := notify.Describe(t, target.Lookup{Dir: unix.AT_FDCWD, Path: file}, argv, r.known.Of)
		if err == nil {
			return found{file, request}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			last = err
		}
	}
	return found{}, last
}

func (s *Session) candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var out []string
	for _, dir := range strings.Split(s.cfg.Environment.Path, ":") {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// directoryError says that a command has no directory to start in.
type directoryError struct {
	dir string
	err error
}

func (e *directoryError) Error() string { return fmt.Sprintf("start in %s: %v", e.dir, e.err) }

func lookupFailed(name string, err error) *wire.Exit {
	var directory *directoryError
	if errors.As(err, &directory) {
		return spawnFailed(126, err.Error(), "name a directory that the policy's file_rules allow")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return spawnFailed(127, name+": not found", "a command sees only what the policy's file_rules allow")
	}
	return spawnFailed(126, fmt.Sprintf("%s: %v", name, err), "")
}
