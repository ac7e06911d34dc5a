package view

import (
	"path/filepath"
	"slices"
	"strings"

	"agentsh/policy"
	"agentsh/supervisor/launch"
)

// loaderGlobs match the dynamic loaders. The kernel opens and executes one with
// each dynamic program, in whatever directory that is: see elf(5), PT_INTERP.
var loaderGlobs = []string{"/lib/ld-*", "/lib64/ld-*", "/lib/*/ld-*", "/usr/lib/ld-*", "/usr/lib64/ld-*", "/usr/lib/*/ld-*"}

// execTrees returns the directories that exec_from names, and the loaders. It
// returns nil if the policy has no exec_from. A pattern counts up to its first
// wildcard. The notification of each execve checks the rest.
func execTrees(p *policy.Policy) []string {
	var trees []string
	for _, pattern := range p.ExecFrom() {
		tree := strings.TrimSuffix(pattern, "/**")
		if i := strings.IndexAny(tree, `*?[{\`); i >= 0 {
			tree = filepath.Dir(tree[:i] + "x")
		}
		trees = append(trees, filepath.Clean("/"+tree))
	}
	if trees == nil {
		return nil
	}
	for _, g := range loaderGlobs {
		found, err := filepath.Glob(g)
		if err == nil { // only for a bad pattern
			trees = append(trees, found...)
		}
	}
	return trees
}

// noExec reports whether a mount contains no directory of trees.
func noExec(trees []string, mount string) bool {
	return trees != nil && !slices.ContainsFunc(trees, func(tree string) bool { return Below(tree, mount) || Below(mount, tree) })
}

// mountNoExec makes mounts noexec that contain no directory of exec_from. Libraries
// cannot be mapped from there either.
func mountNoExec(mounts []launch.Mount, trees []string) {
	for i, m := range mounts {
		switch m.Kind {
		case launch.Bind, launch.Tmpfs, launch.FUSE, launch.Overlay:
			mounts[i].NoExec = m.NoExec || noExec(trees, m.Target)
		}
	}
}

// execOnly removes the right to execute from every rule and grants it to the
// directories of exec_from. It does nothing if the policy has none.
func execOnly(l *launch.Landlock, trees []string) {
	if trees == nil {
		return
	}
	for i := range l.Rules {
		l.Rules[i].Access &^= launch.LandlockExec
	}
	l.Rules = slices.DeleteFunc(l.Rules, func(r launch.LandlockRule) bool { return r.Access == 0 })
	grant(l, launch.LandlockExec, trees...)
}
