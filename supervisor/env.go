package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"agentsh/internal/layout"

	"agentsh/internal/wire"
	"agentsh/policy/env"
	"agentsh/supervisor/view"
)

// maxEnvFiles bounds the .env files of one directory.
const maxEnvFiles = 256

// buildEnv builds the environment of a command. It is the only place that does.
func (s *Session) buildEnv(c *command) *wire.Exit {
	files, err := s.env.get(s.envFiles)
	if err != nil {
		return spawnFailed(125, err.Error(), "")
	}
	at := env.Place{Home: s.plan.Home, User: s.user.Name, Shell: view.Shell, Path: s.cfg.Environment.Path}
	if c.req.TTY != nil {
		at.Term = c.req.TTY.Term
	}
	built, err := env.Build(env.Layers{
		Baseline:   env.Baseline(at),
		Request:    c.req.Env,
		Filter:     c.rules.policy.EnvFilter(c.decision.Rule),
		Files:      files,
		Network:    s.network.Variables(layout.CABundle),
		Supervisor: s.supervisorVars(c.req),
		Inject: []env.Inject{
			{Source: "config", Vars: s.confinement.Inject(s.cfg.Environment.Inject)},
			{Source: "policy", Vars: s.confinement.Inject(c.rules.policy.EnvInject())},
			c.set,
		},
	})
	if err != nil {
		return spawnFailed(125, "environment: "+err.Error(), "")
	}
	c.env = built.Env
	return nil
}

// supervisorVars are the supervisor's own variables: the controller's variables
// of the run, then the two that name the session and the command.
func (s *Session) supervisorVars(req wire.ExecRequest) []env.Var {
	var vars []env.Var
	for _, name := range slices.Sorted(maps.Keys(req.Run)) {
		vars = append(vars, env.Var{Name: name, Value: req.Run[name]})
	}
	return append(vars, env.Var{Name: "AGENTSH_SESSION", Value: s.id}, env.Var{Name: "AGENTSH_COMMAND", Value: req.ID})
}

// delivered are the .env files as they were when the first command of the session
// was started: what delivered them has done so by then, and commands do not set the
// variables of later ones, nor break them. A failure to read is not remembered.
type delivered struct {
	mu    sync.Mutex
	done  bool
	files []env.File
}

func (d *delivered) get(read func() ([]env.File, error)) ([]env.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done {
		return d.files, nil
	}
	files, err := read()
	if err != nil {
		return nil, err
	}
	d.files, d.done = files, true
	return files, nil
}

// refuse says of a file below their directory that it is too late for it.
func (d *delivered) refuse(dir, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.done || dir == "" || !view.Below(name, dir) {
		return nil
	}
	return &wire.Error{Code: wire.CodeRefused, Message: dir +
		" was read when the first command was started, what is written there has no effect: set variables by env.sandbox in the harness"}
}

// envFiles reads .env.d of the sandbox through its backing directory: *.env in
// lexical order, generated.env last. A file that cannot be read fails the command.
func (s *Session) envFiles() ([]env.File, error) {
	if s.cfg.Environment.Dir == "" {
		return nil, nil
	}
	root, rel, err := s.openGoverned(s.cfg.Environment.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	entries, err := fs.ReadDir(root.FS(), rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.cfg.Environment.Dir, err)
	}
	if len(entries) > maxEnvFiles {
		return nil, fmt.Errorf("%s has %d files, at most %d", s.cfg.Environment.Dir, len(entries), maxEnvFiles)
	}
	var files []env.File
	var generated []env.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".env") {
			continue
		}
		f, err := readEnvFile(root, path.Join(rel, e.Name()), path.Join(s.cfg.Environment.Dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if e.Name() == layout.GeneratedName {
			generated = append(generated, f)
		} else {
			files = append(files, f)
		}
	}
	return append(files, generated...), nil
}

func readEnvFile(root *os.Root, rel, shown string) (env.File, error) {
	info, err := root.Lstat(rel)
	if err != nil {
		return env.File{}, fmt.Errorf("read %s: %w", shown, err)
	}
	if !info.Mode().IsRegular() || info.Size() > env.MaxFile {
		return env.File{}, fmt.Errorf("read %s: not a regular file of at most %d bytes", shown, env.MaxFile)
	}
	data, err := root.ReadFile(rel)
	if err != nil {
		return env.File{}, fmt.Errorf("read %s: %w", shown, err)
	}
	return env.File{Name: shown, Data: data}, nil
}

// openGoverned opens the backing directory that holds a path inside, and gives
// the path relative to it.
func (s *Session) openGoverned(inside string) (*os.Root, string, error) {
	for _, g := range s.cfg.Files.Governed {
		if !view.Below(inside, g.Path) {
			continue
		}
		rel, err := filepath.Rel(g.Path, inside)
		if err != nil {
			return nil, "", err
		}
		root, err := os.OpenRoot(g.Backing)
		return root, rel, err
	}
	return nil, "", fmt.Errorf("%s is not in a governed directory", inside)
}
