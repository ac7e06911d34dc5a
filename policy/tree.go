package policy

import (
	"slices"
	"strings"

	"agentsh/policy/glob"
)

// Roots are the literal prefixes of the file rules that do anything but deny,
// sorted: the directories and files a sandbox has to show.
func (p *Policy) Roots() []string {
	var out []string
	for _, rule := range p.files.rules {
		if rule.Effect == Deny {
			continue
		}
		for _, g := range rule.File.Paths {
			out = append(out, g.Dirs()...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Concerns reports whether rule is a file rule that speaks of one of the operations.
func (rule *Rule) Concerns(ops FileOp) bool { return rule.File != nil && rule.File.Ops&ops != 0 }

// PathsBelow are the patterns of a file rule, variables expanded, that match
// something at or below a directory.
func (rule *Rule) PathsBelow(dir string) []string {
	var out []string
	for _, g := range rule.File.Paths {
		if g.Covers(dir) || len(g.Below(dir)) > 0 {
			out = append(out, g.String())
		}
	}
	return out
}

// EvaluateBelow is Evaluate by those patterns alone that name dir, such as
// dir/** and dir/a, and not by those that match it among others, such as **/a.
// ok is false when none of them says anything: no default does.
func (p *Policy) EvaluateBelow(dir string, q *FileRequest) (d Decision, why Diagnostic, ok bool) {
	for _, rule := range p.files.rules {
		if rule.File.Ops&q.Op == 0 {
			continue
		}
		for _, g := range rule.File.Paths {
			if strings.HasPrefix(g.String(), dir+"/") && g.Match(q.Path) {
				d = Decision{Effect: rule.Effect, Rule: rule}
				return d, p.explain(q, d, reason{}), true
			}
		}
	}
	return Decision{}, Diagnostic{}, false
}

// TreeVerdict is how a policy treats a directory tree.
type TreeVerdict struct {
	Uniform bool     // every path at or below the root gets Effect
	Effect  Effect   // of a path that no exception covers
	Except  []string // literal prefixes at or below the root where it may differ
}

// Tree says whether every path at or below root gets the same effect for every
// operation in ops, and which parts of the tree may not. root is a clean
// absolute path. The answer is never Uniform where a rule could differ.
func (p *Policy) Tree(root string, ops FileOp) TreeVerdict {
	v := TreeVerdict{Effect: Allow}
	first := true
	for bit := range len(FileOpNames) {
		op := FileOp(1) << bit
		if ops&op == 0 {
			continue
		}
		effect, except := p.files.tree(root, op)
		if !first && effect != v.Effect {
			// The operations differ as a whole: the tree is no unit.
			except = append(except, root)
			if strictness[v.Effect] < strictness[effect] {
				effect = v.Effect
			}
		}
		v.Effect = effect
		v.Except = append(v.Except, except...)
		first = false
	}
	if first {
		return TreeVerdict{Effect: Deny, Except: []string{root}}
	}
	slices.Sort(v.Except)
	v.Except = slices.Compact(v.Except)
	v.Uniform = len(v.Except) == 0
	return v
}

// Splitters are the file rules that keep the tree at root from being allowed or
// denied as a whole for each of ops: those that decide inside it, and those whose
// effect is neither.
func (p *Policy) Splitters(root string, ops FileOp) []*Rule {
	var out []*Rule
	for _, rule := range p.files.rules {
		if rule.File.Ops&ops == 0 {
			continue
		}
		inside := slices.ContainsFunc(rule.File.Paths, func(g *glob.Glob) bool { return len(g.Below(root)) > 0 })
		covers := coversTree(rule.File.Paths, root)
		if inside && !covers || covers && rule.Effect != Allow && rule.Effect != Deny {
			out = append(out, rule)
		}
	}
	return out
}

// treeOf is Tree for one operation.
func (f *fileRules) tree(root string, op FileOp) (Effect, []string) {
	type part struct {
		prefix string
		effect Effect
	}
	var parts []part
	effect := f.other(op)
	for _, rule := range f.rules {
		if rule.File.Ops&op == 0 {
			continue
		}
		if coversTree(rule.File.Paths, root) {
			effect = rule.Effect
			break
		}
		for _, g := range rule.File.Paths {
			for _, prefix := range g.Below(root) {
				parts = append(parts, part{prefix, rule.Effect})
			}
		}
	}
	var except []string
	for _, x := range parts {
		if x.effect != effect {
			except = append(except, x.prefix)
		}
	}
	return effect, except
}

func coversTree(paths []*glob.Glob, root string) bool {
	for _, g := range paths {
		if g.Covers(root) {
			return true
		}
	}
	return false
}
