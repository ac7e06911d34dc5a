package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// readOps are the operations that a read-only bind mount grants. A mount cannot
// grant some of them: a tree whose rules differ between them is governed.
const readOps = policy.OpRead | policy.OpList | policy.OpStat | policy.OpExecute

// writeOps are the operations that change something.
const writeOps = policy.OpAll &^ readOps

// scratchDirs are private to a session if the policy lets commands write there.
// They show no file of the machine.
var scratchDirs = []string{"/tmp", "/var/tmp"}

// kernelDirs are file systems of the kernel. Every session has its own.
var kernelDirs = []string{"/proc", "/dev", "/sys"}

// topLinks are the links of a merged /usr. They are shown where the machine has
// them.
var topLinks = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// planner turns file rules into a plan. What no rule allows does not exist. A
// tree that may be read as a whole is bound read-only. A path where operations
// are decided one by one is governed.
type planner struct {
	policy    *policy.Policy
	workspace []wire.Governed
	home      string
	newDir    func(path string) (backing string, err error) // makes an empty directory outside
	whole     bool                                          // without a file server: every tree is allowed or denied as a whole
	parts     bool                                          // the workspace may consist of trees with more rights
	noOpens   string                                        // why opens below [notify.Emulated] cannot be decided; empty: they can
	out       Plan
}

func (p *planner) plan() (*Plan, error) {
	p.out.Home = p.home
	for _, g := range p.workspace {
		if err := p.govern(g.Path, g.Backing, true); err != nil {
			return nil, err
		}
	}
	for _, dir := range append(slices.Clone(scratchDirs), p.home) {
		if err := p.addScratch(dir); err != nil {
			return nil, err
		}
	}
	if err := p.addKernelRules(); err != nil {
		return nil, err
	}
	if err := p.addTargets(); err != nil {
		return nil, err
	}
	for _, root := range p.roots() {
		if err := p.addRoot(root); err != nil {
			return nil, err
		}
	}
	p.addSys()
	p.addTopLinks()
	return &p.out, nil
}

// addScratch plans a private directory where the policy allows writing: a tmpfs,
// or a governed directory if rules differ inside it.
func (p *planner) addScratch(dir string) error {
	if dir == "" || p.covered(dir) {
		return nil
	}
	all := p.policy.Tree(dir, policy.OpAll)
	switch {
	case all.Effect == policy.Deny:
		return nil // allowed paths inside are shown as they are outside
	case p.unit(all) && all.Effect == policy.Allow:
		p.out.Private = append(p.out.Private, dir)
		return nil
	}
	if p.whole {
		return p.splits(dir, policy.OpAll)
	}
	backing, err := p.newDir(dir)
	if err != nil {
		return fmt.Errorf("scratch directory for %s: %w", dir, err)
	}
	return p.govern(dir, backing, true)
}

// addTargets governs the directories that redirects write to. One in a private
// directory is empty at first; any other is that of the machine.
func (p *planner) addTargets() error {
	for _, rule := range p.policy.Rules(policy.GroupFile) {
		if rule.Effect != policy.Redirect || p.governedAt(rule.Redirect.Path) {
			continue
		}
		dir := rule.Redirect.Path
		refused := func(why string) error {
			return fmt.Errorf("%s: rule %s: redirect_to %s: %s", rule.Pos, rule.Name, dir, why)
		}
		backing := dir
		switch info, err := os.Stat(dir); {
		case Below(dir, kernelDirs...):
			return refused("the kernel's own directories take no files")
		case slices.Contains(p.out.Private, dir):
			return refused("name a directory in it")
		case Below(dir, p.out.Private...):
			if backing, err = p.newDir(dir); err != nil {
				return refused(err.Error())
			}
		case err != nil:
			return refused(err.Error())
		case !info.IsDir():
			return refused("it is no directory")
		}
		if err := p.govern(dir, backing, true); err != nil {
			return refused(err.Error())
		}
	}
	return nil
}

// unit reports whether a tree is decided as a whole, apart from the governed
// paths inside it.
func (p *planner) unit(v policy.TreeVerdict) bool {
	return v.Uniform || !slices.ContainsFunc(v.Except, func(e string) bool { return !p.governedAt(e) })
}

// govern makes the file server decide operations at and below a path. Governed
// paths cannot be nested. The inner mount point would have to be created
// through the outer mount, which has no server yet.
func (p *planner) govern(path, backing string, dir bool) error {
	if p.whole {
		return p.openTree(path, backing, dir)
	}
	for _, g := range p.out.Governed {
		if Below(g.Path, path) {
			return p.nested(path, g.Path)
		}
	}
	all := p.policy.Tree(path, policy.OpAll)
	closed := all.Uniform && all.Effect == policy.Deny
	p.out.Governed = append(p.out.Governed, Governed{path, backing, dir, closed})
	return nil
}

// nested returns the error for a path with a governed path inside. It names the
// rules that differ there.
func (p *planner) nested(path, inside string) error {
	text := fmt.Sprintf(
		"the file rules differ inside %s, which holds %s: allow or deny it as a whole, allow only reading around the workspace, or make %s "+
			"the workspace",
		path,
		inside,
		path,
	)
	for _, rule := range p.policy.Splitters(path, policy.OpAll) {
		text += fmt.Sprintf("\n%s: rule %s divides %s", rule.Pos, rule.Name, path)
	}
	return &ruleError{text}
}

// roots are the paths below which rules allow something. "/" is replaced by its
// entries.
func (p *planner) roots() []string {
	var roots []string
	for _, root := range p.policy.Roots() {
		if root != "/" {
			roots = append(roots, path.Clean(root))
			continue
		}
		entries, err := os.ReadDir("/")
		if err != nil {
			continue
		}
		for _, e := range entries {
			roots = append(roots, "/"+e.Name())
		}
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// addRoot plans one path outside the workspace. A path that does not exist is
// skipped.
func (p *planner) addRoot(root string) error {
	if p.covered(root) || Below(root, kernelDirs...) {
		return nil
	}
	info, err := os.Lstat(root)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("plan %s: %w", root, err)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(root)
		if err != nil {
			return fmt.Errorf("plan %s: %w", root, err)
		}
		p.out.links = append(p.out.links, link{root, target})
		return nil
	case info.IsDir(), info.Mode().IsRegular():
		return p.addTree(root, info)
	}
	return nil // a device or socket is never shown
}

// addTree binds a tree that is readable as a whole, and governs the paths where
// rules differ. If they differ at the root of the tree, it governs the tree.
func (p *planner) addTree(root string, info fs.FileInfo) error {
	tree := p.policy.Tree
	if !info.IsDir() {
		tree = p.file
	}
	write, read, exec := tree(root, writeOps), tree(root, readOps&^policy.OpExecute), tree(root, policy.OpExecute)
	bindable := read.Effect == policy.Allow && write.Effect == policy.Deny && (exec.Effect == policy.Allow || exec.Effect == policy.Deny)
	exceptions := slices.Concat(read.Except, exec.Except, write.Except)
	slices.Sort(exceptions)
	exceptions = slices.Compact(exceptions)
	switch {
	case slices.Contains(exceptions, root):
		return p.govern(root, root, info.IsDir())
	case read.Effect == policy.Deny && write.Effect == policy.Deny && exec.Effect == policy.Deny:
		return nil // allowed paths inside are roots themselves
	case !bindable:
		return p.govern(root, root, info.IsDir())
	}
	p.out.binds = append(p.out.binds, bind{path: root, noExec: exec.Effect == policy.Deny})
	for _, e := range exceptions {
		if err := p.addException(e); err != nil {
			return err
		}
	}
	return nil
}

// file is [policy.Policy.Tree] for a path that has nothing below it.
func (p *planner) file(path string, ops policy.FileOp) policy.TreeVerdict {
	v := policy.TreeVerdict{Uniform: true}
	for op, first := policy.FileOp(1), true; op < policy.OpAll; op <<= 1 {
		if op&ops == 0 {
			continue
		}
		d, _ := p.policy.Evaluate(&policy.FileRequest{Path: path, Op: op})
		if first {
			v.Effect, first = d.Effect, false
		} else if d.Effect != v.Effect {
			return policy.TreeVerdict{Except: []string{path}}
		}
	}
	return v
}

// addException governs a path inside a bound tree. A path that does not exist
// cannot appear: the tree is read-only. For a link the rules of its target apply.
func (p *planner) addException(e string) error {
	if p.governedAt(e) {
		return nil
	}
	info, err := os.Lstat(e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("plan %s: %w", e, err)
	}
	switch {
	case p.whole && p.closed(e, info.IsDir()):
		p.out.masked = append(p.out.masked, e)
	case p.whole && info.IsDir():
		return p.maskInside(e)
	case info.IsDir(), info.Mode().IsRegular():
		return p.govern(e, e, info.IsDir())
	case info.Mode()&fs.ModeSymlink == 0:
		p.out.masked = append(p.out.masked, e)
	}
	return nil
}

// maskInside hides the names in a directory of a bound tree that a rule closes, without a
// file server. The others must be shown as the tree is.
func (p *planner) maskInside(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("plan %s: %w", dir, err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		tree := p.policy.Tree
		if !e.IsDir() {
			tree = p.file
		}
		read, write := tree(name, readOps&^policy.OpExecute), tree(name, writeOps)
		switch {
		case read.Uniform && read.Effect == policy.Allow && write.Uniform && write.Effect == policy.Deny:
			continue // as the tree
		case p.closed(name, e.IsDir()):
			p.out.masked = append(p.out.masked, name)
		case e.IsDir():
			if err := p.maskInside(name); err != nil {
				return err
			}
		default:
			return p.splits(name, policy.OpAll)
		}
	}
	return nil
}

// addTopLinks shows the links of a merged /usr whose target is shown.
func (p *planner) addTopLinks() {
	for _, name := range topLinks {
		target, err := os.Readlink(name)
		if err != nil || slices.ContainsFunc(p.out.links, func(l link) bool { return l.path == name }) {
			continue
		}
		if p.covered(filepath.Join("/", target)) {
			p.out.links = append(p.out.links, link{name, target})
		}
	}
}

// covered reports whether a path is planned already, or lies below one that is.
func (p *planner) covered(name string) bool {
	return p.governedAt(name) || Below(name, p.out.Private...) ||
		slices.ContainsFunc(p.out.open, func(o openTree) bool { return Below(name, o.path) }) ||
		slices.ContainsFunc(p.out.binds, func(b bind) bool { return Below(name, b.path) })
}

func (p *planner) governedAt(name string) bool {
	return slices.ContainsFunc(p.out.Governed, func(g Governed) bool { return Below(name, g.Path) })
}

// Below reports whether name is one of the directories or inside one.
func Below(name string, dirs ...string) bool {
	for _, d := range dirs {
		if name == d || d == "/" || strings.HasPrefix(name, d+"/") {
			return true
		}
	}
	return false
}
