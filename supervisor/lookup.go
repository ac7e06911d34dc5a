package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify"
)

// programs finds programs as the session init sees them.
type programs struct {
	observer int      // a process that sees files as commands do
	path     []string // directories of PATH
	identify notify.Identify
}

// program is a program that was found.
type program struct {
	file    string // the path to execute, in the command's directory
	request policy.CommandRequest
}

// find finds a program by name: without a slash on PATH, else relative to cwd.
// The request is the one that the command's own execve makes.
func (p programs) find(name string, argv []string, cwd string) (program, error) {
	t, err := target.OpenView(p.observer)
	if err != nil {
		return program{}, err
	}
	defer t.Close()
	if err := t.Enter(cwd); err != nil {
		return program{}, &directoryError{cwd, err}
	}
	last := fs.ErrNotExist
	for _, file := range p.candidates(name) {
		request, err := notify.Describe(t, target.Lookup{Dir: unix.AT_FDCWD, Path: file}, argv, p.identify)
		if err == nil {
			return program{file, request}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			last = err
		}
	}
	return program{}, last
}

// candidates are the paths that a name may mean.
func (p programs) candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var out []string
	for _, dir := range p.path {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// directoryError is the error of a command whose directory cannot be entered.
type directoryError struct {
	dir string
	err error
}

func (e *directoryError) Error() string { return fmt.Sprintf("start in %s: %v", e.dir, e.err) }
func (e *directoryError) Unwrap() error { return e.err }

const exitNotFound = 127 // the exit code of a program that does not exist

func lookupFailed(name string, err error) *wire.Exit {
	if cause, short := shortage(err); short { // the supervisor's own: nothing was decided
		return spawnFailed(125, fmt.Sprintf("%s: %v", name, err), cause.Ending().Hint)
	}
	var directory *directoryError
	if errors.As(err, &directory) {
		return spawnFailed(126, err.Error(), "name a directory that the policy's file_rules allow")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return spawnFailed(exitNotFound, name+": not found", "a command sees only what the policy's file_rules allow")
	}
	return spawnFailed(126, fmt.Sprintf("%s: %v", name, err), "")
}

// Programs finds programs of this machine as sessions find theirs.
type Programs struct {
	root *os.File
	of   programs
}

// OpenPrograms finds programs for a policy. path are the directories of PATH. Close it.
func OpenPrograms(p *policy.Policy, path []string) (*Programs, error) {
	root, err := openRoot("/")
	if err != nil {
		return nil, err
	}
	known, err := notify.BuildIdentities(p.DeniedPrograms(), notify.Root{Dir: root, Path: path})
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &Programs{root, programs{os.Getpid(), path, known.Of}}, nil
}

// Close ends the use of the programs.
func (p *Programs) Close() error { return p.root.Close() }

// Find finds the program that name means in the directory cwd. Links, interpreters and
// copies of denied programs are in the request. Without a program the error wraps that
// of the kernel.
func (p *Programs) Find(name string, argv []string, cwd string) (policy.CommandRequest, error) {
	found, err := p.of.find(name, argv, cwd)
	return found.request, err
}
