package view

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// StateParent returns the directory in which the state directory of a session
// is made. With namespaces it is the first writable one outside the workspace.
// Without them commands see the machine's directories, so it is the first that
// the policy does not let commands write to.
func StateParent(p *policy.Policy, workspace []wire.Governed, namespaces bool) string {
	candidates := []string{os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/run", "/var/tmp", "/dev/shm"}
	usable := func(dir string) bool { return !inWorkspace(workspace, dir) }
	if !namespaces {
		candidates = []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir(), "/var/tmp", "/dev/shm"}
		usable = func(dir string) bool { return writesNothing(p, dir) }
	}
	for _, dir := range candidates {
		if dir != "" && unix.Access(dir, unix.W_OK|unix.X_OK) == nil && usable(dir) {
			return dir
		}
	}
	return os.TempDir() // Prepare refuses it where commands could change it
}

// writesNothing reports whether the policy denies every change in a directory.
func writesNothing(p *policy.Policy, dir string) bool {
	v := p.Tree(dir, writeOps)
	return v.Uniform && v.Effect == policy.Deny && !slices.ContainsFunc(v.Except, func(e string) bool { return Below(e, dir) })
}

// inWorkspace reports whether a directory lies in a directory that commands work
// in. A path that cannot be resolved is compared as it is written.
func inWorkspace(workspace []wire.Governed, dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return slices.ContainsFunc(workspace, func(g wire.Governed) bool { return Below(dir, g.Backing) })
}

// excludesState rejects a plan in which commands can change the session's state
// directory.
func (v *Plan) excludesState(p *policy.Policy, o Options) error {
	dir, err := filepath.EvalSymlinks(o.State)
	if err != nil {
		return fmt.Errorf("session state: %w", err)
	}
	for _, g := range v.Governed {
		if !g.Closed && Below(dir, g.Backing) && (inWorkspace(o.Workspace, dir) || !writesNothing(p, dir)) {
			return fmt.Errorf("session state %s lies in %s, which commands work in: set TMPDIR to a directory outside", dir, g.Backing)
		}
	}
	return nil
}
