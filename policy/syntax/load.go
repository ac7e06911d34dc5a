package syntax

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"agentsh/internal/paths"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// Options are the inputs of [Load] that do not come from the policy file.
type Options struct {
	// Vars are the values of ${NAME} in patterns: WORKSPACE, PROJECT_ROOT,
	// GIT_ROOT, HOME, TMPDIR and the operator's variables.
	Vars map[string]string
	// ReadFile returns the content of a file named in extends. Relative names
	// are already joined to the directory of the extending file. If it is nil,
	// extends is an error.
	ReadFile func(name string) ([]byte, error)
	// OutsideWorkspace allows a PROJECT_ROOT that is not in WORKSPACE.
	OutsideWorkspace bool
	// FilesAlone loads the rules about files, and no others. It is for who decides about files
	// by a policy that was loaded as a whole before.
	FilesAlone bool
}

// Load parses and compiles a policy and the files it extends. The error is
// [policy.Problems]. It has every problem of all files in file order.
func Load(src policy.Source, opts Options) (*policy.Policy, error) {
	l := &loader{opts: opts, vars: cleanVars(opts.Vars), state: map[string]int{}, keys: map[string]policy.Position{}}
	l.checkRoots()
	l.file(src)
	p := l.compile()
	if len(l.problems) > 0 {
		return nil, l.problems.Sorted()
	}
	return p, nil
}

// loader loads a file and the files it extends. Documents are stored nearest
// first. Their rules are evaluated in this order.
type loader struct {
	opts      Options
	vars      map[string]string
	problems  policy.Problems
	documents []*document
	keys      map[string]policy.Position // see [policy.Definition]
	sources   []policy.Source
	bytes     int
	state     map[string]int // by file name: 1 being read, 2 read
}

// cleanVars cleans absolute paths. Otherwise ${HOME}/x could contain a double
// slash, and no path would match.
func cleanVars(vars map[string]string) map[string]string {
	out := make(map[string]string, len(vars))
	for name, value := range vars {
		if strings.HasPrefix(value, "/") {
			value = path.Clean(value)
		}
		out[name] = value
	}
	return out
}

// checkRoots rejects a project root above the workspace. Rules for the project
// would then match files outside the workspace.
func (l *loader) checkRoots() {
	root, workspace := l.vars["PROJECT_ROOT"], l.vars["WORKSPACE"]
	if l.opts.OutsideWorkspace || root == "" || workspace == "" || paths.Within(root, workspace) {
		return
	}
	l.problems = append(l.problems, policy.Problem{
		Pos:     policy.Position{File: "PROJECT_ROOT", Line: 1, Column: 1},
		Message: fmt.Sprintf("PROJECT_ROOT %s is not in the workspace %s", root, workspace),
		Hint:    "point it below the workspace, or allow it in the configuration",
	})
}

// file parses one source and then the files it extends.
func (l *loader) file(src policy.Source) {
	r := newReader(src.Name, l.vars, &l.problems)
	r.filesAlone = l.opts.FilesAlone
	l.state[src.Name] = 1
	defer func() { l.state[src.Name] = 2 }()
	l.sources = append(l.sources, src)
	if l.bytes += len(src.Data); l.bytes > maxTotalBytes {
		r.Fail(&strictyaml.Node{Line: 1, Column: 1}, "", "the policy and what it extends are more than %d bytes", maxTotalBytes)
		return
	}
	root := strictyaml.Parse(src.Name, src.Data, &dialect, collect(&l.problems))
	if root == nil {
		return
	}
	d := &document{}
	if r.OtherKind(root, strictyaml.Policy) {
		return
	}
	readObject(r, root, "the policy", policyKeys, d)
	for key := range strictyaml.Pairs(root) {
		if _, nearer := l.keys[key.Value]; !nearer {
			l.keys[key.Value] = r.pos(key)
		}
	}
	l.documents = append(l.documents, d)
	for _, e := range d.extends {
		l.extend(r, e)
	}
}

// extend parses one file named in extends, at most once.
func (l *loader) extend(r *reader, e located) {
	name := e.text
	if !path.IsAbs(name) {
		name = path.Join(path.Dir(r.File), name)
	}
	switch {
	case l.state[name] == 1:
		r.Fail(e.node, "", "%s extends itself", name)
		return
	case l.state[name] == 2:
		return
	case l.opts.ReadFile == nil:
		r.Fail(e.node, "", "extends cannot be read here")
		return
	case len(l.sources) >= maxSources:
		r.Fail(e.node, "", "a policy extends at most %d files", maxSources)
		return
	}
	data, err := l.opts.ReadFile(name)
	if err != nil {
		r.Fail(e.node, extendsHint(e.text), "extends: %v", err)
		return
	}
	l.file(policy.Source{Name: name, Data: data})
}

// extendsHint says what extends names: files.
func extendsHint(name string) string {
	switch {
	case strings.Contains(name, "://"):
		return "extends names files of this machine: fetch it first"
	case !strings.Contains(path.Base(name), "."):
		return "extends names files: write " + path.Join("/etc/agentsh/policies", path.Base(name)+".yaml") + " for a policy of the package"
	}
	return ""
}

// compile merges the documents into one policy. It returns nil if there are
// problems.
func (l *loader) compile() *policy.Policy {
	d := l.definition()
	total := 0
	for g := range d.Rules {
		total += len(d.Rules[g])
	}
	if total > maxRules {
		l.problems = append(l.problems, policy.Problem{
			Pos:     policy.Position{File: l.sources[0].Name, Line: 1, Column: 1},
			Message: fmt.Sprintf("%d rules, the most is %d", total, maxRules),
		})
	}
	if len(l.problems) > 0 {
		return nil
	}
	return policy.New(d)
}

func mapKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
