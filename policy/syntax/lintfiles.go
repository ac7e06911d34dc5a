package syntax

import (
	"path"
	"slices"
	"strings"

	"agentsh/internal/paths"
	"agentsh/policy"
	"agentsh/policy/glob"
)

// openDirectories warns about rules that deny writing files in a directory but
// let commands replace the directory itself. A link or another directory with
// that name then has files of the same names.
func (l *linter) openDirectories() {
	for _, rule := range l.p.Rules(policy.GroupFile) {
		if rule.Effect.Permits() || rule.File.Ops&(policy.OpWrite|policy.OpCreate) == 0 {
			continue
		}
		var reported []string
		for _, g := range rule.File.Paths {
			for _, open := range l.openParents(g) {
				name := unexpand(open.dir, l.vars)
				if slices.Contains(reported, name) {
					continue
				}
				reported = append(reported, name)
				l.warn(
					rule,
					"open-directory",
					closing(name),
					"%s is protected, but %s itself is not: %s is permitted there and brings another directory",
					unexpand(g.String(), l.vars),
					name,
					open.op,
				)
			}
		}
	}
}

// closing returns the suggested rule that keeps commands from replacing a
// directory.
func closing(dir string) string {
	if path.Base(dir) == ".git" { // git itself writes in it
		return "add the rule {name: git-directory, paths: ['" + dir + "'], operations: [symlink, rename, delete], decision: deny} before it"
	}
	return "add '" + dir + "/**' to paths, and symlink and rename to operations"
}

// openParent is a directory that commands may replace by an operation.
type openParent struct {
	dir string
	op  policy.FileOp
}

// openParents returns the directories above the matches of a pattern that
// commands may replace.
func (l *linter) openParents(g *glob.Glob) []openParent {
	roots := []string{"/"}
	if strings.HasPrefix(g.String(), "**") {
		roots = l.p.Roots()
	}
	var out []openParent
	for _, root := range roots {
		for _, parent := range g.Parents() {
			found := openParent{dir: path.Join(root, parent)}
			if found.op = l.replacing(found.dir); found.op != 0 && !slices.Contains(out, found) {
				out = append(out, found)
			}
		}
	}
	return out
}

// replacing returns an operation by which commands may put another directory at
// a path, or 0. Two kinds of directories cannot be replaced: one whose parent
// is closed is the root of a tree, and the value of a variable is mounted by
// sessions. Directories above the workspace are not part of the project, so no
// rule should close them.
func (l *linter) replacing(dir string) policy.FileOp {
	if workspace := l.vars["WORKSPACE"]; workspace != "" && paths.Within(workspace, dir) {
		return 0
	}
	for _, value := range l.vars {
		if value == dir {
			return 0
		}
	}
	for _, op := range []policy.FileOp{policy.OpSymlink, policy.OpRename} {
		here, _ := l.p.Evaluate(&policy.FileRequest{Path: dir, Op: op})
		above, _ := l.p.Evaluate(&policy.FileRequest{Path: path.Dir(dir), Op: op})
		if here.Permits() && above.Permits() {
			return op
		}
	}
	return 0
}

// unexpand returns a path as policies write it, with the variable that has the
// longest matching directory.
func unexpand(name string, vars map[string]string) string {
	best := ""
	for _, v := range []string{"PROJECT_ROOT", "WORKSPACE", "HOME"} {
		if strings.HasPrefix(name, vars[v]+"/") && len(vars[v]) > len(vars[best]) {
			best = v
		}
	}
	if best == "" {
		return name
	}
	return "${" + best + "}" + strings.TrimPrefix(name, vars[best])
}
