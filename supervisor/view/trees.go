package view

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/policy"
	"agentsh/supervisor/launch"
)

// openTree is a tree that commands access directly, without a file server. The
// same rules apply everywhere in it.
type openTree struct {
	path    string // inside
	backing string // outside
	write   bool
	noExec  bool
}

// rights are what Landlock grants of the tree.
func (o openTree) rights() uint64 {
	rights := uint64(launch.LandlockRead)
	if o.write {
		rights |= launch.LandlockWrite
	}
	if !o.noExec {
		rights |= launch.LandlockExec
	}
	return rights
}

// openTree shows a tree in which the rules differ nowhere. Reading must be allowed;
// writing and executing are allowed or denied.
func (p *planner) openTree(path, backing string, dir bool) error {
	tree, reads := p.policy.Tree, readOps&^policy.OpExecute
	if !dir {
		tree, reads = p.file, reads&^policy.OpList // a file has no names to list
	}
	for _, ops := range []policy.FileOp{reads, writeOps, policy.OpExecute} {
		v := tree(path, ops)
		if !v.Uniform || v.Effect != policy.Allow && (v.Effect != policy.Deny || ops == reads) {
			if p.parts && path == backing && p.openParts(path) {
				return nil
			}
			return p.splits(path, ops)
		}
	}
	p.out.open = append(p.out.open, openTree{
		path: path, backing: backing,
		write:  tree(path, writeOps).Effect == policy.Allow,
		noExec: tree(path, policy.OpExecute).Effect == policy.Deny,
	})
	return nil
}

// openParts shows a tree that may be read as a whole, and of which parts may be written or
// executed as a whole. Landlock adds the rights of such parts, which must exist. It takes none
// away, so the rest of the tree must allow less. False: the rules differ in another way.
func (p *planner) openParts(root string) bool {
	reads := p.policy.Tree(root, readOps&^policy.OpExecute)
	if !reads.Uniform || reads.Effect != policy.Allow {
		return false
	}
	written, ok := p.allowed(root, writeOps)
	executed, is := p.allowed(root, policy.OpExecute)
	if !ok || !is {
		return false
	}
	all := slices.Concat([]string{root}, written, executed)
	slices.Sort(all)
	for _, part := range slices.Compact(all) {
		p.out.open = append(p.out.open, openTree{
			path: part, backing: part, write: Below(part, written...), noExec: !Below(part, executed...),
		})
	}
	return true
}

// allowed are the greatest trees at and below a path in which operations are allowed
// everywhere. Everywhere else they must be denied. False: they are not, or a tree is missing.
func (p *planner) allowed(path string, ops policy.FileOp) ([]string, bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, false
	}
	tree := p.policy.Tree
	if !info.IsDir() {
		tree = p.file
	}
	v := tree(path, ops)
	switch {
	case v.Uniform && v.Effect == policy.Allow:
		return []string{path}, info.Mode()&os.ModeSymlink == 0
	case v.Uniform && v.Effect == policy.Deny:
		return nil, true
	case v.Effect != policy.Deny || slices.Contains(v.Except, path):
		return nil, false
	}
	var out []string
	for _, e := range v.Except {
		inside, ok := p.allowed(e, ops)
		if !ok {
			return nil, false
		}
		out = append(out, inside...)
	}
	return out, true
}

// splits returns the error that names the rules which only a file server can
// enforce.
func (p *planner) splits(path string, ops policy.FileOp) error {
	var lines []string
	advice := "take the rules out, or name a policy of whole trees, such as --policy " + layout.Policies + "/plain.yaml"
	for _, rule := range p.policy.Splitters(path, ops) {
		if rule.Name == policy.OwnState {
			advice = "work in another directory (--workspace DIR): " + path + " holds files of agentsh itself, which are closed to commands"
		}
		lines = append(
			lines,
			fmt.Sprintf("%s: rule %s cannot be enforced here: without a file server %s is allowed or denied as a whole", rule.Pos, rule.Name, path),
		)
	}
	if len(lines) > 0 {
		lines = append(lines, "  to go on: "+advice)
	} else {
		lines = append(lines, fmt.Sprintf("the file rules do not allow reading %s, and without a file server nothing else shows it", path))
	}
	return &ruleError{strings.Join(lines, "\n")}
}

// ruleError is the error of rules that cannot be enforced here.
type ruleError struct{ text string }

func (e *ruleError) Error() string { return e.text }

// closed reports whether nothing is allowed at a path or below it.
func (p *planner) closed(path string, dir bool) bool {
	tree := p.file // below a file there is nothing
	if dir {
		tree = p.policy.Tree
	}
	v := tree(path, policy.OpAll)
	return v.Uniform && v.Effect == policy.Deny
}

// reaches checks that the user of commands can work in the trees that no file
// server shows as theirs.
func (v *Plan) reaches(u User) error {
	for _, o := range v.open {
		info, err := os.Stat(o.backing)
		if err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
		owner, mode := info.Sys().(*syscall.Stat_t), info.Mode().Perm()
		write := unix.W_OK
		if !o.write {
			write = 0
		}
		need := os.FileMode(unix.R_OK | unix.X_OK | write)
		switch {
		case int(owner.Uid) == u.UID:
			mode >>= 6
		case int(owner.Gid) == u.GID:
			mode >>= 3
		}
		if info.IsDir() && mode&need != need {
			return fmt.Errorf(
				"%s belongs to user %d, and commands run as user %d, which may not use it: without a file server give it to them (chown -R %d:%d), "+
					"or name its owner as sandbox.user",
				o.path,
				owner.Uid,
				u.UID,
				u.UID,
				u.GID,
			)
		}
	}
	return nil
}

// mount is the step that shows the tree.
func (o openTree) mount() launch.Mount {
	return launch.Mount{Kind: launch.Bind, Source: o.backing, Target: o.path, ReadOnly: !o.write, NoExec: o.noExec}
}
