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
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/supervisor/view"
)

// maxEnvFiles bounds the .env files of one directory.
const maxEnvFiles = 256

// maxDropped bounds the dropped variables that the caller of a command is told.
const maxDropped = 100

// environments builds the environments of a session's commands.
type environments struct {
	session string                                    // its id
	base    env.Environment                           // without the terminal
	network []env.Var                                 // of the session's network and its files
	config  map[string]string                         // env_inject of the operator
	inject  func(map[string]string) map[string]string // with paths as commands see them
	files   envFiles
}

// build builds the environment of a command, NAME=value. rule is the rule that
// allows it, set are variables of a redirect. It is the only place that does.
// dropped are the variables of the request that are not in it.
func (e *environments) build(
	req wire.ExecRequest, p *policy.Policy, rule *policy.Rule, set env.Inject,
) (vars []string, dropped []wire.DroppedVar, err error) {
	files, err := e.files.get(req.Setup)
	if err != nil {
		return nil, nil, err
	}
	base := e.base
	if req.TTY != nil {
		base.Term = req.TTY.Term
	}
	built, err := env.Build(env.Layers{
		Baseline:   env.Baseline(base),
		Request:    req.Env,
		Filter:     p.EnvFilter(rule),
		Files:      files,
		Network:    e.network,
		Supervisor: supervisorVars(e.session, req),
		Inject: []env.Inject{
			{Source: "config", Vars: e.inject(e.config)},
			{Source: "policy", Vars: e.inject(p.EnvInject())},
			set,
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("environment: %w", err)
	}
	for _, d := range built.Dropped {
		if d.Layer == env.LayerRequest && len(dropped) < maxDropped {
			dropped = append(dropped, wire.DroppedVar{Name: text.Short(d.Name, 200), Reason: d.Reason})
		}
	}
	return built.Env, dropped, nil
}

// supervisorVars are the supervisor's own variables: the controller's variables
// of the run, then the two that name the session and the command.
func supervisorVars(session string, req wire.ExecRequest) []env.Var {
	var vars []env.Var
	for _, name := range slices.Sorted(maps.Keys(req.Run)) {
		vars = append(vars, env.Var{Name: name, Value: req.Run[name]})
	}
	return append(vars, env.Var{Name: "AGENTSH_SESSION", Value: session}, env.Var{Name: "AGENTSH_COMMAND", Value: req.ID})
}

// envFiles are the .env files as they were when the session's first command was
// started. Commands cannot set variables of later commands through them.
type envFiles struct {
	dir      string // inside; empty: none
	governed []wire.Governed

	mu    sync.Mutex
	done  bool
	files []env.File
}

// get reads the files once. After an error it reads them again. A command that
// makes these files gets none of them.
func (f *envFiles) get(setup bool) ([]env.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if setup && f.done {
		return nil, errors.New("the .env files are already read, so no command can make them any more")
	}
	if setup {
		return nil, nil
	}
	if f.done {
		return f.files, nil
	}
	files, err := f.read()
	if err != nil {
		return nil, err
	}
	f.files, f.done = files, true
	return files, nil
}

// checkWrite refuses to write a file below the directory after it was read.
func (f *envFiles) checkWrite(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done || f.dir == "" || !view.Below(name, f.dir) {
		return nil
	}
	return &wire.Error{Code: wire.CodeRefused, Message: f.dir +
		" was read when the first command was started, what is written there has no effect: set variables by env.sandbox in the harness"}
}

// read reads the directory through its backing: *.env in lexical order, the
// controller's file last. A file that cannot be read is an error.
func (f *envFiles) read() ([]env.File, error) {
	if f.dir == "" {
		return nil, nil
	}
	root, rel, err := openBacking(f.governed, f.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	entries, err := fs.ReadDir(root.FS(), rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.dir, err)
	}
	if len(entries) > maxEnvFiles {
		return nil, fmt.Errorf("%s has %d files, at most %d", f.dir, len(entries), maxEnvFiles)
	}
	var files []env.File
	var generated []env.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".env") {
			continue
		}
		file, err := readEnvFile(root, path.Join(rel, e.Name()), path.Join(f.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if e.Name() == layout.GeneratedName {
			generated = append(generated, file)
		} else {
			files = append(files, file)
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

// openBacking opens the backing directory that holds a path inside. rel is the
// path relative to it.
func openBacking(governed []wire.Governed, inside string) (root *os.Root, rel string, err error) {
	for _, g := range governed {
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
