package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/launch"
)

// openTree is a tree that is reached as it is, where no file server decides for
// each operation: the rules say one thing for the whole of it.
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

// openTree shows a tree whose rules differ nowhere inside. Reading must be
// allowed; writing and executing are allowed or denied.
func (p *viewPlanner) openTree(path, backing string, dir bool) error {
	tree, reads := p.policy.Tree, readOps&^policy.OpExecute
	if !dir {
		tree, reads = p.file, reads&^policy.OpList // a file has no names to list
	}
	for _, ops := range []policy.FileOp{reads, writeOps, policy.OpExecute} {
		v := tree(path, ops)
		if !v.Uniform || v.Effect != policy.Allow && (v.Effect != policy.Deny || ops == reads) {
			return p.splits(path, ops)
		}
	}
	p.view.open = append(p.view.open, openTree{
		path: path, backing: backing,
		write:  tree(path, writeOps).Effect == policy.Allow,
		noExec: tree(path, policy.OpExecute).Effect == policy.Deny,
	})
	return nil
}

// splits is the error that names the rules which only a file server holds.
func (p *viewPlanner) splits(path string, ops policy.FileOp) error {
	var lines []string
	for _, rule := range p.policy.Splitters(path, ops) {
		lines = append(
			lines,
			fmt.Sprintf("%s: rule %s cannot be held here: without a file server %s is allowed or denied as a whole", rule.Pos, rule.Name, path),
		)
	}
	if len(lines) == 0 {
		lines = append(lines, fmt.Sprintf("the file rules do not allow reading %s, and without a file server nothing else shows it", path))
	}
	return &ruleError{strings.Join(lines, "\n")}
}

// ruleError is a policy that this place cannot hold.
type ruleError struct{ text string }

func (e *ruleError) Error() string { return e.text }

// closed reports whether nothing is allowed at a path or below it.
func (p *viewPlanner) closed(path string, dir bool) bool {
	tree := p.file // below a file there is nothing
	if dir {
		tree = p.policy.Tree
	}
	v := tree(path, policy.OpAll)
	return v.Uniform && v.Effect == policy.Deny
}

// reaches checks that the user of commands can work in trees that no file server
// shows as theirs.
func (s *Session) reaches(v view) error {
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
		case int(owner.Uid) == s.who.uid:
			mode >>= 6
		case int(owner.Gid) == s.who.gid:
			mode >>= 3
		}
		if info.IsDir() && mode&need != need {
			return fmt.Errorf(
				"%s belongs to user %d, and commands run as user %d, who may not use it: without a file server give it to them (chown -R %d:%d), "+
					"or name its owner as sandbox.user",
				o.path,
				owner.Uid,
				s.who.uid,
				s.who.uid,
				s.who.gid,
			)
		}
	}
	return nil
}

// statePlace is the directory for the session's state: the temporary one unless
// that is in the workspace, or in a plain session one that commands cannot write
// to.
func (c *Config) statePlace(lost lacks) string {
	if !lost.has(lossNamespaces) {
		for _, dir := range []string{os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/run", "/var/tmp", "/dev/shm"} {
			if dir != "" && !c.governs(dir) && unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
				return dir
			}
		}
		return os.TempDir() // settle refuses it
	}
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir(), "/var/tmp", "/dev/shm"} {
		if dir == "" || unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
			continue
		}
		if c.writesNothing(dir) {
			return dir
		}
	}
	return os.TempDir()
}

// writesNothing reports whether the policy denies every change in a directory.
func (c *Config) writesNothing(dir string) bool {
	v := c.Policy.Tree(dir, writeOps)
	return v.Uniform && v.Effect == policy.Deny && !slices.ContainsFunc(v.Except, func(e string) bool { return below(e, dir) })
}

// governs reports whether a directory is in one that commands work in. What
// cannot be resolved is taken as it is written.
func (c *Config) governs(dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return slices.ContainsFunc(c.Files.Governed, func(g wire.Governed) bool { return below(dir, g.Backing) })
}

// keepsOut refuses a view in which commands would work on the session's own
// state.
func (s *Session) keepsOut(v *view) error {
	dir, err := filepath.EvalSymlinks(s.state.dir)
	if err != nil {
		return fmt.Errorf("session state: %w", err)
	}
	for _, g := range v.governed {
		if !g.closed && below(dir, g.backing) && (s.cfg.governs(dir) || !s.cfg.writesNothing(dir)) {
			return fmt.Errorf("session state %s lies in %s, which commands work in: set TMPDIR to a directory outside", dir, g.backing)
		}
	}
	return nil
}
