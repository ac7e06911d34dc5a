package policy

import (
	"slices"
	"strings"

	"agentsh/policy/glob"
)

// Roots returns the literal prefixes of the file rules that do not deny,
// sorted. A sandbox has to show these directories and files.
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

// Concerns reports whether rule is a file rule for at least one of the
// operations.
func (rule *Rule) Concerns(ops FileOp) bool { return rule.File != nil && rule.File.Ops&ops != 0 }

// PathsBelow returns the patterns of a file rule that match something at or
// below a directory. Variables are expanded.
func (rule *Rule) PathsBelow(dir string) []string {
	var out []string
	for _, g := range rule.File.Paths {
		if g.Covers(dir) || len(g.Below(dir)) > 0 {
			out = append(out, g.String())
		}
	}
	return out
}

// EvaluateBelow is like [Policy.Evaluate], but uses only patterns that name
// dir, such as dir/** and dir/a. It ignores patterns that match it among
// others, such as **/a. It applies no default: ok is false if no pattern
// matches.
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

// TreeVerdict is the result of [Policy.Tree] for a directory tree.
type TreeVerdict struct {
	Uniform bool     // every path at or below the root has Effect
	Effect  Effect   // of a path that is below no exception
	Except  []string // literal prefixes at or below the root where the effect may differ
}

// Tree reports whether every path at or below root has the same effect for
// every operation in ops, and which parts may differ. root is a clean absolute
// path. The result is Uniform only if no rule can differ.
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
			// The operations have different effects in the whole tree.
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

// OwnState names the rule that agentsh adds to a policy for files of its own in a workspace.
const OwnState = "own-state"

// Splitters returns the file rules because of which the tree at root is not
// allowed or denied as a whole for each of ops. These rules match inside the
// tree, or have an effect other than allow and deny.
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

// tree is [Policy.Tree] for one operation.
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
