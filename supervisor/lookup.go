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
)

// lookup finds a program as the session's first process sees it: a name without
// a slash on PATH, any other relative to cwd.
func (s *Session) lookup(name, cwd string) (policy.Program, error) {
	t, err := target.OpenView(s.init.PID())
	if err != nil {
		return policy.Program{}, err
	}
	defer t.Close()
	last := fs.ErrNotExist
	for _, candidate := range s.candidates(name, cwd) {
		program, err := s.program(t, candidate)
		if err == nil {
			program.Called = name
			return program, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			last = err
		}
	}
	return policy.Program{}, last
}

func (s *Session) candidates(name, cwd string) []string {
	if path.IsAbs(name) {
		return []string{name}
	}
	if strings.Contains(name, "/") {
		return []string{path.Join(cwd, name)}
	}
	var out []string
	for _, dir := range strings.Split(s.cfg.Path, ":") {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// program resolves one path to a file that can be executed.
func (s *Session) program(t *target.Target, name string) (policy.Program, error) {
	h, err := t.Resolve(target.Lookup{Dir: unix.AT_FDCWD, Path: name})
	if err != nil {
		return policy.Program{}, err
	}
	defer h.Close()
	if !h.Regular() || h.Stat.Mode&0o111 == 0 {
		return policy.Program{}, fmt.Errorf("not a program: %w", fs.ErrPermission)
	}
	like, err := s.known.Of(h)
	return policy.Program{Path: h.Path, Names: like.Names, Same: like.Same}, err
}

func lookupFailed(name string, err error) *wire.Exit {
	if errors.Is(err, fs.ErrNotExist) {
		return spawnFailed(127, name+": not found", "a command sees only what the policy's file_rules allow")
	}
	return spawnFailed(126, fmt.Sprintf("%s: %v", name, err), "")
}
