package openshell

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"agentsh/policy"
)

// Rights that OpenShell gives in a tree. Each includes the ones before. They are
// Landlock rules, so a right in a tree cannot be taken away below it. See
// crates/openshell-supervisor-process/src/sandbox/linux/landlock.rs (ABI 2).
const (
	nothing = iota
	reads   // read_only
	writes  // read_write
)

const (
	readOps  = policy.OpRead | policy.OpList | policy.OpExecute
	writeOps = policy.OpWrite | policy.OpCreate | policy.OpDelete | policy.OpRename | policy.OpLink | policy.OpSymlink |
		policy.OpMkdir | policy.OpRmdir | policy.OpMknod
	nameOps = writeOps &^ policy.OpWrite // changes of the directory that has the name
)

// Bounds of OpenShell: MAX_FILESYSTEM_PATHS and MAX_PATH_LENGTH in crates/openshell-policy.
const (
	maxPaths      = 256
	maxPathLength = 4096
)

// level returns the rights of a path.
func level(p *Policy, name string) int {
	within := func(dirs []string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return below(name, dir) })
	}
	switch {
	case within(p.ReadWrite):
		return writes
	case within(p.ReadOnly):
		return reads
	}
	return nothing
}

// below reports whether name is dir or lies below it.
func below(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// files writes the file rules as trees.
func (r *renderer) files() {
	d := r.policy.Defaults()
	for _, e := range []*policy.Effect{d.FileRead, d.FileWrite} {
		if e != nil && *e != policy.Deny {
			r.fail(r.key("defaults"), "defaults: OpenShell denies files that no rule names", "write file: deny in defaults, and rules that allow")
		}
	}
	r.lose("file_metadata", "attributes of files", policy.Top(r.policy), "owners and modes alone decide about them in OpenShell")
	f := &fileRenderer{renderer: r, rules: policy.New(policy.Definition{Rules: [policy.GroupCount][]*policy.Rule{
		policy.GroupFile: r.permitted(policy.GroupFile),
	}})}
	f.tree("/", nothing)
	p := r.out.Policy
	if slices.Contains(p.ReadWrite, "/") {
		r.fail(policy.Top(r.policy), "OpenShell refuses a policy that allows to write everything", "name the directories that are written")
	}
	if n := len(p.ReadOnly) + len(p.ReadWrite); n > maxPaths {
		r.fail(policy.Top(r.policy), fmt.Sprintf("the file rules need %d paths, and OpenShell has %d", n, maxPaths), "write fewer, larger trees")
	}
	for _, rule := range f.rules.Rules(policy.GroupFile) {
		if !slices.ContainsFunc(r.out.Rows, func(x Row) bool { return x.Pos == rule.Pos }) {
			r.row(rule.Name, rule.Pos, "OpenShell: filesystem_policy")
		}
	}
}

// fileRenderer walks down the trees in which the rules differ.
type fileRenderer struct {
	*renderer
	rules *policy.Policy
}

// tree writes the rights at dir and below it. The tree around it has the rights above.
func (f *fileRenderer) tree(dir string, above int) {
	var allowed policy.FileOp // below dir, apart from the exceptions
	var except []string
	for bit := range len(policy.FileOpNames) {
		op := policy.FileOp(1) << bit
		if (readOps|writeOps)&op == 0 {
			continue
		}
		v := f.rules.Tree(dir, op)
		if v.Effect == policy.Allow {
			allowed |= op
		}
		except = append(except, v.Except...)
	}
	slices.Sort(except)
	except = slices.Compact(except)
	if slices.Contains(except, dir) {
		f.patterns(dir)
	}
	rights := f.rank(dir, allowed)
	switch itself := f.at(dir); {
	case itself == allowed:
	case rights > nothing:
		f.less(dir)
		f.finer(dir, itself)
	default:
		rights = f.rank(dir, f.oneFile(dir, itself))
	}
	if rights < above {
		f.less(dir)
		rights = above
	}
	if rights > above {
		f.give(dir, rights)
	}
	for _, x := range except {
		if x != dir {
			f.tree(x, rights)
		}
	}
}

// at returns the operations that the rules allow on one path.
func (f *fileRenderer) at(name string) policy.FileOp {
	var out policy.FileOp
	for bit := range len(policy.FileOpNames) {
		op := policy.FileOp(1) << bit
		if d, _ := f.rules.Evaluate(&policy.FileRequest{Path: name, Op: op}); (readOps|writeOps)&op != 0 && d.Effect == policy.Allow {
			out |= op
		}
	}
	return out
}

// oneFile returns the rights of a path that a rule names alone. A name without a tree is
// taken for a file: what changes its directory is that of the directory.
func (f *fileRenderer) oneFile(name string, ops policy.FileOp) policy.FileOp {
	if ops&policy.OpRead == 0 || ops&nameOps != 0 {
		f.finer(name, ops)
	}
	if ops&policy.OpRead == 0 {
		return 0
	}
	if ops&policy.OpExecute == 0 {
		f.finer(name, ops)
	}
	ops |= readOps
	if ops&policy.OpWrite != 0 {
		ops |= writeOps
	}
	return ops
}

// rank returns the rights for a set of operations.
func (f *fileRenderer) rank(dir string, ops policy.FileOp) int {
	read, write := ops&readOps, ops&writeOps
	if read != 0 && read != readOps || write != 0 && write != writeOps || write != 0 && read == 0 {
		f.finer(dir, ops)
	}
	switch {
	case ops&policy.OpRead == 0:
		return nothing
	case ops&policy.OpWrite == 0:
		return reads
	}
	return writes
}

// finer records that the rules at a path divide reading or writing.
func (f *fileRenderer) finer(name string, ops policy.FileOp) {
	reason := fmt.Sprintf("at %s it allows %s, and OpenShell has only reading (%s) and writing (%s)", name, ops, readOps, writeOps)
	for _, rule := range f.deciding(name, policy.Allow) {
		f.lose("file_operations", rule.Name, rule.Pos, reason)
	}
}

// less records that rules take rights away in a tree.
func (f *fileRenderer) less(name string) {
	for _, rule := range f.deciding(name, policy.Deny) {
		f.lose("file_parts", rule.Name, rule.Pos, "OpenShell cannot take away at "+name+" what a rule for the tree around it allows")
	}
}

// deciding returns the rules that decide with an effect about a path.
func (f *fileRenderer) deciding(name string, effect policy.Effect) []*policy.Rule {
	var out []*policy.Rule
	for bit := range len(policy.FileOpNames) {
		op := policy.FileOp(1) << bit
		d, _ := f.rules.Evaluate(&policy.FileRequest{Path: name, Op: op})
		if (readOps|writeOps)&op != 0 && d.Effect == effect && d.Rule != nil && !slices.Contains(out, d.Rule) {
			out = append(out, d.Rule)
		}
	}
	return out
}

// patterns records the rules about names in a directory.
func (f *fileRenderer) patterns(dir string) {
	for _, rule := range f.rules.Rules(policy.GroupFile) {
		for _, g := range rule.File.Paths {
			texts, literal := g.Literals()
			inside := rule.Concerns(readOps|writeOps) && slices.Contains(g.Below(dir), dir) && !g.Covers(dir)
			if inside && (!literal || !slices.Contains(texts, dir)) {
				f.lose("file_parts", rule.Name, rule.Pos, "OpenShell has trees and no patterns, and cannot hold "+g.String())
			}
		}
	}
}

// give writes one path.
func (f *fileRenderer) give(name string, rights int) {
	if len(name) > maxPathLength || path.Clean(name) != name {
		f.fail(policy.Top(f.policy), fmt.Sprintf("OpenShell has no path %q", name), "write a shorter one")
		return
	}
	into := &f.out.Policy.ReadOnly
	if rights == writes {
		into = &f.out.Policy.ReadWrite
	}
	if !slices.Contains(*into, name) { // a tree within another one may be met twice
		*into = append(*into, name)
	}
}
