package view

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe/trial"
)

// namespaces is the confinement by namespaces: a root directory made of mounts,
// and Landlock with the same rules beneath it.
type namespaces struct{ Options }

func (n *namespaces) Plan(p *policy.Policy, newDir func(string) (string, error)) (*Plan, error) {
	pl := planner{policy: p, workspace: n.Workspace, home: n.Home, newDir: newDir, whole: n.Missing.FileServer}
	if n.Missing.Landlock || n.Missing.LandlockScopes || launch.LandlockABI() < trial.LandlockScopes {
		pl.noOpens = "it takes Landlock with scopes (Linux 6.12), which keeps commands from opening files there themselves"
	}
	return pl.plan()
}

func (n *namespaces) Prepare(p *policy.Policy, plan *Plan) error {
	if err := errors.Join(plan.reaches(n.User), plan.excludesState(p, n.Options)); err != nil {
		return err
	}
	for _, h := range n.Hidden {
		if err := plan.hide(h); err != nil {
			return err
		}
	}
	return plan.addSockets(p, n.Sockets)
}

func (n *namespaces) Launch(p *policy.Policy, plan *Plan, files Files) (launch.Config, error) {
	mounts, err := n.mounts(p, plan, files)
	if err != nil {
		return launch.Config{}, err
	}
	c := launch.Config{
		User: n.User.launch(), Hostname: layout.HostName, Network: launch.Network{Shared: n.Network},
		Mounts: mounts, Landlock: n.landlock(p, plan), ReadOnly: plan.readOnly(),
	}
	if plan.Emulated {
		c.Opener = readable(c.Landlock)
	}
	return c, nil
}

func (n *namespaces) SharesNetwork() bool { return n.Network }

func (n *namespaces) Filter(p *policy.Policy, _ bool) seccomp.PlanOptions {
	return seccomp.PlanOptions{Signals: n.Signals(p), Watches: true}
}

// Signals notifies the signals that the policy does not allow to every process.
// The pid namespace confines the others to the session, Landlock's scopes beneath it.
func (n *namespaces) Signals(p *policy.Policy) seccomp.Signals {
	plan := seccomp.Signals{Inside: true}
	if !p.Governs(policy.GroupSignal) {
		return plan
	}
	for number := range plan.Evaluated {
		_, plan.Evaluated[number] = restricting(p, number, insideTargets...)
		_, plan.First[number] = restricting(p, number, firstTarget)
	}
	return plan
}

func (n *namespaces) Evaluate(p *policy.Policy) func(policy.Request) (policy.Decision, policy.Diagnostic) {
	return p.Evaluate
}

func (n *namespaces) Installed(name string) string { return name }

func (n *namespaces) Inject(vars map[string]string) map[string]string { return vars }

func (n *namespaces) Root(init int) string { return fmt.Sprintf("/proc/%d/root", init) }

func (n *namespaces) Observer(init int) int { return init }

func (n *namespaces) Tracing() Tracing { return Tracing{} }

// scratchBytes is the maximum size of one private directory, which uses memory.
const scratchBytes = 4 << 30

// mounts returns the steps that build the root directory: first trees, then the
// paths inside them. Governed paths are last, because they block until they are
// served.
func (n *namespaces) mounts(p *policy.Policy, plan *Plan, files Files) ([]launch.Mount, error) {
	out := plan.treeMounts()
	for _, dir := range plan.Private {
		mode := uint32(0o1777)
		if dir == plan.Home {
			mode = 0o700
		}
		out = append(out, launch.Mount{Kind: launch.Tmpfs, Target: dir, Size: scratchBytes, Mode: mode})
	}
	for _, o := range plan.open { // those in a private directory come after it
		if Below(o.path, plan.Private...) {
			out = append(out, o.mount())
		}
	}
	var ofProc []launch.Mount // there is no /proc yet
	for _, name := range plan.masked {
		m := launch.Mount{Kind: launch.Mask, Target: name}
		if Below(name, staged) {
			ofProc = append(ofProc, m)
		} else {
			out = append(out, m)
		}
	}
	for _, name := range plan.sockets {
		out = append(out, launch.Mount{Kind: launch.Bind, Source: name, Target: name, ReadOnly: true, NoExec: true, Optional: true})
	}
	session, err := sessionFiles{n.Options, plan, files}.mounts()
	if err != nil {
		return nil, err
	}
	out = append(append(out, session...), launch.Mount{Kind: launch.Proc, Target: staged})
	out = append(out, ofProc...)
	shells, err := realShells(plan)
	if err != nil {
		return nil, err
	}
	out = append(out, shells...)
	for _, g := range plan.Governed {
		out = append(out, launch.Mount{Kind: launch.FUSE, Target: g.Path, Tag: g.Path, Single: !g.Dir, Options: fuseOptions(n.User)})
	}
	mountNoExec(out, execTrees(p))
	return out, nil
}

// treeMounts returns the mounts of the machine's trees, and /dev.
func (v *Plan) treeMounts() []launch.Mount {
	var out []launch.Mount
	for _, b := range v.binds {
		out = append(out, launch.Mount{Kind: launch.Bind, Source: b.path, Target: b.path, ReadOnly: true, NoExec: b.noExec})
	}
	for _, l := range v.links {
		out = append(out, launch.Mount{Kind: launch.Symlink, Source: l.target, Target: l.path})
	}
	for _, o := range v.open {
		if !Below(o.path, v.Private...) {
			out = append(out, o.mount())
		}
	}
	return append(out, launch.Mount{Kind: launch.Dev, Target: "/dev"})
}

// fuseOptions makes the kernel check permissions of served files. It also gives
// the commands' user access if another user mounts.
func fuseOptions(u User) []string {
	options := []string{"default_permissions"}
	if !u.Mapped {
		options = append(options, "allow_other")
	}
	return options
}

// allRights are the file rights of Landlock without those of devices.
const allRights = launch.LandlockRead | launch.LandlockExec | launch.LandlockWrite

// landlock grants the paths that the mounts show. It also confines signals and
// abstract sockets to the session. It returns nil if the session runs without
// Landlock.
func (n *namespaces) landlock(p *policy.Policy, plan *Plan) *launch.Landlock {
	if n.Missing.Landlock {
		return nil
	}
	l := newLandlock(n.Missing, plan)
	grant(l, unix.LANDLOCK_ACCESS_FS_READ_DIR, "/")
	for _, b := range plan.binds {
		grant(l, b.rights(), b.path)
	}
	for _, g := range plan.Governed {
		if !g.Closed {
			grant(l, allRights, g.Path)
		}
	}
	grant(l, allRights, plan.Private...)
	grant(l, launch.LandlockRead, "/proc") // writing to /proc/PID/mem would change the arguments of a checked execve
	grant(l, allRights|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, "/dev")
	execOnly(l, execTrees(p))
	return l
}

// newLandlock returns rules for the trees that are shown without a file server.
func newLandlock(missing Missing, plan *Plan) *launch.Landlock {
	l := &launch.Landlock{Handled: allRights | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, Scope: true}
	if missing.LandlockScopes {
		l.Handled, l.Scope = l.Handled&launch.LandlockRights(), false
	}
	for _, o := range plan.open {
		grant(l, o.rights(), o.path)
	}
	return l
}

// grant adds a rule for each path.
func grant(l *launch.Landlock, access uint64, paths ...string) {
	for _, p := range paths {
		l.Rules = append(l.Rules, launch.LandlockRule{Path: p, Access: access})
	}
}

// rights are what Landlock grants of the tree.
func (b bind) rights() uint64 {
	if b.noExec {
		return launch.LandlockRead
	}
	return launch.LandlockRead | launch.LandlockExec
}

// maxReadOnly is the maximum number of paths that the session init tries to
// write.
const maxReadOnly = 8

// readOnly returns paths for which writing must fail before the first command
// runs.
func (v *Plan) readOnly() []string {
	out := []string{"/"}
	for _, b := range v.binds {
		if len(out) < maxReadOnly {
			out = append(out, b.path)
		}
	}
	return out
}
