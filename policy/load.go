package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"path"
	"slices"
	"strings"
)

// Load parses and compiles a policy and the files it extends. It reports every
// problem it finds, not the first: the error is [Problems]. It makes no system
// call of its own.
func Load(src Source, opts Options) (*Policy, error) {
	l := &loader{opts: opts, vars: cleanVars(opts.Vars), state: map[string]int{}}
	l.checkRoots()
	l.file(src)
	p := l.compile()
	if len(l.problems) > 0 {
		return nil, l.problems.sorted()
	}
	return p, nil
}

// loader follows extends. Documents are kept nearest first, which is the order
// their rules are tried in.
type loader struct {
	opts      Options
	vars      map[string]string
	problems  Problems
	documents []*document
	sources   []Source
	bytes     int
	state     map[string]int // by file name: 1 being read, 2 read
}

// cleanVars tidies absolute paths, so that ${HOME}/x never holds a double
// slash, which no path matches.
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

// checkRoots refuses a project root above the workspace: rules written for the
// project would then cover what lies beside it.
func (l *loader) checkRoots() {
	root, workspace := l.vars["PROJECT_ROOT"], l.vars["WORKSPACE"]
	if l.opts.OutsideWorkspace || root == "" || workspace == "" || within(root, workspace) {
		return
	}
	l.problems = append(l.problems, Problem{
		Pos:     Position{File: "PROJECT_ROOT", Line: 1, Column: 1},
		Message: fmt.Sprintf("PROJECT_ROOT %s is not in the workspace %s", root, workspace),
		Hint:    "point it below the workspace, or allow it in the configuration",
	})
}

// within reports whether name is dir or lies below it.
func within(name, dir string) bool {
	if dir == "/" {
		return strings.HasPrefix(name, "/")
	}
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}

// file reads one source and, after it, what it extends.
func (l *loader) file(src Source) {
	r := &reader{file: src.Name, vars: l.vars, problems: &l.problems}
	l.state[src.Name] = 1
	defer func() { l.state[src.Name] = 2 }()
	l.sources = append(l.sources, src)
	if l.bytes += len(src.Data); l.bytes > maxTotalBytes {
		r.failAt(Position{src.Name, 1, 1}, "", fmt.Sprintf("the policy and what it extends are more than %d bytes", maxTotalBytes))
		return
	}
	root := parseYAML(r, src.Data)
	if root == nil {
		return
	}
	d := &document{}
	readObject(r, root, "the policy", policyKeys, d)
	l.documents = append(l.documents, d)
	for _, e := range d.extends {
		l.extend(r, e)
	}
}

// extend reads one file named by extends, once.
func (l *loader) extend(r *reader, e located) {
	name := e.text
	if !path.IsAbs(name) {
		name = path.Join(path.Dir(r.file), name)
	}
	switch {
	case l.state[name] == 1:
		r.fail(e.node, "", "%s extends itself", name)
		return
	case l.state[name] == 2:
		return
	case l.opts.ReadFile == nil:
		r.fail(e.node, "", "extends cannot be read here")
		return
	case len(l.sources) >= maxSources:
		r.fail(e.node, "", "a policy extends at most %d files", maxSources)
		return
	}
	data, err := l.opts.ReadFile(name)
	if err != nil {
		r.fail(e.node, "", "extends: %v", err)
		return
	}
	l.file(Source{Name: name, Data: data})
}

// compile merges the documents into one policy.
func (l *loader) compile() *Policy {
	p := &Policy{sources: l.sources, vars: maps.Clone(l.opts.Vars), inject: map[string]Injection{}}
	p.digest = digest(l.sources, l.opts.Vars)
	if p.vars == nil {
		p.vars = map[string]string{}
	}
	for i, d := range l.documents {
		if i == 0 {
			p.name, p.description = d.name, d.description
		}
		p.add(d)
	}
	p.transparent = transparentWords(l.documents)
	p.planting = []string{"/tmp", "/var/tmp", "/dev", "/proc", "/sys"}
	for _, name := range [...]string{"WORKSPACE", "PROJECT_ROOT", "GIT_ROOT", "HOME", "TMPDIR"} {
		if dir := l.vars[name]; dir != "" {
			p.planting = append(p.planting, dir)
		}
	}
	total := 0
	for g := range p.groups {
		total += len(p.groups[g].rules)
	}
	if total > maxRules {
		l.problems = append(l.problems, Problem{
			Pos:     Position{l.sources[0].Name, 1, 1},
			Message: fmt.Sprintf("%d rules, the most is %d", total, maxRules),
		})
		return nil
	}
	if len(l.problems) > 0 {
		return nil
	}
	p.index()
	return p
}

// digest hashes the sources and variables, each with its length.
func digest(sources []Source, vars map[string]string) string {
	h := sha256.New()
	for _, s := range sources {
		hashText(h, s.Name)
		hashText(h, string(s.Data))
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		hashText(h, name)
		hashText(h, vars[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func hashText(h hash.Hash, s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	h.Write(length[:])
	h.Write([]byte(s))
}

func mapKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
