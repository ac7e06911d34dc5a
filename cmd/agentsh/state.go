package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/internal/snapshot"
	"agentsh/policy"
	"agentsh/policy/glob"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
)

// stateDir is the state directory of the caller.
func stateDir() (layout.State, error) {
	dir, err := layout.FindState(os.Getenv, os.Geteuid())
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	return dir, nil
}

// shimState is the state directory for a shim: also a user whose home cannot have one
// has a session. It is never in the workspace, whatever the caller's variables say.
func shimState(workspace string) (layout.State, error) {
	dir, err := layout.FindState(os.Getenv, os.Geteuid())
	if err == nil && paths.Within(paths.Resolve(string(dir)), workspace) {
		err = fmt.Errorf("state directory %s: it is in the workspace", dir)
	}
	if err == nil {
		err = dir.Make()
	}
	if err != nil && os.Geteuid() == 0 {
		if dir, err = layout.FindState(func(string) string { return "" }, 0); err == nil {
			err = dir.Make()
		}
	} else if err != nil {
		dir, err = layout.FallbackState(os.Geteuid())
	}
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	return dir, nil
}

// openStore opens the caller's checkpoints, previous content and trash.
func openStore() (*snapshot.Store, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	if err := dir.Make(); err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	return snapshot.OpenStore(dir.Store())
}

// findPolicy loads the policy of a session: the one that the command line or its
// configuration names, else the one that [project.Policy] finds.
func (o *execOptions) findPolicy(operator, workspace string, state layout.State, vars map[string]string) (*policy.Policy, error) {
	own := project.Own(string(state), workspace)
	if o.policy != "" || o.config != "" {
		return loadPolicy(source{orDefault(o.policy, operator), os.ReadFile}, vars, own)
	}
	found, err := project.Policy(project.Trust(state.Trust()), workspace, operator)
	if err != nil {
		return nil, failure.New(failure.Ours, err, distrustHint)
	}
	if found.Note != "" {
		fmt.Fprintln(os.Stderr, "agentsh: note: "+strings.ReplaceAll(found.Note, "\n", "\nagentsh: note: "))
	}
	return loadPolicy(source{found.File, found.Read}, vars, own)
}

// distrustHint says what to do about a trusted policy that is not what it was.
const distrustHint = "read it, then run 'agentsh trust'; or 'agentsh trust --forget', or name another policy with --policy FILE"

// source is a policy file, and what reads it and the files that it extends.
type source struct {
	file string
	read func(name string) ([]byte, error)
}

// loadPolicy loads a policy. Only vars of the operator's configuration can move the
// project root out of the workspace. own are files and directories of agentsh itself, which
// no command may change: where the workspace holds one, rules deny that. A workspace in one
// of them is refused.
func loadPolicy(from source, vars map[string]string, own []string) (*policy.Policy, error) {
	if from.file == "" {
		return nil, failure.New(failure.Ours, errors.New("no policy"),
			"name one with --policy FILE, in ~/.config/agentsh/policy.yaml or in "+layout.Config)
	}
	data, err := from.read(from.file)
	if err != nil {
		return nil, failure.New(failure.Ours, fmt.Errorf("policy: %w", err), "")
	}
	main := policy.Source{Name: from.file, Data: data}
	options := syntax.Options{Vars: vars, OutsideWorkspace: true, ReadFile: from.read}
	p, err := syntax.Load(main, options)
	if err != nil {
		return nil, failure.New(failure.Ours, err, "run 'agentsh policy check "+from.file+"'")
	}
	for _, name := range own {
		if paths.Within(vars["WORKSPACE"], name) {
			return nil, failure.New(failure.Ours, fmt.Errorf("workspace %s: agentsh keeps what it knows in %s", vars["WORKSPACE"], name),
				"work in another directory, or name one with --workspace DIR")
		}
	}
	guard := ownRules(p.Name(), from.file, vars["WORKSPACE"], own)
	if guard == nil {
		return p, nil
	}
	options.ReadFile = func(name string) ([]byte, error) {
		for _, s := range p.Sources() {
			if s.Name == name {
				return s.Data, nil
			}
		}
		return from.read(name)
	}
	if p, err = syntax.Load(policy.Source{Name: "agentsh", Data: guard}, options); err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	return p, nil
}

// ownRules is a policy that extends a file by rules for what of own lies in the workspace;
// nil: nothing does.
func ownRules(name, file, workspace string, own []string) []byte {
	var dirs, above []string
	for _, dir := range own {
		if !strings.HasPrefix(dir, workspace+"/") {
			continue
		}
		dirs = append(dirs, glob.Quote(dir), glob.Quote(dir)+"/**")
		for up := filepath.Dir(dir); up != workspace; up = filepath.Dir(up) {
			above = append(above, glob.Quote(up)) // nobody else may get in there, nor may the user be kept out
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	rule := func(name string, paths, operations []string) map[string]any {
		return map[string]any{"name": name, "paths": paths, "operations": operations, "decision": "deny",
			"message": "agentsh keeps what it knows here: no command reads or changes it"}
	}
	rules := []map[string]any{rule("own-state", dirs, []string{"read", "write", "create", "delete", "rename", "chmod", "chown", "link",
		"symlink", "mkdir", "rmdir", "mknod", "xattr", "utime", "execute"})} // looking passes: tools list trees
	if len(above) > 0 {
		rules = append(rules, rule("above-own-state", above, []string{"rename", "symlink", "delete", "rmdir", "link", "chmod", "chown"}))
	}
	data, err := json.Marshal(map[string]any{"version": 1, "name": name, "extends": []string{file}, "file_rules": rules})
	if err != nil {
		panic(err) // texts only
	}
	return data
}

// tools are the user's own programs that a policy shows. A PATH of the configuration is
// taken as it is.
func tools(operator supervisor.OperatorConfig, p *policy.Policy) project.Tools {
	home := p.Vars()["USER_HOME"]
	if operator.Path != supervisor.DefaultOperator.Path {
		home = ""
	}
	permits := func(dir string, op policy.FileOp) bool {
		d, _ := p.Evaluate(&policy.FileRequest{Path: dir + "/program", Op: op})
		return d.Permits()
	}
	return project.FindTools(home, func(dir string) bool {
		for _, d := range []string{dir, paths.Resolve(dir)} {
			for _, op := range []policy.FileOp{policy.OpWrite, policy.OpCreate, policy.OpRename} {
				if permits(d, op) {
					return false // commands would choose the programs of later ones
				}
			}
		}
		return permits(dir, policy.OpExecute)
	})
}

// storedSessions are the sessions of the caller's store. Reading them makes no store.
func storedSessions() ([]*snapshot.Session, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir.Store()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := snapshot.OpenStore(dir.Store())
	if err != nil {
		return nil, err
	}
	return store.Sessions()
}
