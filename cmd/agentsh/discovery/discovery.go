// Package discovery finds and loads the policy of a command line, for sessions and for
// the commands that explain what a session would do.
package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/policy"
	"agentsh/policy/glob"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
)

// Request is what a command line says about its policy.
type Request struct {
	File      string // the policy that it names; empty: none
	Alone     bool   // it names a configuration: nothing else is looked for
	Operator  string // the policy that the configuration names; empty: none
	Workspace string
	State     layout.State
	Vars      map[string]string
	Notes     io.Writer // gets what was passed over
	Open      bool      // sessions here close nothing inside a workspace to commands
	Look      bool      // no session begins: nothing is recorded
}

// Policy loads the policy of a session: the one that the command line or its
// configuration names, else the one that [project.Policy] finds.
func (r Request) Policy() (*policy.Policy, error) {
	own, trust := project.Own(string(r.State), r.Workspace), project.Trust(r.State.Trust())
	if r.Open {
		rest, err := project.OpenHome(own, string(r.State), r.Workspace)
		if err == nil && len(rest) < len(own) && !r.Look {
			err = trust.NoteOpened()
		}
		if err != nil {
			return nil, failure.New(failure.Ours, err, "")
		}
		own = rest
	}
	if r.File != "" || r.Alone {
		file := r.File
		if file == "" {
			file = r.Operator
		}
		return load(source{file, os.ReadFile}, r.Vars, own)
	}
	found, err := project.Policy(trust, r.Workspace, r.Operator)
	if err != nil {
		return nil, failure.New(failure.Ours, err, distrustHint)
	}
	if found.Note != "" {
		fmt.Fprintln(r.Notes, "agentsh: note: "+strings.ReplaceAll(found.Note, "\n", "\nagentsh: note: "))
	}
	return load(source{found.File, found.Read}, r.Vars, own)
}

// PolicyFlag adds the flag -p. Its value is a file, or the name of a policy of the packages.
func PolicyFlag(f *pflag.FlagSet, file *string, usage string) {
	f.VarP((*named)(file), "policy", "p", usage+"; or the name of a policy in "+layout.Policies)
}

// named is a policy file.
type named string

// Set implements [pflag.Value].
func (n *named) Set(name string) error {
	file, err := project.Named(name)
	*n = named(file)
	return err
}

// String implements [pflag.Value].
func (n *named) String() string { return string(*n) }

// Type implements [pflag.Value].
func (n *named) Type() string { return "policy" }

// distrustHint says what to do about a trusted policy that is not what it was.
const distrustHint = "read it, then run 'agentsh trust'; or 'agentsh trust --forget', or name another policy with --policy FILE"

// source is a policy file, and what reads it and the files that it extends.
type source struct {
	file string
	read func(name string) ([]byte, error)
}

// load loads a policy. Only vars of the operator's configuration can move the
// project root out of the workspace. own are files and directories of agentsh itself, which
// no command may change: where the workspace holds one, rules deny that. A workspace in one
// of them is refused.
func load(from source, vars map[string]string, own []string) (*policy.Policy, error) {
	if from.file == "" {
		return nil, failure.New(failure.Ours, errors.New("no policy"),
			"name one with --policy FILE, in ~/.config/agentsh/policy.yaml or in "+layout.Config)
	}
	data, err := from.read(from.file)
	if err != nil {
		return nil, failure.New(failure.Ours, fmt.Errorf("policy: %w", err), project.MissingHint(from.file, err))
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
	if p, err = syntax.Load(policy.Source{Name: layout.OwnPolicy, Data: guard}, options); err != nil {
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
	rules := []map[string]any{rule(policy.OwnState, dirs, []string{"read", "write", "create", "delete", "rename", "chmod", "chown", "link",
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

// Tools are the user's own programs that a policy shows. A PATH of the configuration is
// taken as it is.
func Tools(operator supervisor.OperatorConfig, p *policy.Policy) project.Tools {
	home := p.Vars()["USER_HOME"]
	if operator.Path != supervisor.DefaultOperator.Path || project.UsersTrust().HomeOpened() {
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
